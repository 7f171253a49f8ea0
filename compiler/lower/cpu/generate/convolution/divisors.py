"""Divisors of means over windows at a border: the number of terms of each place, from tables.

Such a number is computed in integers of 64 bits, mostly as the product of one for the row and one for the column. The
columns' numbers are put into a table, and the rest is computed in float32, which holds these integers exactly. With the
channels last, the columns are the last but one dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import tvm_ffi
from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.read import Fold, Stage
from heterocc.compiler.lower.kernels.expressions import dtype_of, loads, substituted, uses

LARGEST = 1 << 20
"""The limit on terms of a window."""

_OPERATORS = {tirx.Add: tirx.Add, tirx.Sub: tirx.Sub, tirx.Mul: tirx.Mul, tirx.Max: tirx.Max, tirx.Min: tirx.Min}


def with_tables(kernel: Fold, columns: int, terms: int, dimension: int) -> Fold:
    """The kernel with tables of `columns` entries, written here, in place of integers that depend on the column, the
    place in a `dimension`.
    """
    if terms > LARGEST:
        return kernel
    return replace(kernel, after=tuple(_tabulated(stage, columns, dimension) for stage in kernel.after))


def _tabulated(stage: Stage, columns: int, dimension: int) -> Stage:
    column = stage.iters[dimension]
    others = [v for v in stage.iters if not v.same_as(column)]

    def count(cast: tirx.Cast) -> tirx.Expr:
        integer = dtype_of(cast.value) == "int64" and dtype_of(cast) == "float32"
        if not integer or loads(cast.value) or not uses(cast.value, column):
            return cast
        return _in_floats(cast.value, column, others, columns)

    return replace(stage, value=tvm_ffi.structural_map(stage.value, [(tirx.Cast, count)], order="post"))


def _in_floats(value: tirx.Expr, column: tirx.Var, others: Sequence[tirx.Var], columns: int) -> tirx.Expr:
    """An integer as float32."""
    if not uses(value, column):
        return tirx.Cast("float32", value)
    if not any(uses(value, v) for v in others):
        table = emit.scratch(columns)
        with emit.loop(columns) as place:
            build.buffer_store(table, tirx.Cast("float32", substituted(value, [(column, place)])), [place])
        return table[column]
    operator = _OPERATORS.get(type(value))
    if operator is None:
        return tirx.Cast("float32", value)
    return operator(*(_in_floats(part, column, others, columns) for part in (value.a, value.b)))

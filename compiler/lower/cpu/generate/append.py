"""Generation of kernels that write new rows after earlier ones, in memory that may have room for more rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.written import APPENDS, WRITTEN

PAST_ROOM = tirx.Var("room_past", "int64")
RESULT_ROOM = tirx.Var("room_result", "int64")

SHARED = 1 << 15
"""The least number of elements to write that threads share."""


@dataclass(frozen=True, slots=True)
class Append:
    """The concatenation of `count` earlier rows and `added` new ones along an axis of tensors of `shape`.

    The size of `shape` along the axis is not used. Sizes are variables or numbers.
    """

    shape: tuple[tirx.Expr, ...]
    axis: int
    count: tirx.Var
    added: tirx.Expr
    dtype: str

    def sized(self, rows: tirx.Expr) -> tuple[tirx.Expr, ...]:
        """The shape of so many rows."""
        return (*self.shape[: self.axis], rows, *self.shape[self.axis + 1 :])


def write_append(form: Append) -> tirx.PrimFunc:
    """The kernel `(past, new, count, result)`.

    The sizes of `past` and `result` along the axis are those of their memory, which are `count` rows or more and
    `count + added` or more. If `past` has no row, `count` rows are in `result` already: its memory is that of the past.
    """
    before, after = form.shape[: form.axis], form.shape[form.axis + 1 :]
    width = _product(after)
    with IRBuilder() as builder, build.prim_func(s_tir=True):
        build.func_name("append")
        build.func_attr({"tirx.noalias": True, WRITTEN: True, APPENDS: form.axis, "op_pattern": 8})
        given = [_argument("past", form, PAST_ROOM), _argument("new", form, form.added)]
        build.arg(form.count.name, form.count)
        past, new, result = (_flat(b, form) for b in (*given, _argument("result", form, RESULT_ROOM)))
        copied = emit.bound(tirx.min(form.count, PAST_ROOM) * width)
        planes = _product(before)

        def write(plane: tirx.Expr) -> None:
            start = emit.bound(plane * (RESULT_ROOM * width))
            source = emit.bound(plane * (PAST_ROOM * width))
            with build.serial(0, copied) as i:
                build.buffer_store(result, past[source + i], [start + i])
            start = emit.bound(start + form.count * width)
            source = emit.bound(plane * (form.added * width))
            with build.serial(0, form.added * width) as i:
                build.buffer_store(result, new[source + i], [start + i])

        def alone() -> None:
            with build.serial(0, planes) as plane:
                write(plane)

        def together() -> None:
            with build.parallel(0, planes) as plane:
                write(plane)

        emit.either(planes * (copied + form.added * width) >= SHARED, together, alone)
    return builder.get()


def _argument(name: str, form: Append, rows: tirx.Expr) -> tirx.Buffer:
    return build.arg(name, build.Buffer(form.sized(rows), form.dtype))


def _flat(buffer: tirx.Buffer, form: Append) -> tirx.Buffer:
    return build.decl_buffer((_product(buffer.shape),), form.dtype, data=tirx.buffer_data(buffer))


def _product(sizes: Sequence[tirx.Expr]) -> tirx.Expr:
    return prod(sizes, start=tirx.const(1, "int64"))

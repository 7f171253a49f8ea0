"""Functions between 8-bit numbers: their 256 results are computed first, then looked up for each element.

Activations of quantised models are such functions: of a dequantised value, and quantised again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from math import prod

import numpy as np
import tvm_ffi
from tvm import ir, relax, te, tirx

from heterocc.compiler.lower.relax.importer import ImportedFunction
from heterocc.compiler.lower.straight import bindings_of, constant, outputs_of, substitute, vars_of, write_main
from heterocc.compiler.lower.written import OPAQUE, PATTERN

ENTRIES = 256
LEAST_ELEMENTS = 4096
"""Elements below which making a table costs too large a part of the time."""

_FUNCTIONS = frozenset({"sigmoid", "tanh", "erf", "exp", "log", "power", "sqrt", "nn.gelu", "nn.gelu_tanh", "nn.silu"})
_ARITHMETIC = frozenset({"astype", "add", "subtract", "multiply", "divide", "maximum", "minimum", "round", "nn.relu"})
"""Operators of elements that take no longer than a look-up."""


def with_tables(function: ImportedFunction) -> ImportedFunction:
    """The function with look-ups for what computes 8-bit numbers by a function of each of others."""
    main = function.mod["main"]
    values = {b.var: b.value for b in bindings_of(main)}
    order = {var: number for number, var in enumerate(values)}
    builder, node_of, apart = relax.BlockBuilder(function.mod), dict(function.node_of), {PATTERN: OPAQUE}
    written: list[tuple[relax.Var, relax.Expr, str]] = []
    for var, value in values.items():
        steps = _steps(var, values, order) if _is_long(var) else []
        if steps:
            source, *steps = steps
            every = constant(np.arange(ENTRIES).astype(str(source.ty.dtype.dtype)))
            replace: dict[relax.Var, relax.Expr] = {source: every}
            for step in steps:
                replace[step] = relax.Var(f"{var.name}_{step.name}", relax.TensorType((ENTRIES,), step.ty.dtype))
                written.append((replace[step], substitute(values[step], replace), replace[step].name))
            value = builder.call_te(_looked_up, replace[var], source, primfunc_name_hint="table", primfunc_attrs=apart)
            node_of[var.name] = tuple(dict.fromkeys(n for step in steps for n in node_of.get(step.name, ())))
        written.append((var, value, var.name))
    live = {v for o in outputs_of(main) for v in vars_of(o)}
    for var, value, _ in reversed(written):
        if var in live:
            live.update(vars_of(value))
    if len(written) == len(values):
        return function
    mod = write_main(builder.get(), list(main.params), [w for w in written if w[0] in live], outputs_of(main))
    return dataclasses.replace(function, mod=mod, node_of=node_of)


def _looked_up(table: te.Tensor, places: te.Tensor) -> te.Tensor:
    return te.compute(places.shape, lambda *i: table(places(*i).astype("uint8").astype("int32")), name="looked_up")


def _is_long(var: relax.Var) -> bool:
    """Whether a value has 8-bit numbers, as many as are worth a table; sizes of the run count as one."""
    known = isinstance(var.ty, relax.TensorType) and isinstance(var.ty.shape, relax.ShapeExpr) and _is_bytes(var)
    return known and prod(int(d) for d in var.ty.shape.values if isinstance(d, tirx.IntImm)) >= LEAST_ELEMENTS


def _is_bytes(value: relax.Expr) -> bool:
    return value.ty.dtype is not None and str(value.ty.dtype.dtype) in ("int8", "uint8")


def _steps(
    result: relax.Var, values: Mapping[relax.Var, relax.Expr], order: Mapping[relax.Var, int]
) -> list[relax.Var]:
    """The values from one of 8-bit numbers to a result that is a function of it, number by number; else none."""
    steps: list[relax.Var] = []
    names = set[str]()
    left = {result}
    while left:
        last = max(left, key=lambda v: order.get(v, -1))
        if len(left) == 1 and steps and _is_bytes(last):
            return [last, *reversed(steps)] if names & _FUNCTIONS else []
        call = values.get(last)
        if not isinstance(call, relax.Call) or not isinstance(call.op, ir.Op):
            return []
        names.add(name := call.op.name.removeprefix("relax."))
        if name not in _FUNCTIONS | _ARITHMETIC:
            return []
        given = [a for a in call.args if not _is_single(a)]
        if not all(isinstance(a, relax.Var) and tvm_ffi.structural_equal(a.ty.shape, result.ty.shape) for a in given):
            return []
        left = (left - {last}) | set(given)
        steps.append(last)
    return []


def _is_single(value: relax.Expr) -> bool:
    """Whether a value is one number, or a vector of one."""
    shape = getattr(value.ty, "shape", None)
    if not isinstance(shape, relax.ShapeExpr) or len(shape.values) > 1:
        return False
    return all(isinstance(d, tirx.IntImm) and int(d) == 1 for d in shape.values)

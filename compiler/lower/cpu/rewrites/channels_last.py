"""Keeps maps with the channels last between convolutions of integers, which read and write them so.

These come as permute_dims(…, [0, 2, 3, 1]), convolution, permute_dims(…, [0, 3, 1, 2]). Operators between them that
work element by element, pool, average or concatenate are computed with the channels last, and the transpositions meet
and vanish. Where another operator reads a value, a transposition stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import tvm
from tvm import relax

from heterocc.compiler.lower.relax.importer import ImportedFunction, static_shape
from heterocc.compiler.lower.straight import bindings_of, constant, outputs_of, substitute, vars_of, write_main

_TO_LAST, _TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)

_BY_ELEMENT = frozenset(
    f"relax.{name}"
    for name in (
        "add subtract multiply divide maximum minimum isnan astype round clip negative exp sqrt sigmoid tanh abs where "
        "nn.relu nn.leakyrelu nn.silu nn.gelu erf greater greater_equal less less_equal"
    ).split()
)


def keep_channels_last(function: ImportedFunction) -> ImportedFunction:
    """The function with channels last wherever a value comes from a map with channels last."""
    main = function.mod["main"]
    if not any(_axes(b.value) == _TO_FIRST for b in bindings_of(main)):
        return function
    writer = _Writer(function)
    for binding in bindings_of(main):
        writer.rewrite(binding)
    outputs = [substitute(o, writer.alias) for o in outputs_of(main)]
    live = {v for o in outputs for v in vars_of(o)}
    for var, value, _ in reversed(writer.bindings):
        if var in live:
            live.update(vars_of(value))
    kept = [b for b in writer.bindings if b[0] in live]
    mod = write_main(function.mod, main.params, kept, outputs)
    return dataclasses.replace(function, mod=mod, node_of=writer.node_of)


def _axes(value: relax.Expr) -> tuple[int, ...] | None:
    """The axes of a transposition of four, None for any other expression."""
    if not isinstance(value, relax.Call) or getattr(value.op, "name", "") != "relax.permute_dims":
        return None
    axes = value.attrs.axes
    return None if axes is None or len(axes) != 4 else tuple(int(a) % 4 for a in axes)


class _Writer:
    """Writes the bindings again; `last` has a variable with the channels last for each that has one."""

    def __init__(self, function: ImportedFunction) -> None:
        self.arrays: Mapping[str, np.ndarray] = function.arrays
        self.node_of = dict(function.node_of)
        self.builder = relax.BlockBuilder()
        self.bindings: list[tuple[relax.Var, relax.Expr, str]] = []
        self.alias: dict[relax.Var, relax.Expr] = {}
        self.last: dict[relax.Var, relax.Var] = {}

    def rewrite(self, binding: relax.VarBinding) -> None:
        """Add a binding, in either order of the axes."""
        value, var = substitute(binding.value, self.alias), binding.var
        axes = _axes(value)
        if axes == _TO_LAST and value.args[0] in self.last:
            self.alias[var] = self.last[value.args[0]]
            return
        if axes == _TO_FIRST and isinstance(value.args[0], relax.Var):
            self.last[var] = value.args[0]
        twin = self._twin(value)
        if twin is not None:
            typed = self.builder.normalize(twin)
            name = f"{var.name}_last"
            fresh = relax.Var(name, typed.ty)
            self.node_of[name] = self.node_of.get(var.name, ())
            self.bindings.append((fresh, typed, name))
            self.last[var] = fresh
            value = relax.op.permute_dims(fresh, list(_TO_FIRST))
        self.bindings.append((var, value, var.name))

    def _twin(self, value: relax.Expr) -> relax.Call | None:
        """The call with the channels last, None if it has to stay as it is."""
        if not isinstance(value, relax.Call) or not any(v in self.last for v in vars_of(value)):
            return None
        name, attrs = getattr(value.op, "name", ""), value.attrs
        if name in _BY_ELEMENT:
            args = [self._operand(a) for a in value.args]
            return None if any(a is None for a in args) else relax.Call(value.op, args, attrs, value.ty_args)
        if name == "relax.concat" and int(attrs.axis) in (1, -3) and isinstance(value.args[0], relax.Tuple):
            parts = [self.last.get(f) for f in value.args[0].fields]
            return None if any(p is None for p in parts) else relax.op.concat(parts, 3)
        if name == "relax.mean" and [int(a) % 4 for a in attrs.axis or ()] == [2, 3] and bool(attrs.keepdims):
            return relax.op.mean(self.last[value.args[0]], [1, 2], keepdims=True)
        if name in ("relax.nn.max_pool2d", "relax.nn.avg_pool2d") and str(attrs.layout) == "NCHW":
            sizes = (attrs.pool_size, attrs.strides, attrs.padding, attrs.dilation)
            given = [*([int(n) for n in s] for s in sizes), bool(attrs.ceil_mode), bool(attrs.count_include_pad)]
            return getattr(relax.op.nn, name[9:])(self.last[value.args[0]], *given, layout="NHWC")
        return None

    def _operand(self, expr: relax.Expr) -> relax.Expr | None:
        """An operand of an operation by element, with its channels last."""
        if expr in self.last:
            return self.last[expr]
        if not isinstance(expr.ty, relax.TensorType):
            return expr
        shape = static_shape(expr.ty)
        if shape is not None and len(shape) <= 1 and int(np.prod(shape)) == 1:
            return expr
        array = self._array(expr)
        if array is None or array.ndim not in (3, 4):
            return None
        spread = array.reshape((1,) * (4 - array.ndim) + array.shape)
        return constant(np.ascontiguousarray(spread.transpose(_TO_LAST)))

    def _array(self, expr: relax.Expr) -> np.ndarray | None:
        if isinstance(expr, tvm.ir.GenericConst):
            return np.asarray(expr.value.numpy())
        return self.arrays.get(expr.name) if isinstance(expr, relax.Var) else None

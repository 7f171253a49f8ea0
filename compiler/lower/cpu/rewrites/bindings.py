"""The bindings of a Relax function, by variable and by reader, and what they compute."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping

import numpy as np
import tvm
import tvm_ffi
from tvm import relax

from heterocc.compiler.lower.cpu.rewrites.operands import float_shape
from heterocc.compiler.lower.relax.importer import ImportedFunction, dtype_name
from heterocc.compiler.lower.relax.widened import conversion
from heterocc.compiler.lower.straight import bindings_of, outputs_of, substitute, vars_of, write_main


class Bindings:
    """The bindings of a function; methods find what a variable is the result of, and who reads it."""

    def __init__(self, function: ImportedFunction) -> None:
        main = function.mod["main"]
        self.function, self.arrays = function, function.arrays
        self.bindings = bindings_of(main)
        self.value_of: Mapping[relax.Var, relax.Expr] = {b.var: b.value for b in self.bindings}
        reads = [(v, b.var) for b in self.bindings for v in vars_of(b.value)]
        self.outputs = outputs_of(main)
        self.reads = Counter([v for v, _ in reads] + [v for o in self.outputs for v in vars_of(o)])
        self.readers_of: dict[relax.Var, list[relax.Var]] = {}
        for var, reader in reads:
            self.readers_of.setdefault(var, []).append(reader)

    def array(self, expr: relax.Expr) -> np.ndarray | None:
        """The contents of a constant or a weight, None for what is computed."""
        if isinstance(expr, tvm.ir.GenericConst):
            return np.asarray(expr.value.numpy())
        return self.arrays.get(expr.name) if isinstance(expr, relax.Var) and expr not in self.value_of else None

    def number(self, expr: relax.Expr) -> float | None:
        """The value of a constant of one element; None for other expressions."""
        if not isinstance(expr, tvm.ir.GenericConst) or float_shape(expr) is None:
            return None
        array = expr.value.numpy()
        return float(array.ravel()[0]) if array.size == 1 else None

    def call(self, var: relax.Expr, name: str) -> relax.Call | None:
        """The call that a variable is the result of, if it is one of this operator."""
        value = self.value_of.get(var) if isinstance(var, relax.Var) else None
        is_it = isinstance(value, relax.Call) and getattr(value.op, "name", "") == name
        return value if is_it else None

    def only_reader(self, var: relax.Var, name: str) -> relax.Var | None:
        """The only reader of a variable, if it is a call of the operator."""
        reader = self.readers_of.get(var, [None])[0] if self.reads[var] == 1 else None
        return reader if reader is not None and self.call(reader, name) is not None else None

    def axes(self, turn: relax.Expr, rank: int) -> tuple[int, ...] | None:
        """The axes of a transposition, None for any other expression."""
        call = self.call(turn, "relax.permute_dims")
        if call is None:
            return None
        axes = call.attrs.axes
        return tuple(int(a) % rank for a in axes) if axes is not None else tuple(reversed(range(rank)))

    def widened(self, rows: relax.Expr) -> relax.Var | None:
        """The tensor of 16 or 8 bits that is widened to keys or values, for them alone."""
        if not isinstance(rows, relax.Var) or self.reads[rows] != 1 or rows not in self.value_of:
            return None
        found = conversion(self.function.mod, self.value_of[rows])
        return found.source if found is not None and found.widens else None

    def reshaped(self, source: relax.Expr) -> tuple[relax.Expr, relax.Expr]:
        """What reshapes lead to, and the last of them."""
        view = source
        while any(self.call(source, f"relax.{name}") is not None for name in ("reshape", "expand_dims", "squeeze")):
            source = self.value_of[source].args[0]
        return source, view

    def same(self, var: relax.Var, alias: Mapping[relax.Var, relax.Var]) -> relax.Var | None:
        """The earlier variable that a call gives again; `alias` are those known for earlier ones."""
        value = self.value_of[var]
        source = value.args[0] if isinstance(value, relax.Call) and value.args else None
        source = alias.get(source, source) if isinstance(source, relax.Var) else None
        if source is None:
            return None
        if self.call(var, "relax.astype") is not None:
            found, is_same = source, dtype_name(source.ty) == dtype_name(var.ty)
        elif self.call(var, "relax.permute_dims") is not None:
            first, then = (self.axes(turn, var.ty.ndim) for turn in (source, var))
            is_same = first is not None and [first[axis] for axis in then or ()] == list(range(var.ty.ndim))
            found = self.value_of[source].args[0] if is_same else source
        else:
            found = self.reshaped(var)[0] if self.call(var, "relax.broadcast_to") is None else source
            is_same = found is not var and bool(tvm_ffi.structural_equal(found.ty.shape, var.ty.shape))
        return alias.get(found, found) if is_same and isinstance(found, relax.Var) else None


def without_idle_calls(function: ImportedFunction) -> ImportedFunction:
    """The function without casts to the type and broadcasts to the shape that a value has.

    Also without reshapes and transpositions that others take back: onnxruntime-genai repeats heads of keys, and makes
    them columns, which MultiHeadAttention makes heads again.
    """
    graph = Bindings(function)
    alias: dict[relax.Var, relax.Var] = {}
    for binding in graph.bindings:
        same = graph.same(binding.var, alias)
        if same is not None and binding.var not in graph.outputs:
            alias[binding.var] = same
    if not alias:
        return function
    kept, live = [], {v for o in graph.outputs for v in vars_of(o)}
    for binding in reversed(graph.bindings):
        if binding.var in live:
            value = substitute(binding.value, alias)
            live.update(vars_of(value))
            kept.append((binding.var, value, binding.var.name))
    mod = write_main(function.mod, function.mod["main"].params, kept[::-1], graph.outputs)
    return dataclasses.replace(function, mod=mod)

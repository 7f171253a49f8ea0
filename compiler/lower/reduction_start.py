"""Starts maxima and minima from infinity, where TVM starts them from the largest finite number.

A row of -inf, as a mask makes it, would otherwise have a finite maximum. The padding of pooling starts from the same
number and is replaced with it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, tirx


def _register(kind: Any, sign: float) -> None:
    """Tell TVM's schedules of the reduction, so that they can split it."""

    def combine(left: Any, right: Any) -> list[Any]:
        return [kind(left[0], right[0])]

    def start(values: Any) -> list[Any]:
        return [tirx.FloatImm(str(values[0].ty.dtype), sign * math.inf)]

    tvm_ffi.get_global_func("s_tir.schedule.RegisterReducer")(1, combine, start)


_register(tirx.Max, -1)
_register(tirx.Min, 1)


def start_from_infinity(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with every floating-point maximum started from -inf and every minimum from inf.

    To be run before fusion: a kernel is then one operator, and no constant of the model lies in a reduction.
    """
    changed = {}
    for gvar, function in mod.functions_items():
        starts = _finite_starts(function) if isinstance(function, tirx.PrimFunc) else frozenset()
        if starts:
            changed[gvar] = _replaced(function, starts)
    if not changed:
        return mod
    mod = tvm.IRModule(dict(mod.functions_items()), attrs=mod.attrs)
    for gvar, function in changed.items():
        mod.update_func(gvar, function)
    return mod


def _finite_starts(function: Any) -> frozenset[float]:
    """The finite numbers from which the kernel's maxima and minima start."""
    found: list[float] = []

    def visit(block: Any) -> None:
        start, store = getattr(block.init, "value", None), getattr(block.body, "value", None)
        if isinstance(start, tirx.FloatImm) and isinstance(store, tirx.Max | tirx.Min):
            value = float(start.value)
            largest = _largest(str(start.ty.dtype))
            if value == (-largest if isinstance(store, tirx.Max) else largest):
                found.append(value)

    tvm_ffi.structural_walk(function.body, [(s_tir.SBlock, visit)], order="post")
    return frozenset(found)


def _replaced(function: Any, starts: frozenset[float]) -> Any:
    def replace(number: Any) -> Any:
        value = float(number.value)
        return tirx.FloatImm(number.ty, math.copysign(math.inf, value)) if value in starts else number

    return tvm_ffi.structural_map(function, [(tirx.FloatImm, replace)], order="post")


def _largest(dtype: str) -> float:
    if dtype == "bfloat16":
        return float(tirx.max_value(dtype).value)
    return float(np.finfo(dtype).max)

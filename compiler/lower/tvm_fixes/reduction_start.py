"""Infinite initial values of maxima and minima, instead of TVM's largest finite number.

Otherwise the maximum of a row of -inf, which attention masks produce, would be finite. The padding value of pooling is
the same number and is replaced too.
"""

from __future__ import annotations

import math

import numpy as np
import tvm
import tvm_ffi
from tvm import s_tir, tirx


def start_from_infinity(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with -inf as the initial value of every floating-point maximum, and inf for every minimum.

    It must run before fusion: each kernel is one operator then, so a constant of the model cannot be in a reduction.
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


def _finite_starts(function: tirx.PrimFunc) -> frozenset[float]:
    """The finite initial values of the kernel's maxima and minima."""
    found: list[float] = []

    def visit(block: s_tir.SBlock) -> None:
        start, store = getattr(block.init, "value", None), getattr(block.body, "value", None)
        if isinstance(start, tirx.FloatImm) and isinstance(store, tirx.Max | tirx.Min):
            value = float(start.value)
            largest = _largest(str(start.ty.dtype))
            if value == (-largest if isinstance(store, tirx.Max) else largest):
                found.append(value)

    tvm_ffi.structural_walk(function.body, [(s_tir.SBlock, visit)], order="post")
    return frozenset(found)


def _replaced(function: tirx.PrimFunc, starts: frozenset[float]) -> tirx.PrimFunc:
    def replace(number: tirx.Expr) -> tirx.Expr:
        value = float(number.value)
        return tirx.FloatImm(number.ty, math.copysign(math.inf, value)) if value in starts else number

    return tvm_ffi.structural_map(function, [(tirx.FloatImm, replace)], order="post")


def _largest(dtype: str) -> float:
    if dtype == "bfloat16":
        return float(tirx.max_value(dtype).value)
    return float(np.finfo(dtype).max)

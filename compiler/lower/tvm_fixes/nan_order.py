"""Propagation of NaN through maxima and minima with a constant, as in ONNX Runtime's Relu, Clip and similar operators.

`max(a, b)` is compiled to `a > b ? a : b` on CPUs, on Vulkan, with PoCL, and on CUDA (by `cuda/source.py`). This is b
if one of them is NaN, so the constant must be the first operand.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad


def numbers_first(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with the constant of each floating-point maximum or minimum as its first operand."""
    functions = {
        gvar: tvm_ffi.structural_map(function, [(tirx.Max, _swapped), (tirx.Min, _swapped)], order="post")
        if isinstance(function, tirx.PrimFunc)
        else function
        for gvar, function in mod.functions_items()
    }
    return tvm.IRModule(functions, attrs=mod.attrs)


def _swapped(extreme: tirx.Expr) -> tirx.Expr:
    return type(extreme)(extreme.b, extreme.a) if _is_constant(extreme.b) and not _is_constant(extreme.a) else extreme


def _is_constant(expr: tirx.Expr) -> bool:
    """Whether an expression is a floating-point constant or an element of a tensor of rank 0."""
    return isinstance(expr, tirx.FloatImm) or (isinstance(expr, TensorLoad) and len(expr.indices) == 0)

"""Lets NaN through where a value is held against a number, as ONNX Runtime does in Relu, Clip and their like.

Compiled code of `max(a, b)` is `a > b ? a : b` on CPUs, on Vulkan, with PoCL, and on CUDA, where `cuda/source.py` sees
to it: it gives b where one of them is NaN. With the number first, b is the value.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad


def numbers_first(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with the number of a floating-point maximum or minimum as its first operand."""
    functions = {
        gvar: tvm_ffi.structural_map(function, [(tirx.Max, _swapped), (tirx.Min, _swapped)], order="post")
        if isinstance(function, tirx.PrimFunc)
        else function
        for gvar, function in mod.functions_items()
    }
    return tvm.IRModule(functions, attrs=mod.attrs)


def _swapped(extreme: tirx.Expr) -> tirx.Expr:
    return type(extreme)(extreme.b, extreme.a) if _is_number(extreme.b) and not _is_number(extreme.a) else extreme


def _is_number(expr: tirx.Expr) -> bool:
    """Whether an expression is a floating-point number, or a tensor of rank 0."""
    return isinstance(expr, tirx.FloatImm) or (isinstance(expr, TensorLoad) and len(expr.indices) == 0)

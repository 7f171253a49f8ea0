"""float16 functions that neither LLVM nor CUDA's library has, computed in float32."""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call

_MISSING = frozenset(f"tirx.{name}" for name in "sinh cosh asin acos atan asinh acosh atanh".split())


def through_float32(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with these functions of float16 computed in float32."""
    functions = {
        gvar: tvm_ffi.structural_map(function, [(Call, _widened)], order="post")
        if isinstance(function, tirx.PrimFunc)
        else function
        for gvar, function in mod.functions_items()
    }
    return tvm.IRModule(functions, attrs=mod.attrs)


def _widened(call: tirx.Expr) -> tirx.Expr:
    name = getattr(call.op, "name", "")
    if name not in _MISSING or str(call.ty.dtype) != "float16":
        return call
    return tirx.call_intrin("float32", name, call.args[0].astype("float32")).astype("float16")

"""Double-precision infinities and NaN. OpenCL C's INFINITY and NAN are floats, which `select` of doubles refuses."""

from __future__ import annotations

import dataclasses
import math

import tvm
import tvm_ffi
from tvm import tirx

from heterocc.compiler.lower.pipeline import KernelModule


def with_double_infinities(module: KernelModule) -> KernelModule:
    """The module with every infinite or NaN constant of float64 converted from float32."""
    functions = {
        gvar: tvm_ffi.structural_map(function, [(tirx.FloatImm, _converted)], order="post")
        if isinstance(function, tirx.PrimFunc)
        else function
        for gvar, function in module.mod.functions_items()
    }
    return dataclasses.replace(module, mod=tvm.IRModule(functions, attrs=module.mod.attrs))


def _converted(number: tirx.Expr) -> tirx.Expr:
    value = float(number.value)
    if str(number.ty.dtype) != "float64" or math.isfinite(value):
        return number
    # An external call, as TVM would fold a cast.
    return tirx.call_pure_extern("float64", "convert_double", tirx.FloatImm("float32", value))

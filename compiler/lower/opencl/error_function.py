"""The error function as arithmetic, for drivers with a slow one: PoCL calls the C library for each element."""

from __future__ import annotations

import dataclasses

import tvm
import tvm_ffi
from tvm import ir, tirx

from heterocc.compiler.lower.kernels.expressions import dtype_of
from heterocc.compiler.lower.kernels.functions.error_function import erf
from heterocc.compiler.lower.kernels.functions.lanes import FLOAT32, Lanes
from heterocc.compiler.lower.pipeline import KernelModule


def erf_as_arithmetic(module: KernelModule) -> KernelModule:
    """The module with every float32 error function as arithmetic, within 2 ulp (OpenCL allows 16)."""
    mod = tvm.IRModule(dict(module.mod.functions_items()), attrs=module.mod.attrs)
    for gvar, function in module.mod.functions_items():
        if isinstance(function, tirx.PrimFunc) and "T.erf(" in str(function.script(show_meta=False)):
            mod.update_func(gvar, tvm_ffi.structural_map(function, [(ir.Call, _replaced)], order="post"))
    return dataclasses.replace(module, mod=mod)


def _replaced(call: tirx.Expr) -> tirx.Expr:
    if getattr(call.op, "name", "") != "tirx.erf" or dtype_of(call) != FLOAT32:
        return call
    lanes = Lanes(1, fused=False)
    return lanes.closed(erf(lanes.argument(call.args[0])))

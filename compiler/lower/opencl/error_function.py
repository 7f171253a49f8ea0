"""The error function as arithmetic, for drivers with a slow one: PoCL calls the C library for each element."""

from __future__ import annotations

import dataclasses

import tvm
import tvm_ffi
from tvm import ir, tirx

from heterocc.compiler.lower.kernels.expressions import dtype_of
from heterocc.compiler.lower.pipeline import KernelModule

_ABOVE = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
_BELOW = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)
"""The coefficients of Eigen's rational approximation: polynomials in the square, the highest power first."""

_ONE = 4.0
"""From this argument on, the error function in float32 is one."""


def erf_as_arithmetic(module: KernelModule) -> KernelModule:
    """The module with every float32 error function as a quotient of polynomials, within 8 ulp (OpenCL allows 16)."""
    mod = tvm.IRModule(dict(module.mod.functions_items()), attrs=module.mod.attrs)
    for gvar, function in module.mod.functions_items():
        if isinstance(function, tirx.PrimFunc) and "T.erf(" in str(function.script(show_meta=False)):
            mod.update_func(gvar, tvm_ffi.structural_map(function, [(ir.Call, _replaced)], order="post"))
    return dataclasses.replace(module, mod=mod)


def _replaced(call: tirx.Expr) -> tirx.Expr:
    if getattr(call.op, "name", "") != "tirx.erf" or dtype_of(call) != "float32":
        return call
    # The bounds are the first operands, so that NaN is propagated.
    x = tirx.max(_number(-_ONE), tirx.min(_number(_ONE), call.args[0]))
    square = x * x
    return x * _polynomial(square, _ABOVE) / _polynomial(square, _BELOW)


def _polynomial(x: tirx.Expr, coefficients: tuple[float, ...]) -> tirx.Expr:
    total = _number(coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + _number(coefficient)
    return total


def _number(value: float) -> tirx.Expr:
    return tirx.const(value, "float32")

"""Which functions are computed here, and the two passes that put their arithmetic into kernels.

TVM's pass that makes vectors takes calls of functions that it does not know as such apart into lanes, and its rules for
functions are the whole process's. So the calls become calls of operators of our own, which it may make vectors of, and
these become arithmetic when the vectors are made, for each target in its own way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op, register_op_attr

from heterocc.compiler.lower.cpu.maths.circular import acos, asin, atan, cos, sin, tan
from heterocc.compiler.lower.cpu.maths.error_function import erf
from heterocc.compiler.lower.cpu.maths.exponential import exp, log
from heterocc.compiler.lower.cpu.maths.hyperbolic import cosh, sigmoid, sinh, tanh
from heterocc.compiler.lower.cpu.maths.inverse import acosh, asinh, atanh
from heterocc.compiler.lower.cpu.maths.lanes import FLOAT32, Lanes, Value
from heterocc.compiler.lower.cpu.maths.power import power

if TYPE_CHECKING:
    from tvm.target import Target

FUNCTIONS: Mapping[str, Callable[..., Value]] = {
    "acos": acos,
    "acosh": acosh,
    "asin": asin,
    "asinh": asinh,
    "atan": atan,
    "atanh": atanh,
    "cos": cos,
    "cosh": cosh,
    "erf": erf,
    "exp": exp,
    "log": log,
    "pow": power,
    "sigmoid": sigmoid,
    "sin": sin,
    "sinh": sinh,
    "tan": tan,
    "tanh": tanh,
}
"""By the names of TVM's operators; of float32."""

_NARROW = frozenset(["float16", "bfloat16"])
_PURE = 1  # TVM's CallEffectKind


def mark_functions(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with functions of float32 as calls of our operators, those of half precision as such between casts."""
    operators = _operators()

    def marked(call: tirx.Expr) -> tirx.Expr:
        operator = operators.get(getattr(call.op, "name", ""))
        dtype = str(call.ty.dtype) if operator is not None else ""
        if dtype == FLOAT32:
            return Call(operator, list(call.args), ret_ty=FLOAT32)
        if dtype in _NARROW:
            return Call(operator, [a.astype(FLOAT32) for a in call.args], ret_ty=FLOAT32).astype(dtype)
        return call

    return _mapped(mod, lambda _function: marked)


def expand_functions(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with arithmetic for the target of each function in place of the calls of our operators."""
    names = {operator.name: name.removeprefix("tirx.") for name, operator in _operators().items()}

    def for_function(function: tirx.PrimFunc) -> Callable[[tirx.Expr], tirx.Expr]:
        avx512 = has_avx512(function.attrs["target"])

        def expanded(call: tirx.Expr) -> tirx.Expr:
            name = names.get(getattr(call.op, "name", ""))
            return call if name is None else expression(name, list(call.args), avx512)

        return expanded

    return _mapped(mod, for_function)


def expression(name: str, arguments: list[tirx.Expr], avx512: bool) -> tirx.Expr:
    """A function of float32 numbers or vectors as arithmetic."""
    lanes = Lanes(int(arguments[0].ty.dtype.lanes), avx512)
    values = [lanes.argument(a) for a in arguments]
    return lanes.closed(FUNCTIONS[name](*values))


def has_avx512(target: Target) -> bool:
    """Whether code for a target may use AVX-512."""
    return bool(tvm.target.codegen.target_has_features("avx512f", target))


@functools.cache
def _operators() -> Mapping[str, Op]:
    """Our operators by the names of TVM's. They are made once in a process and do nothing by themselves."""
    made = {}
    for name in FUNCTIONS:
        own = f"heterocc.{name}"
        register_op_attr(own, "TVectorizable", True)
        register_op_attr(own, "TCallEffectKind", _PURE)
        register_op_attr(own, "TScriptPrinterName", own)
        made[f"tirx.{name}"] = Op.get(own)
    return made


def _mapped(mod: tvm.IRModule, rule: Callable[[tirx.PrimFunc], Callable[[Any], Any]]) -> tvm.IRModule:
    functions = {
        gvar: tvm_ffi.structural_map(function, [(Call, rule(function))], order="post")
        if isinstance(function, tirx.PrimFunc)
        else function
        for gvar, function in mod.functions_items()
    }
    return tvm.IRModule(functions, attrs=mod.attrs)

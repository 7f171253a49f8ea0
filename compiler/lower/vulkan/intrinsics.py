"""Calls in TIR: mathematical functions, bit operations, work-group barriers, reductions over a subgroup."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from heterocc.compiler.lower.vulkan.body import Body
from heterocc.compiler.lower.vulkan.dtypes import BOOL, FLOAT32, UINT32, DType, UnsupportedError
from heterocc.compiler.lower.vulkan.integers import absolute, leading_zeros, population, truncated_mod
from heterocc.compiler.lower.vulkan.maths import functions as maths
from heterocc.compiler.lower.vulkan.scalar import Scalar, select
from heterocc.compiler.lower.vulkan.spirv import (
    REDUCE,
    SCOPE_SUBGROUP,
    SCOPE_WORKGROUP,
    SEMANTICS_WORKGROUP,
    Capability,
    Glsl,
    Op,
)

_FLOAT32_ONLY: dict[str, Callable[..., Scalar]] = {
    "acos": maths.acos,
    "acosh": maths.acosh,
    "asin": maths.asin,
    "asinh": maths.asinh,
    "atan": maths.atan,
    "atan2": maths.atan2,
    "atanh": maths.atanh,
    "copysign": maths.copysign,
    "cos": maths.cos,
    "cosh": maths.cosh,
    "erf": maths.erf,
    "exp": maths.exp,
    "exp10": maths.exp10,
    "exp2": maths.exp2,
    "fmod": maths.remainder,
    "hypot": maths.hypot,
    "log": maths.log,
    "log10": maths.log10,
    "log1p": maths.log1p,
    "log2": maths.log2,
    "pow": maths.power,
    "sigmoid": lambda x: 1.0 / (maths.exp(-x) + 1.0),
    "sin": maths.sin,
    "sinh": maths.sinh,
    "tan": maths.tan,
    "tanh": maths.tanh,
}
"""Functions that are computed in float32; narrower types are converted to it and back."""

_ANY_FLOAT: dict[str, Callable[..., Scalar]] = {
    "ceil": lambda x: x.glsl(Glsl.CEIL),
    "fabs": absolute,
    "floor": lambda x: x.glsl(Glsl.FLOOR),
    "fma": lambda a, b, c: a.times(b).plus(c),
    "nearbyint": lambda x: x.glsl(Glsl.ROUND_EVEN),
    "rint": lambda x: x.glsl(Glsl.ROUND_EVEN),
    "round": maths.round_away,
    "rsqrt": maths.rsqrt,
    "sqrt": maths.sqrt,
    "trunc": lambda x: x.glsl(Glsl.TRUNC),
}
_ROUNDING = ("floor", "ceil", "trunc", "round", "nearbyint", "rint")
_CLASSES: dict[str, Callable[[Scalar], Scalar]] = {
    "isnan": maths.is_nan,
    "isinf": maths.is_infinite,
    "isfinite": maths.is_finite,
}
_SUBGROUP: dict[str, tuple[Op, Op, Op]] = {  # float, int, uint
    "subgroup_add": (Op.GROUP_NON_UNIFORM_F_ADD, Op.GROUP_NON_UNIFORM_I_ADD, Op.GROUP_NON_UNIFORM_I_ADD),
    "subgroup_min": (Op.GROUP_NON_UNIFORM_F_MIN, Op.GROUP_NON_UNIFORM_S_MIN, Op.GROUP_NON_UNIFORM_U_MIN),
    "subgroup_max": (Op.GROUP_NON_UNIFORM_F_MAX, Op.GROUP_NON_UNIFORM_S_MAX, Op.GROUP_NON_UNIFORM_U_MAX),
}
"""Reductions over the active invocations of a subgroup, which schedules call as external functions."""


def is_rounding(name: str) -> bool:
    """Whether a TVM operator or C function rounds to an integer."""
    return name.rpartition(".")[2].removesuffix("f") in _ROUNDING


def call(name: str, dtype: DType, arguments: Sequence[Scalar]) -> Scalar:
    """The result, of type `dtype`, of a TVM operator or C function. Raises UnsupportedError for an unknown one."""
    short = name.rpartition(".")[2]
    plain = _without_suffix(short, dtype)
    if not arguments:
        return _unknown(name)
    first = arguments[0]
    if short in _SUBGROUP:
        return _over_subgroup(short, first)
    if short in _CLASSES:
        return _classified(short, first)
    if plain in _FLOAT32_ONLY:
        return _in_float32(plain, dtype, arguments)
    if plain in _ANY_FLOAT and dtype.is_float:
        return _ANY_FLOAT[plain](*arguments)
    if short in _ROUNDING:
        return first  # for integers
    other = _OTHERS.get(short)
    return other(dtype, arguments) if other is not None else _unknown(name)


def barrier(body: Body, scope: str) -> None:
    """A barrier for the invocations of a work group, after which their stores to shared memory are visible."""
    if scope == "warp":
        return  # subgroups exchange values only through registers
    if not scope.startswith("shared"):
        raise UnsupportedError(f"a barrier for {scope} memory, which would have to synchronise work groups")
    scope_id = UINT32.constant(body.module, SCOPE_WORKGROUP)
    semantics = UINT32.constant(body.module, SEMANTICS_WORKGROUP)
    body.effect(Op.CONTROL_BARRIER, scope_id, scope_id, semantics)


def _without_suffix(name: str, dtype: DType) -> str:
    """C's name of a function for double: `expf` becomes `exp`, but `erf` stays."""
    if dtype.is_float and name.endswith("f") and name[:-1] in (_FLOAT32_ONLY.keys() | _ANY_FLOAT.keys()):
        return name[:-1]
    return name


def _unknown(name: str) -> Scalar:
    raise UnsupportedError(f"function {name}")


def _in_float32(name: str, dtype: DType, arguments: Sequence[Scalar]) -> Scalar:
    if not dtype.is_float or dtype.bits > 32:
        raise UnsupportedError(f"{name} of {dtype.name}")
    return _FLOAT32_ONLY[name](*(a.to(FLOAT32) for a in arguments)).to(dtype)


def _classified(name: str, x: Scalar) -> Scalar:
    if not x.dtype.is_float:
        return x.constant(name == "isfinite", BOOL)
    if x.dtype.bits <= 32:
        return _CLASSES[name](x.to(FLOAT32))
    # The exponent of float64 is in the upper word.
    size = absolute(x).bitcast(DType("int", 64))
    infinite = 0x7FF << 52
    return {"isnan": size > infinite, "isinf": size.equals(infinite), "isfinite": size < infinite}[name]


def _over_subgroup(name: str, value: Scalar) -> Scalar:
    module = value.body.module
    if value.dtype == BOOL or value.dtype.bits < 32:
        raise UnsupportedError(f"{name} of {value.dtype.name}")
    module.require(Capability.GROUP_NON_UNIFORM)
    module.require(Capability.GROUP_NON_UNIFORM_ARITHMETIC)
    op = _SUBGROUP[name][("float", "int", "uint").index(value.dtype.kind)]
    scope = UINT32.constant(module, SCOPE_SUBGROUP)
    result = value.body.fresh(op, value.dtype.compute(module), scope, REDUCE, value.id)
    return Scalar(value.body, value.dtype, result)


_OTHERS: dict[str, Callable[[DType, Sequence[Scalar]], Scalar]] = {
    "likely": lambda _, a: a[0],
    "abs": lambda _, a: absolute(a[0]),
    "fabs": lambda _, a: absolute(a[0]),
    "clz": lambda dtype, a: leading_zeros(a[0]).to(dtype),
    "popcount": lambda dtype, a: population(a[0]).to(dtype),
    "ctpop": lambda dtype, a: population(a[0]).to(dtype),
    "fmod": lambda _, a: truncated_mod(a[0], a[1]),
    "ldexp": lambda _, a: maths.scaled_by_power(a[0], a[1]),
    "reinterpret": lambda dtype, a: a[0].bitcast(dtype),
    "shift_left": lambda _, a: a[0] << a[1],
    "shift_right": lambda _, a: a[0] >> a[1],
    "bitwise_and": lambda _, a: a[0] & a[1],
    "bitwise_or": lambda _, a: a[0] | a[1],
    "bitwise_xor": lambda _, a: a[0] ^ a[1],
    "bitwise_not": lambda _, a: ~a[0],
    "if_then_else": lambda _, a: select(a[0], a[1], a[2]),
    "large_uint_imm": lambda dtype, a: a[0].constant((int(a[1].known or 0) << 32) | int(a[0].known or 0), dtype),
}

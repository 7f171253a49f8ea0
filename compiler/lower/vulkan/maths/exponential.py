"""Exponentials and logarithms to other bases than e."""

from __future__ import annotations

import math

from heterocc.compiler.lower.kernels.approximations import EXP, LOG
from heterocc.compiler.lower.kernels.functions.exponential import log, log_cases
from heterocc.compiler.lower.kernels.functions.number import polynomial
from heterocc.compiler.lower.vulkan.dtypes import INT32
from heterocc.compiler.lower.vulkan.maths.basic import times_power_of_two
from heterocc.compiler.lower.vulkan.scalar import Scalar, select
from heterocc.compiler.lower.vulkan.spirv import Glsl

LN2 = math.log(2)


def exp2(x: Scalar) -> Scalar:
    """2^x, within 2 ulp."""
    bounded = x.at_least(-151.0).at_most(129.0)
    n = bounded.glsl(Glsl.ROUND_EVEN)
    return times_power_of_two(exp_near_zero((bounded - n) * LN2), n.to(INT32))


def exp10(x: Scalar) -> Scalar:
    """10^x, within 3 ulp."""
    bounded = x.at_least(-46.0).at_most(39.0)
    n = (bounded * math.log2(10)).glsl(Glsl.ROUND_EVEN)
    high = 0.301025390625  # log10(2) to 12 bits
    r = (bounded - n * high) - n * (math.log10(2) - high)
    return times_power_of_two(exp_near_zero(r * math.log(10)), n.to(INT32))


def log2(x: Scalar) -> Scalar:
    """The logarithm to base 2, within 3 ulp; exact for powers of two."""
    e, f = split_exponent(x)
    half = f * f * 0.5
    small = polynomial(f, LOG) * f * f * f - half
    # 1/ln 2 = 1 + 0.4427, and the product of 1 and f is exact.
    rest = small + (small + f) * (1 / LN2 - 1)
    return log_cases(x, (rest + f) + e)


def log10(x: Scalar) -> Scalar:
    """The logarithm to base 10, within 3 ulp."""
    return log(x) * math.log10(math.e)


def log1p(x: Scalar) -> Scalar:
    """ln(1 + x), within 4 ulp."""
    u = x + 1.0
    corrected = log(u) * (x / (u - 1.0))
    return select(u.equals(1.0) | x.equals(math.inf), x, corrected)


def exp_near_zero(r: Scalar) -> Scalar:
    """e^r for |r| ≤ ln(2)/2."""
    return (polynomial(r, EXP) * (r * r) + r) + 1.0


def split_exponent(x: Scalar) -> tuple[Scalar, Scalar]:
    """x as 2^e · (1 + f) with 1 + f in [√½, √2); e as a float."""
    tiny = x < 2.0**-126
    bits = select(tiny, x * 2.0**23, x).bits() + (0x3F800000 - 0x3F3504F3)
    e = (bits >> 23) - select(tiny, bits.constant(127 + 23), 127)
    f = ((bits & 0x007FFFFF) + 0x3F3504F3).float_of_bits() - 1.0
    return e.as_float(), f

"""Exponentials and logarithms."""

from __future__ import annotations

import math

from heterocc.compiler.lower.vulkan.dtypes import FLOAT32, INT32
from heterocc.compiler.lower.vulkan.maths.basic import bits_of, clamped, is_nan, polynomial, times_power_of_two
from heterocc.compiler.lower.vulkan.scalar import Scalar, select
from heterocc.compiler.lower.vulkan.spirv import Glsl

LN2 = math.log(2)
_LN2_HIGH = 0.693359375
"""ln 2 to 9 bits, so that products with exponents are exact; `_LN2_LOW` is the rest."""
_LN2_LOW = LN2 - _LN2_HIGH
_EXP = (0.5, 0.1666651964, 0.04166839272, 0.008368755691, 0.001381451497)
LOG = (
    *(0.3333331347, -0.2500000894, 0.2000211924, -0.1666799635, 0.1421955079),
    *(-0.1240559146, 0.1188817471, -0.1167564094, 0.06746601313),
)


def exp(x: Scalar) -> Scalar:
    """e^x, within 2 ulp."""
    bounded = clamped(x, -104.0, 89.0)
    n = (bounded * (1 / LN2)).glsl(Glsl.ROUND_EVEN)
    r = (bounded - n * _LN2_HIGH) - n * _LN2_LOW
    return times_power_of_two(exp_near_zero(r), n.to(INT32))


def exp2(x: Scalar) -> Scalar:
    """2^x, within 2 ulp."""
    bounded = clamped(x, -151.0, 129.0)
    n = bounded.glsl(Glsl.ROUND_EVEN)
    return times_power_of_two(exp_near_zero((bounded - n) * LN2), n.to(INT32))


def exp10(x: Scalar) -> Scalar:
    """10^x, within 3 ulp."""
    bounded = clamped(x, -46.0, 39.0)
    n = (bounded * math.log2(10)).glsl(Glsl.ROUND_EVEN)
    high = 0.301025390625  # log10(2) to 12 bits
    r = (bounded - n * high) - n * (math.log10(2) - high)
    return times_power_of_two(exp_near_zero(r * math.log(10)), n.to(INT32))


def log(x: Scalar) -> Scalar:
    """ln x, within 2 ulp."""
    e, f = split_exponent(x)
    half = f * f * 0.5
    small = polynomial(f, LOG) * f * f * f + e * _LN2_LOW
    return _log_cases(x, ((small - half) + f) + e * _LN2_HIGH)


def log2(x: Scalar) -> Scalar:
    """The logarithm to base 2, within 3 ulp; exact for powers of two."""
    e, f = split_exponent(x)
    half = f * f * 0.5
    small = polynomial(f, LOG) * f * f * f - half
    # 1/ln 2 = 1 + 0.4427, and the product of 1 and f is exact.
    rest = small + (small + f) * (1 / LN2 - 1)
    return _log_cases(x, (rest + f) + e)


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
    return (polynomial(r, _EXP) * (r * r) + r) + 1.0


def split_exponent(x: Scalar) -> tuple[Scalar, Scalar]:
    """x as 2^e · (1 + f) with 1 + f in [√½, √2); e as a float."""
    tiny = x < 2.0**-126
    bits = bits_of(select(tiny, x * 2.0**23, x)) + (0x3F800000 - 0x3F3504F3)
    e = (bits >> 23) - select(tiny, bits.constant(127 + 23), 127)
    f = ((bits & 0x007FFFFF) + 0x3F3504F3).bitcast(FLOAT32) - 1.0
    return e.to(FLOAT32), f


def _log_cases(x: Scalar, value: Scalar) -> Scalar:
    value = select(x.equals(0.0), x.constant(-math.inf), value)
    value = select(x.equals(math.inf) | is_nan(x), x, value)
    return select(x < 0.0, x.constant(math.nan), value)

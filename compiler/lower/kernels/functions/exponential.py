"""Exponentials and logarithms of float32."""

from __future__ import annotations

import math

from heterocc.compiler.lower.kernels.approximations import EXP, LN2_HIGH, LN2_LOW, LOG
from heterocc.compiler.lower.kernels.functions.number import N, polynomial, select

LEAST_NORMAL = -87.3
"""A number above the logarithm of the least float32 that is not subnormal."""

_ROOT_HALF_BITS = 0x3F3504F3


def exp(x: N) -> N:
    """e^x, within 1 ulp."""
    return exp_to(x, 89.0)


def exp_to(x: N, high: float | None) -> N:
    """e^x for x up to `high`, above which the caller returns infinity; None: x is at most 88."""
    bounded = x.at_least(-104.0)
    bounded = bounded if high is None else bounded.at_most(high)
    return scaled_exp(bounded, 0)


def scaled_exp(x: N, shift: int) -> N:
    """e^x · 2^shift for x from -104 to 90; a subnormal result is rounded once."""
    bits, n, r = reduced(x, 254 + shift)
    return polynomial(r, (1.0, 1.0, *EXP)).times_power(n + float(shift) if shift else n, bits)


def exp_normal(x: N) -> N:
    """e^x for x from -87.3 to 88, for which 2^n is one factor."""
    bits, _, r = reduced(x, 127)
    return polynomial(r, (1.0, 1.0, *EXP)) * (bits << 23).float_of_bits()


def reduced(x: N, bias: int) -> tuple[N, N, N]:
    """For n = round(x / ln 2): the bits of a float whose lowest are n + bias; n; and x - n · ln 2."""
    n, bits = x.rounded_to_integer(math.log2(math.e), bias)
    return bits, n, n.fma(-LN2_LOW, n.fma(-LN2_HIGH, x))


def log(x: N) -> N:
    """ln x, within 1 ulp."""
    tiny = x < 2.0**-126
    bits = select(tiny, x * 2.0**23, x).bits()
    exponent = (bits - _ROOT_HALF_BITS) >> 23
    f = (bits - (exponent << 23)).float_of_bits() - 1.0
    n = exponent.as_float() - select(tiny, x.constant(23.0), 0.0)
    z = f * f
    small = polynomial(f, LOG).fma(z * f, n * LN2_LOW)
    result = n.fma(LN2_HIGH, f + z.fma(-0.5, small))
    return log_cases(x, result)


def log_cases(x: N, result: N) -> N:
    """A logarithm of x with those of infinity, NaN, negative numbers and zero."""
    result = select(x.below_infinity(), result, x)
    result = select(x < 0.0, x.constant(math.nan), result)
    return select(x.equals(0.0), x.constant(-math.inf), result)

"""Logarithm and exponential in float64, for functions of float32 that need a higher intermediate precision."""

from __future__ import annotations

import math

from heterocc.compiler.lower.kernels.approximations import EXP2, LOG_RATIO
from heterocc.compiler.lower.kernels.functions.lanes import FLOAT32, FLOAT64, INT64, ROUND64, Value
from heterocc.compiler.lower.kernels.functions.number import polynomial, select

_ROOT_HALF_BITS = 0x3F3504F3


def log(x: Value) -> Value:
    """ln x for float64 x from 2^-126 to 2^127, within 2^-36 of it also near 1."""
    exponent = (x.to(FLOAT32).bits() - _ROOT_HALF_BITS) >> 23
    scale = ((1023 - exponent.to(INT64)) << 52).float_of_bits()
    return exponent.to(FLOAT64).fma(math.log(2), _log_of_mantissa(x * scale))


def log2(x: Value) -> Value:
    """The logarithm to base 2 of float32 x ≥ 0, in float64, within 2^-36 of it; of 0 minus infinity."""
    tiny = x < 2.0**-126
    bits = select(tiny, x * 2.0**23, x).bits()
    exponent = (bits - _ROOT_HALF_BITS) >> 23
    mantissa = (bits - (exponent << 23)).float_of_bits()
    n = exponent.to(FLOAT32) - select(tiny, x.constant(23.0), 0.0)
    result = _log_of_mantissa(mantissa.to(FLOAT64)).fma(1 / math.log(2), n.to(FLOAT64))
    result = select(x < math.inf, result, x.to(FLOAT64))
    return select(x.equals(0.0), result.constant(-math.inf), result)


def exp2(x: Value) -> Value:
    """2^x for float64 x, within 2^-28 of it; beyond ±200 as at ±200, out of the range of float32. NaN stays NaN."""
    bounded = x.at_least(-200.0).at_most(200.0)
    shifted = bounded + (ROUND64 + 1023)
    rest = bounded - (shifted - (ROUND64 + 1023))
    return polynomial(rest, (1.0, *EXP2)) * (shifted.bits() << 52).float_of_bits()


def _log_of_mantissa(m: Value) -> Value:
    """ln m for m from √½ to √2."""
    ratio = (m - 1.0) / (m + 1.0)
    square = ratio * ratio
    twice = ratio + ratio
    return polynomial(square, LOG_RATIO).fma(square * twice, twice)

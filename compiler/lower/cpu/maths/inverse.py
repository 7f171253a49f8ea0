"""Inverse hyperbolic functions of float32, as logarithms in float64."""

from __future__ import annotations

import math

from heterocc.compiler.lower.cpu.maths import wide
from heterocc.compiler.lower.kernels.functions.lanes import FLOAT32, FLOAT64, Value
from heterocc.compiler.lower.kernels.functions.number import select


def asinh(x: Value) -> Value:
    """The inverse hyperbolic sine, within 1 ulp."""
    size = x.magnitude()
    number = size.to(FLOAT64)
    # Half the sum, whose exponent is in the range of float32.
    half = (number.fma(number, 1.0).sqrt() + number) * 0.5
    result = (wide.log(half) + math.log(2)).to(FLOAT32)
    # Below this, the sum's rounding error dominates, and x³/6 is the only further term of the series that matters.
    result = select(size < 2.0**-10, (x * x).fma(size * (-1 / 6), size), result)
    return select(size < math.inf, result, size).with_sign_of(x)


def acosh(x: Value) -> Value:
    """The inverse hyperbolic cosine, within 1 ulp; NaN below 1."""
    number = x.to(FLOAT64)
    below = number - 1.0
    half = ((below * (number + 1.0)).sqrt() + number) * 0.5
    result = (wide.log(half) + math.log(2)).to(FLOAT32)
    result = select(x < math.inf, result, x)
    return select(x < 1.0, x.constant(math.nan), result)


def atanh(x: Value) -> Value:
    """The inverse hyperbolic tangent, within 1 ulp; NaN beyond 1."""
    size = x.magnitude()
    number = size.to(FLOAT64)
    result = (wide.log((number + 1.0) / (1.0 - number)) * 0.5).to(FLOAT32)
    result = select(size < 2.0**-10, (x * x).fma(size * (1 / 3), size), result)
    result = select(size < 1.0, result, select(size.equals(1.0), x.constant(math.inf), math.nan))
    return select(size < math.inf, result, x.constant(math.nan)).with_sign_of(x)

"""Sine, cosine and the arc tangent of float32, in float64."""

from __future__ import annotations

import math

from tvm import tirx

from heterocc.compiler.lower.cpu.maths.library import called
from heterocc.compiler.lower.kernels.approximations import ATAN, COS, SIN
from heterocc.compiler.lower.kernels.functions.lanes import FLOAT32, FLOAT64, ROUND64, Value
from heterocc.compiler.lower.kernels.functions.number import polynomial, select

_FAR = 2.0**26
"""The size above which the products of quadrants with parts of π/2 are not exact."""

_PART = 2.0**-26
_HALF_PI_1 = math.floor(math.pi / 2 / _PART) * _PART
_HALF_PI_2 = math.pi / 2 - _HALF_PI_1
_HALF_PI_3 = 6.123233995736766e-17
"""π/2 as a sum: 27 bits, the rest of float64's, and what float64 lacks."""


def sin(x: Value) -> Value:
    """The sine, within 1 ulp, of any argument."""
    return _of_any("sinf", x.magnitude(), 0).negated_if(x)


def cos(x: Value) -> Value:
    """The cosine, within 1 ulp, of any argument."""
    return _of_any("cosf", x.magnitude(), 1)


def atan(x: Value) -> Value:
    """The arc tangent, within 1 ulp."""
    size = x.magnitude().to(FLOAT64)
    steep, middle = size > 1 + math.sqrt(2), size > math.sqrt(2) - 1
    over = select(steep, size.constant(-1.0), select(middle, size - 1.0, size))
    under = select(steep, size, select(middle, size + 1.0, size.constant(1.0)))
    ratio = over / under
    square = ratio * ratio
    near = polynomial(square, ATAN).fma(square * ratio, ratio)
    start = select(steep, size.constant(math.pi / 2), select(middle, size.constant(math.pi / 4), 0.0))
    return (near + start).to(FLOAT32).with_sign_of(x)


def _of_any(name: str, size: Value, first: int) -> Value:
    """The sine or cosine from its `first` quadrant on, of arguments that are not negative.

    If one is large, the C library's function `name` computes all lanes.
    """
    lanes = size.lanes
    if lanes.count == 1:
        return lanes.bound(called(name, size), FLOAT32)
    number = size.to(FLOAT64)
    shifted = number.fma(2 / math.pi, ROUND64)
    n = shifted - ROUND64
    rest = n.fma(-_HALF_PI_3, n.fma(-_HALF_PI_2, n.fma(-_HALF_PI_1, number)))
    square = rest * rest
    s = polynomial(square, SIN).fma(square * rest, rest)
    c = polynomial(square, (1.0, *COS))
    quadrant = shifted.bits() + first
    value = select((quadrant & 1).differs(0), c, s)
    near = select((quadrant & 2).differs(0), -value, value).to(FLOAT32)
    largest = select(size < math.inf, size, 0.0).largest_lane()
    return lanes.bound(tirx.if_then_else(largest >= _FAR, called(name, size), near.expr), FLOAT32)

"""The remainder of division of float32 towards zero, in float64."""

from __future__ import annotations

import math

from tvm import tirx

from heterocc.compiler.lower.cpu.maths.library import called
from heterocc.compiler.lower.kernels.functions.lanes import FLOAT32, FLOAT64, Value
from heterocc.compiler.lower.kernels.functions.number import select

_FAR = 2.0**28
"""The quotient from which float64 may round a quotient of float32 to an integer that it is below."""

_BEYOND = 2.0**200


def fmod(x: Value, y: Value) -> Value:
    """The exact remainder, with the sign of x: C's `fmod`, also for zeros, infinities and NaN.

    Quotients that are not integers differ from them by at least 2^-24, more than the rounding error of those below
    2^28; the products of these with y have 52 bits. If a quotient is larger, the C library computes all lanes.
    """
    lanes = x.lanes
    if lanes.count == 1:
        return lanes.bound(called("fmodf", x, y), FLOAT32)
    size, by = x.magnitude().to(FLOAT64), y.magnitude().to(FLOAT64)
    # 0 · infinity is NaN, but the remainder of a number by infinity is the number.
    by = select(by > _BEYOND, by.constant(_BEYOND), by)
    quotient = size / by
    near = quotient.trunc().fma(-by, size).to(FLOAT32).with_sign_of(x)
    largest = select(quotient < math.inf, quotient, 0.0).to(FLOAT32).largest_lane()
    return lanes.bound(tirx.if_then_else(largest >= _FAR, called("fmodf", x, y), near.expr), FLOAT32)

"""Building blocks of the functions: bits, signs, roots, rounding, polynomials and powers of two."""

from __future__ import annotations

import math
from collections.abc import Sequence

from heterocc.compiler.lower.vulkan.dtypes import FLOAT32, INT32
from heterocc.compiler.lower.vulkan.scalar import Scalar, select
from heterocc.compiler.lower.vulkan.spirv import Glsl


def sqrt(x: Scalar) -> Scalar:
    """The device's square root, within 3 ulp; NaN for negative numbers. Any float type."""
    return select(x < 0.0, x.constant(math.nan), x.glsl(Glsl.SQRT))


def rsqrt(x: Scalar) -> Scalar:
    """1 / sqrt(x). Any float type."""
    return 1.0 / sqrt(x)


def round_away(x: Scalar) -> Scalar:
    """The nearest integer, with ties rounded away from zero. Any float type."""
    whole = x.glsl(Glsl.TRUNC)
    rest = (x - whole).glsl(Glsl.F_ABS)
    step = select(x < 0.0, x.constant(-1.0), 1.0)
    return select(rest >= 0.5, whole + step, whole)


def scaled_by_power(x: Scalar, n: Scalar) -> Scalar:
    """x · 2^n, C's ldexp."""
    bounded = select(n < -300, n.constant(-300), select(n > 300, n.constant(300), n))
    first = bounded / 2
    return times_power_of_two(times_power_of_two(x, first), bounded - first)


def magnitude(x: Scalar) -> Scalar:
    """|x|."""
    return x.glsl(Glsl.F_ABS)


def copysign(size: Scalar, sign: Scalar) -> Scalar:
    """A float32 with the magnitude of `size` and the sign of `sign`."""
    return ((bits_of(size) & 0x7FFFFFFF) | (bits_of(sign) & -0x80000000)).bitcast(FLOAT32)


def is_nan(x: Scalar) -> Scalar:
    """Whether a float32 is NaN, by its bits, as drivers may assume that operands of comparisons are not NaN."""
    return (bits_of(x) & 0x7FFFFFFF) > 0x7F800000


def is_infinite(x: Scalar) -> Scalar:
    """Whether a float32 is an infinity."""
    return (bits_of(x) & 0x7FFFFFFF).equals(0x7F800000)


def is_finite(x: Scalar) -> Scalar:
    """Whether a float32 is neither NaN nor infinite."""
    return (bits_of(x) & 0x7FFFFFFF) < 0x7F800000


def bits_of(x: Scalar) -> Scalar:
    """The bits of a float32 as an int32."""
    return x.bitcast(INT32)


def polynomial(x: Scalar, coefficients: Sequence[float]) -> Scalar:
    """The value of a polynomial by Horner's rule; the lowest coefficient is first."""
    result = x.constant(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result * x + coefficient
    return result


def clamped(x: Scalar, low: float, high: float) -> Scalar:
    """`x` limited to the bounds; NaN stays NaN."""
    return select(x < low, x.constant(low), select(x > high, x.constant(high), x))


def times_power_of_two(x: Scalar, n: Scalar) -> Scalar:
    """x · 2^n for |n| ≤ 252, in two steps, as 2^n may overflow."""
    first = n >> 1
    return x * _power_of_two(first) * _power_of_two(n - first)


def _power_of_two(n: Scalar) -> Scalar:
    return ((n + 127) << 23).bitcast(FLOAT32)

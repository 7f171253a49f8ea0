"""Building blocks of the functions: roots, rounding, classes of floats and powers of two."""

from __future__ import annotations

from heterocc.compiler.lower.kernels.functions.number import by_two_powers
from heterocc.compiler.lower.vulkan.scalar import Scalar, select
from heterocc.compiler.lower.vulkan.spirv import Glsl


def rsqrt(x: Scalar) -> Scalar:
    """1 / sqrt(x). Any float type."""
    return 1.0 / x.sqrt()


def round_away(x: Scalar) -> Scalar:
    """The nearest integer, with ties rounded away from zero. Any float type."""
    whole = x.glsl(Glsl.TRUNC)
    rest = (x - whole).magnitude()
    step = select(x < 0.0, x.constant(-1.0), 1.0)
    return select(rest >= 0.5, whole + step, whole)


def scaled_by_power(x: Scalar, n: Scalar) -> Scalar:
    """x · 2^n, C's ldexp."""
    bounded = select(n < -300, n.constant(-300), select(n > 300, n.constant(300), n))
    first = bounded / 2
    return times_power_of_two(times_power_of_two(x, first), bounded - first)


def is_nan(x: Scalar) -> Scalar:
    """Whether a float32 is NaN, by its bits, as drivers may assume that operands of comparisons are not NaN."""
    return (x.bits() & 0x7FFFFFFF) > 0x7F800000


def is_infinite(x: Scalar) -> Scalar:
    """Whether a float32 is an infinity."""
    return (x.bits() & 0x7FFFFFFF).equals(0x7F800000)


def times_power_of_two(x: Scalar, n: Scalar) -> Scalar:
    """x · 2^n for |n| ≤ 252."""
    return by_two_powers(x, n + 254)

"""Sine, cosine and tangent of any argument, and the arc tangent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from heterocc.compiler.lower.kernels.functions.number import polynomial
from heterocc.compiler.lower.vulkan.dtypes import FLOAT32, INT32, UINT32
from heterocc.compiler.lower.vulkan.maths.basic import is_nan
from heterocc.compiler.lower.vulkan.scalar import Scalar, select
from heterocc.compiler.lower.vulkan.spirv import Glsl

_HALF_PI = math.pi / 2
_SIN = (-0.1666666717, 0.008333329111, -0.000198393187, 2.718162705e-06)
_COS = (0.04166664556, -0.001388730365, 2.443166704e-05)
_ATAN = (
    *(-0.3333329856, 0.1999854892, -0.1426424086, 0.1095218137, -0.0840343684),
    *(0.05795735866, -0.03117761388, 0.01091448124, -0.001793593867),
)


def sin(x: Scalar) -> Scalar:
    """The sine of any argument, within 3 ulp if its magnitude is over 0.001, else within 1e-10."""
    quadrant, s, c = _sine_and_cosine(x)
    return _by_quadrant(quadrant, s, c)


def cos(x: Scalar) -> Scalar:
    """The cosine of any argument, with the errors of the sine."""
    quadrant, s, c = _sine_and_cosine(x)
    return _by_quadrant(quadrant + 1, s, c)


def tan(x: Scalar) -> Scalar:
    """The tangent, within 5 ulp if its magnitude is between 0.001 and 1000."""
    quadrant, s, c = _sine_and_cosine(x)
    odd = (quadrant & 1).differs(0)
    return select(odd, -c, s) / select(odd, s, c)


def atan(x: Scalar) -> Scalar:
    """The arc tangent, within 3 ulp."""
    a = x.magnitude()
    steep = a > 1.0
    flat = _arc_tangent_to_one(select(steep, 1.0 / a, a))
    return select(steep, _HALF_PI - flat, flat).with_sign_of(x)


def atan2(y: Scalar, x: Scalar) -> Scalar:
    """The angle of the point (x, y), within 4 ulp; zeros and infinities as in C."""
    a, b = y.magnitude(), x.magnitude()
    steep = a > b
    low, high = select(steep, b, a), select(steep, a, b)
    ratio = select(low.equals(high), select(high.equals(0.0), high, 1.0), low / high)
    angle = _arc_tangent_to_one(ratio)
    angle = select(steep, _HALF_PI - angle, angle)
    angle = select(x.bits() < 0, math.pi - angle, angle)
    return select(is_nan(x) | is_nan(y), x + y, angle.with_sign_of(y))


def _arc_tangent_to_one(x: Scalar) -> Scalar:
    z = x * x
    return x + x * z * polynomial(z, _ATAN)


def _by_quadrant(quadrant: Scalar, s: Scalar, c: Scalar) -> Scalar:
    value = select((quadrant & 1).differs(0), c, s)
    return select((quadrant & 2).differs(0), -value, value)


def _sine_and_cosine(x: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """The quadrant of x, and the sine and cosine of its distance from the quadrant's middle."""
    small = x.magnitude() < 131072.0
    type_ = INT32.compute(x.body.module)
    chosen = x.body.choose(small.id, lambda: _ids(_reduced(x)), lambda: _ids(_reduced_far(x)), type_)
    quadrant, rest = (Scalar(x.body, INT32, i) for i in chosen)
    r = rest.bitcast(FLOAT32)
    z = r * r
    return quadrant, r + r * z * polynomial(z, _SIN), z * z * polynomial(z, _COS) - z * 0.5 + 1.0


def _ids(values: Sequence[Scalar]) -> list[int]:
    return [value.id for value in values]


def _parts_of_half_pi(bits: int, count: int) -> tuple[float, ...]:
    """π/2 as a sum of parts of `bits` bits and the remainder, computed in float64."""
    parts, rest = [], _HALF_PI
    for index in range(count):
        unit = 2.0 ** (1 - bits * (index + 1))
        parts.append(math.floor(rest / unit) * unit)
        rest -= parts[-1]
    return (*parts, rest)


def _reduced(x: Scalar) -> tuple[Scalar, Scalar]:
    """The quadrant and remainder for |x| < 2^17. Products of the quadrant (17 bits) with parts of 7 bits are exact."""
    n = (x * (1 / _HALF_PI)).glsl(Glsl.ROUND_EVEN)
    rest = x
    for part in _parts_of_half_pi(7, 4):
        rest = rest - n * part
    return n.to(INT32), rest.bits()


_TWO_BY_PI = (0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB)
"""2/π: its first 224 bits, after 32 zeros."""


def _reduced_far(x: Scalar) -> tuple[Scalar, Scalar]:
    """The quadrant and remainder for any larger x, from the relevant bits of 2/π (Payne and Hanek's method)."""
    bits = (x.bits() & 0x7FFFFFFF).bitcast(UINT32)
    offset = (bits >> 23) - (127 - 7)
    word, shift = offset >> 5, offset & 31
    words = [_from_table(word, first) for first in range(4)]
    spread = [(a << shift) | ((b >> 1) >> (31 - shift)) for a, b in pairwise(words)]
    mantissa = (bits & 0x007FFFFF) | 0x00800000
    low1, high1 = _wide_product(mantissa, spread[1])
    high2 = _wide_product(mantissa, spread[2])[1]
    middle = low1 + high2
    carry = select(middle < low1, middle.constant(1), 0)
    top = mantissa * spread[0] + high1 + carry
    quadrant = (top >> 30) + ((top >> 29) & 1)
    fraction = ((top << 2) | (middle >> 30)).bitcast(INT32).to(FLOAT32) * 2.0**-32
    fraction = fraction + (middle << 2).to(FLOAT32) * 2.0**-64
    rest = fraction * _HALF_PI
    negative = x.bits() < 0
    rest = select(negative, -rest, rest)
    quadrant = select(negative, -quadrant.bitcast(INT32), quadrant.bitcast(INT32))
    return quadrant, select(x.below_infinity(), rest, x.constant(math.nan)).bits()


def _from_table(word: Scalar, first: int) -> Scalar:
    """Word `word + first` of 2/π."""
    value = word.constant(_TWO_BY_PI[first])
    for index in range(1, len(_TWO_BY_PI) - first):
        value = select(word >= index, word.constant(_TWO_BY_PI[first + index]), value)
    return value


def _wide_product(a: Scalar, b: Scalar) -> tuple[Scalar, Scalar]:
    """The low and the high word of the product of two uint32, from products of 16-bit halves."""
    a_low, a_high, b_low, b_high = a & 0xFFFF, a >> 16, b & 0xFFFF, b >> 16
    cross = a_high * b_low + ((a_low * b_low) >> 16)
    other = a_low * b_high + (cross & 0xFFFF)
    return a * b, a_high * b_high + (cross >> 16) + (other >> 16)

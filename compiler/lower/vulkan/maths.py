"""Functions of real numbers in float32, made of exactly rounded operations.

GLSL.std.450 promises too little (a sine within 2^-11, an arc tangent within 4096 units in the last place) and leaves
NaN undefined, so all but square roots and rounding is computed here. The polynomials were fitted for this module by
iteratively reweighted least squares on relative error; errors below are in units in the last place of float32 (ulp,
6e-8 relative), measured against float64 over each whole domain, on a device that rounds as IEEE 754 says. Devices may
flush denormal numbers. float16 is computed in float32; float64 has no such functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from heterocc.compiler.lower.vulkan.dtypes import FLOAT32, INT32, UINT32
from heterocc.compiler.lower.vulkan.scalar import Scalar, select
from heterocc.compiler.lower.vulkan.spirv import Glsl

_LN2 = math.log(2)
_LN2_HIGH = 0.693359375
"""ln 2 to 9 bits, so that products with exponents are exact; `_LN2_LOW` is the rest."""
_LN2_LOW = _LN2 - _LN2_HIGH
_HALF_PI = math.pi / 2

_EXP = (0.5, 0.1666651964, 0.04166839272, 0.008368755691, 0.001381451497)
_LOG = (
    *(0.3333331347, -0.2500000894, 0.2000211924, -0.1666799635, 0.1421955079),
    *(-0.1240559146, 0.1188817471, -0.1167564094, 0.06746601313),
)
_SIN = (-0.1666666717, 0.008333329111, -0.000198393187, 2.718162705e-06)
_COS = (0.04166664556, -0.001388730365, 2.443166704e-05)
_ATAN = (
    *(-0.3333329856, 0.1999854892, -0.1426424086, 0.1095218137, -0.0840343684),
    *(0.05795735866, -0.03117761388, 0.01091448124, -0.001793593867),
)
_ASIN = (0.1666665971, 0.07500503957, 0.04451695457, 0.03180771694, 0.014438604, 0.03751645237)
_SINH = (0.1666666717, 0.0083333496, 0.0001983615948, 2.816951337e-06)
_TANH = (-0.3333331645, 0.1333258599, -0.05385230854, 0.0210716743, -0.006274233107)
_ERF = (0.1283791065, -0.3761262596, 0.1128358543, -0.02685381100, 0.005188327748, -0.0008010192542, 7.853857824e-05)
_ERFC = (
    *(-0.0001884677913, 1.129580259, 0.633216381, 0.108422101),
    *(-0.02521034144, 0.004205286037, -0.0004414729192, 2.169763866e-05),
)
"""-ln(erfc x) on [1, 4]."""


def exp(x: Scalar) -> Scalar:
    """e^x, within 2 ulp."""
    bounded = _clamped(x, -104.0, 89.0)
    n = (bounded * (1 / _LN2)).glsl(Glsl.ROUND_EVEN)
    r = (bounded - n * _LN2_HIGH) - n * _LN2_LOW
    return _scaled(_exp_near_zero(r), n.to(INT32))


def exp2(x: Scalar) -> Scalar:
    """2^x, within 2 ulp."""
    bounded = _clamped(x, -151.0, 129.0)
    n = bounded.glsl(Glsl.ROUND_EVEN)
    return _scaled(_exp_near_zero((bounded - n) * _LN2), n.to(INT32))


def exp10(x: Scalar) -> Scalar:
    """10^x, within 3 ulp."""
    bounded = _clamped(x, -46.0, 39.0)
    n = (bounded * math.log2(10)).glsl(Glsl.ROUND_EVEN)
    high = 0.301025390625  # log10(2) to 12 bits
    r = (bounded - n * high) - n * (math.log10(2) - high)
    return _scaled(_exp_near_zero(r * math.log(10)), n.to(INT32))


def log(x: Scalar) -> Scalar:
    """ln x, within 2 ulp."""
    e, f = _split_exponent(x)
    half = f * f * 0.5
    small = _polynomial(f, _LOG) * f * f * f + e * _LN2_LOW
    return _log_cases(x, ((small - half) + f) + e * _LN2_HIGH)


def log2(x: Scalar) -> Scalar:
    """The logarithm to base 2, within 3 ulp; exact for powers of two."""
    e, f = _split_exponent(x)
    half = f * f * 0.5
    small = _polynomial(f, _LOG) * f * f * f - half
    # 1/ln 2 = 1 + 0.4427: the 1 multiplies f without an error.
    rest = small + (small + f) * (1 / _LN2 - 1)
    return _log_cases(x, (rest + f) + e)


def log10(x: Scalar) -> Scalar:
    """The logarithm to base 10, within 3 ulp."""
    return log(x) * math.log10(math.e)


def log1p(x: Scalar) -> Scalar:
    """ln(1 + x), within 4 ulp."""
    u = x + 1.0
    corrected = log(u) * (x / (u - 1.0))
    return select(u.equals(1.0) | x.equals(math.inf), x, corrected)


def tanh(x: Scalar) -> Scalar:
    """The hyperbolic tangent, within 3 ulp."""
    a = magnitude(x)
    z = a * a
    near = a + a * z * _polynomial(z, _TANH)
    far = 1.0 - 2.0 / (exp(a + a) + 1.0)
    return copysign(select(a < 0.55, near, far), x)


def sinh(x: Scalar) -> Scalar:
    """The hyperbolic sine, within 5 ulp."""
    a = magnitude(x)
    z = a * a
    root = exp(a * 0.5)
    far = (root * 0.5) * root - 0.5 / (root * root)
    return copysign(select(a < 1.0, a + a * z * _polynomial(z, _SINH), far), x)


def cosh(x: Scalar) -> Scalar:
    """The hyperbolic cosine, within 5 ulp."""
    root = exp(magnitude(x) * 0.5)
    return (root * 0.5) * root + 0.5 / (root * root)


def asinh(x: Scalar) -> Scalar:
    """The inverse hyperbolic sine, within 5 ulp."""
    a = magnitude(x)
    z = a * a
    near = log1p(a + z / (sqrt(z + 1.0) + 1.0))
    return copysign(select(a > 1e9, log(a) + _LN2, near), x)


def acosh(x: Scalar) -> Scalar:
    """The inverse hyperbolic cosine, within 5 ulp; NaN below 1."""
    t = x - 1.0
    near = select(x < 1.0, x.constant(math.nan), log1p(t + sqrt(t + t + t * t)))
    return select(x > 1e9, log(x) + _LN2, near)


def atanh(x: Scalar) -> Scalar:
    """The inverse hyperbolic tangent, within 6 ulp."""
    a = magnitude(x)
    return copysign(log1p((a + a) / (1.0 - a)) * 0.5, x)


def erf(x: Scalar) -> Scalar:
    """The error function, within 3 ulp."""
    a = magnitude(x)
    z = a * a
    near = a + a * _polynomial(z, _ERF)
    far = 1.0 - exp(-_polynomial(_clamped(a, 1.0, 4.0), _ERFC))
    return copysign(select(a < 1.0, near, far), x)


def sin(x: Scalar) -> Scalar:
    """The sine, within 3 ulp where it is over 0.001, else within 1e-10; for any argument."""
    quadrant, s, c = _sine_and_cosine(x)
    return _by_quadrant(quadrant, s, c)


def cos(x: Scalar) -> Scalar:
    """The cosine; as the sine."""
    quadrant, s, c = _sine_and_cosine(x)
    return _by_quadrant(quadrant + 1, s, c)


def tan(x: Scalar) -> Scalar:
    """The tangent, within 5 ulp where it is between 0.001 and 1000."""
    quadrant, s, c = _sine_and_cosine(x)
    odd = (quadrant & 1).differs(0)
    return select(odd, -c, s) / select(odd, s, c)


def asin(x: Scalar) -> Scalar:
    """The arc sine, within 3 ulp; NaN outside [-1, 1]."""
    a = magnitude(x)
    far = _HALF_PI - 2.0 * _arc_sine_of_root((1.0 - a) * 0.5)
    z = a * a
    return copysign(select(a > 0.5, far, a + a * z * _polynomial(z, _ASIN)), x)


def acos(x: Scalar) -> Scalar:
    """The arc cosine, within 3 ulp; NaN outside [-1, 1]."""
    a = magnitude(x)
    twice = 2.0 * _arc_sine_of_root((1.0 - a) * 0.5)
    far = select(x < 0.0, math.pi - twice, twice)
    z = x * x
    return select(a > 0.5, far, _HALF_PI - (x + x * z * _polynomial(z, _ASIN)))


def atan(x: Scalar) -> Scalar:
    """The arc tangent, within 3 ulp."""
    a = magnitude(x)
    steep = a > 1.0
    flat = _arc_tangent_to_one(select(steep, 1.0 / a, a))
    return copysign(select(steep, _HALF_PI - flat, flat), x)


def atan2(y: Scalar, x: Scalar) -> Scalar:
    """The angle of the point (x, y), within 4 ulp; zeros and infinities as in C."""
    a, b = magnitude(y), magnitude(x)
    steep = a > b
    low, high = select(steep, b, a), select(steep, a, b)
    ratio = select(low.equals(high), select(high.equals(0.0), high, 1.0), low / high)
    angle = _arc_tangent_to_one(ratio)
    angle = select(steep, _HALF_PI - angle, angle)
    angle = select(_bits(x) < 0, math.pi - angle, angle)
    return select(is_nan(x) | is_nan(y), x + y, copysign(angle, y))


def power(x: Scalar, y: Scalar) -> Scalar:
    """x^y with C's cases for zeros, infinities, NaN and negative x, within 8 ulp; small constant y by products."""
    if y.known is not None:
        direct = _constant_power(x, float(y.known))
        if direct is not None:
            return direct
    a, steps = magnitude(x), magnitude(y)
    whole = y.glsl(Glsl.TRUNC).equals(y)
    half = y * 0.5
    odd = whole & half.glsl(Glsl.TRUNC).differs(half) & ~steps.equals(math.inf)
    rising = y > 0.0
    size = _power_of_positive(a, y)
    extreme = a.equals(0.0) | a.equals(math.inf)
    size = select(extreme, select(rising.equals(a.equals(math.inf)), x.constant(math.inf), 0.0), size)
    beyond = select(rising.equals(a > 1.0), x.constant(math.inf), 0.0)
    size = select(steps.equals(math.inf), select(a.equals(1.0), x.constant(1.0), beyond), size)
    size = select((_bits(x) < 0) & odd, -size, size)
    undefined = (x < 0.0) & ~whole & a.differs(math.inf)
    size = select(undefined, x.constant(math.nan), size)
    size = select(is_nan(x) | is_nan(y), x + y, size)
    return select(y.equals(0.0) | x.equals(1.0), x.constant(1.0), size)


def remainder(x: Scalar, y: Scalar) -> Scalar:
    """C's fmod, exact: the remainder of the quotient rounded towards zero. Of float32."""
    return _exact_remainder(x, y)


def hypot(x: Scalar, y: Scalar) -> Scalar:
    """The length of (x, y), within 4 ulp, without overflow on the way."""
    a, b = magnitude(x), magnitude(y)
    high, low = select(a > b, a, b), select(a > b, b, a)
    ratio = low / high
    length = select(high.equals(0.0), high, high * sqrt(ratio * ratio + 1.0))
    length = select(is_nan(x) | is_nan(y), x + y, length)
    return select(a.equals(math.inf) | b.equals(math.inf), x.constant(math.inf), length)


def sqrt(x: Scalar) -> Scalar:
    """The square root as precise as the device has it (3 ulp); NaN for negative numbers. Any float type."""
    return select(x < 0.0, x.constant(math.nan), x.glsl(Glsl.SQRT))


def rsqrt(x: Scalar) -> Scalar:
    """1 / sqrt(x). Any float type."""
    return 1.0 / sqrt(x)


def round_away(x: Scalar) -> Scalar:
    """The nearest integer, of two the one further from zero. Any float type."""
    whole = x.glsl(Glsl.TRUNC)
    rest = (x - whole).glsl(Glsl.F_ABS)
    step = select(x < 0.0, x.constant(-1.0), 1.0)
    return select(rest >= 0.5, whole + step, whole)


def scaled_by_power(x: Scalar, n: Scalar) -> Scalar:
    """x · 2^n, C's ldexp."""
    bounded = select(n < -300, n.constant(-300), select(n > 300, n.constant(300), n))
    first = bounded / 2
    return _scaled(_scaled(x, first), bounded - first)


def magnitude(x: Scalar) -> Scalar:
    """|x|."""
    return x.glsl(Glsl.F_ABS)


def copysign(size: Scalar, sign: Scalar) -> Scalar:
    """A value of float32 with the sign of another."""
    return ((_bits(size) & 0x7FFFFFFF) | (_bits(sign) & -0x80000000)).bitcast(FLOAT32)


def is_nan(x: Scalar) -> Scalar:
    """Whether a float32 is NaN, from its bits: drivers may assume that comparisons meet none."""
    return (_bits(x) & 0x7FFFFFFF) > 0x7F800000


def is_infinite(x: Scalar) -> Scalar:
    """Whether a float32 is an infinity."""
    return (_bits(x) & 0x7FFFFFFF).equals(0x7F800000)


def is_finite(x: Scalar) -> Scalar:
    """Whether a float32 is neither."""
    return (_bits(x) & 0x7FFFFFFF) < 0x7F800000


def _bits(x: Scalar) -> Scalar:
    return x.bitcast(INT32)


def _polynomial(x: Scalar, coefficients: Sequence[float]) -> Scalar:
    """Horner's rule, lowest coefficient first."""
    result = x.constant(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = result * x + coefficient
    return result


def _clamped(x: Scalar, low: float, high: float) -> Scalar:
    """Within bounds; NaN stays."""
    return select(x < low, x.constant(low), select(x > high, x.constant(high), x))


def _exp_near_zero(r: Scalar) -> Scalar:
    """e^r for |r| ≤ ln(2)/2."""
    return (_polynomial(r, _EXP) * (r * r) + r) + 1.0


def _scaled(x: Scalar, n: Scalar) -> Scalar:
    """x · 2^n for |n| ≤ 252: in two steps, since 2^n alone may overflow."""
    first = n >> 1
    return x * _power_of_two(first) * _power_of_two(n - first)


def _power_of_two(n: Scalar) -> Scalar:
    return ((n + 127) << 23).bitcast(FLOAT32)


def _split_exponent(x: Scalar) -> tuple[Scalar, Scalar]:
    """x as 2^e · (1 + f) with 1 + f in [√½, √2); e as a float."""
    tiny = x < 2.0**-126
    bits = _bits(select(tiny, x * 2.0**23, x)) + (0x3F800000 - 0x3F3504F3)
    e = (bits >> 23) - select(tiny, bits.constant(127 + 23), 127)
    f = ((bits & 0x007FFFFF) + 0x3F3504F3).bitcast(FLOAT32) - 1.0
    return e.to(FLOAT32), f


def _log_cases(x: Scalar, value: Scalar) -> Scalar:
    value = select(x.equals(0.0), x.constant(-math.inf), value)
    value = select(x.equals(math.inf) | is_nan(x), x, value)
    return select(x < 0.0, x.constant(math.nan), value)


def _arc_sine_of_root(z: Scalar) -> Scalar:
    """asin(√z) for z ≤ 1/4; NaN for negative z."""
    root = sqrt(z)
    return root + root * z * _polynomial(z, _ASIN)


def _arc_tangent_to_one(x: Scalar) -> Scalar:
    z = x * x
    return x + x * z * _polynomial(z, _ATAN)


def _by_quadrant(quadrant: Scalar, s: Scalar, c: Scalar) -> Scalar:
    value = select((quadrant & 1).differs(0), c, s)
    return select((quadrant & 2).differs(0), -value, value)


def _sine_and_cosine(x: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """The quadrant of x, and sine and cosine of its distance from the quadrant's middle."""
    small = magnitude(x) < 131072.0
    type_ = INT32.compute(x.body.module)
    chosen = x.body.choose(small.id, lambda: _ids(_reduced(x)), lambda: _ids(_reduced_far(x)), type_)
    quadrant, rest = (Scalar(x.body, INT32, i) for i in chosen)
    r = rest.bitcast(FLOAT32)
    z = r * r
    return quadrant, r + r * z * _polynomial(z, _SIN), z * z * _polynomial(z, _COS) - z * 0.5 + 1.0


def _ids(values: Sequence[Scalar]) -> list[int]:
    return [value.id for value in values]


def _parts_of_half_pi(bits: int, count: int) -> tuple[float, ...]:
    """π/2 as a sum of parts of few bits, and what is left in float64."""
    parts, rest = [], _HALF_PI
    for index in range(count):
        unit = 2.0 ** (1 - bits * (index + 1))
        parts.append(math.floor(rest / unit) * unit)
        rest -= parts[-1]
    return (*parts, rest)


def _reduced(x: Scalar) -> tuple[Scalar, Scalar]:
    """Quadrant and rest for |x| < 2^17: products of the quadrant, of 17 bits, with parts of 7 bits are exact."""
    n = (x * (1 / _HALF_PI)).glsl(Glsl.ROUND_EVEN)
    rest = x
    for part in _parts_of_half_pi(7, 4):
        rest = rest - n * part
    return n.to(INT32), _bits(rest)


_TWO_BY_PI = (0, 0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB)
"""2/π: its first 224 bits, after 32 zeros."""


def _reduced_far(x: Scalar) -> tuple[Scalar, Scalar]:
    """The same for any larger x, from the bits of 2/π that its quotient depends on (Payne and Hanek's method)."""
    bits = (_bits(x) & 0x7FFFFFFF).bitcast(UINT32)
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
    negative = _bits(x) < 0
    rest = select(negative, -rest, rest)
    quadrant = select(negative, -quadrant.bitcast(INT32), quadrant.bitcast(INT32))
    return quadrant, _bits(select(is_finite(x), rest, x.constant(math.nan)))


def _from_table(word: Scalar, first: int) -> Scalar:
    """Word `word + first` of 2/π."""
    value = word.constant(_TWO_BY_PI[first])
    for index in range(1, len(_TWO_BY_PI) - first):
        value = select(word >= index, word.constant(_TWO_BY_PI[first + index]), value)
    return value


def _wide_product(a: Scalar, b: Scalar) -> tuple[Scalar, Scalar]:
    """The low and the high word of a product of two uint32, from products of halves."""
    a_low, a_high, b_low, b_high = a & 0xFFFF, a >> 16, b & 0xFFFF, b >> 16
    cross = a_high * b_low + ((a_low * b_low) >> 16)
    other = a_low * b_high + (cross & 0xFFFF)
    return a * b, a_high * b_high + (cross >> 16) + (other >> 16)


def _constant_power(x: Scalar, y: float) -> Scalar | None:
    """The power for exponents that need no logarithm."""
    if y == 0.0:
        return x.constant(1.0)
    if y == 1.0:
        return x
    if y == -1.0:
        return 1.0 / x
    if y in (2.0, 3.0, 4.0):
        square = x * x
        return {2.0: lambda: square, 3.0: lambda: square * x, 4.0: lambda: square * square}[y]()
    return None


def _power_of_positive(a: Scalar, y: Scalar) -> Scalar:
    """a^y for finite a > 0: the logarithm to base 2 in two floats, times y in two floats."""
    e, f = _split_exponent(a)
    square, square_rest = _exact_product(f, f)
    high = f - square * 0.5
    low = ((f - high) - square * 0.5) - square_rest * 0.5 + _polynomial(f, _LOG) * f * square
    log2e = 1 / _LN2
    log2e_high = float.fromhex("0x1.715476p+0")
    scaled, scaled_rest = _exact_product(high, a.constant(log2e_high))
    scaled_rest = scaled_rest + (high * (log2e - log2e_high) + low * log2e_high)
    total = e + scaled
    # Two-sum: the exponent need not be the larger one, it may be zero.
    virtual = total - e
    total_rest = ((e - (total - virtual)) + (scaled - virtual)) + scaled_rest
    whole = total + total_rest
    total, total_rest = whole, (total - whole) + total_rest
    product, product_rest = _exact_product(total, y)
    product_rest = product_rest + total_rest * y
    n = _clamped(product, -200.0, 200.0).glsl(Glsl.ROUND_EVEN)
    value = _scaled(_exp_near_zero(((product - n) + product_rest) * _LN2), n.to(INT32))
    value = select(product > 129.0, a.constant(math.inf), value)
    return select(product < -152.0, a.constant(0.0), value)


def _exact_product(a: Scalar, b: Scalar) -> tuple[Scalar, Scalar]:
    """a · b rounded, and what rounding took away; from halves of the factors (Dekker's method)."""
    a_high, b_high = _upper_half(a), _upper_half(b)
    a_low, b_low = a - a_high, b - b_high
    product = a * b
    rest = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, rest


def _upper_half(x: Scalar) -> Scalar:
    return (_bits(x) & -0x1000).bitcast(FLOAT32)


def _exact_remainder(x: Scalar, y: Scalar) -> Scalar:
    """Subtract the divisor times powers of two, largest first: each difference is exact."""
    divisor = magnitude(y)
    usable = is_finite(x) & (divisor >= 2.0**-126) & is_finite(y)
    left = x.body.cell(FLOAT32.compute(x.body.module))
    left.store(magnitude(x).id)

    def current() -> Scalar:
        return Scalar(x.body, FLOAT32, left.load())

    def subtract() -> None:
        value = current()
        shift = ((_bits(value) >> 23) - (_bits(divisor) >> 23)) << 23
        multiple = (_bits(divisor) + shift).bitcast(FLOAT32)
        multiple = select(multiple > value, multiple * 0.5, multiple)
        left.store((value - multiple).id)

    x.body.repeat(lambda: (usable & (current() >= divisor)).id, subtract)
    result = copysign(current(), x)
    broken = ~is_finite(x) | divisor.equals(0.0) | is_nan(y)
    return select(broken, x.constant(math.nan), result)

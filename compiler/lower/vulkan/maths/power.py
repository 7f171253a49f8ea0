"""Powers, hypotenuses and remainders, whose intermediate results need more precision than float32."""

from __future__ import annotations

import math

from heterocc.compiler.lower.kernels.approximations import LOG
from heterocc.compiler.lower.kernels.functions.number import polynomial
from heterocc.compiler.lower.vulkan.dtypes import FLOAT32, INT32
from heterocc.compiler.lower.vulkan.maths.basic import is_nan, times_power_of_two
from heterocc.compiler.lower.vulkan.maths.exponential import LN2, exp_near_zero, split_exponent
from heterocc.compiler.lower.vulkan.maths.quotients import exact_product
from heterocc.compiler.lower.vulkan.scalar import Scalar, select
from heterocc.compiler.lower.vulkan.spirv import Glsl


def power(x: Scalar, y: Scalar) -> Scalar:
    """x^y within 8 ulp, with C's special cases for zeros, infinities, NaN and negative x.

    Small constant exponents are computed by products.
    """
    if y.known is not None:
        direct = _constant_power(x, float(y.known))
        if direct is not None:
            return direct
    a, steps = x.magnitude(), y.magnitude()
    whole = y.glsl(Glsl.TRUNC).equals(y)
    half = y * 0.5
    odd = whole & half.glsl(Glsl.TRUNC).differs(half) & ~steps.equals(math.inf)
    rising = y > 0.0
    size = _power_of_positive(a, y)
    extreme = a.equals(0.0) | a.equals(math.inf)
    size = select(extreme, select(rising.equals(a.equals(math.inf)), x.constant(math.inf), 0.0), size)
    beyond = select(rising.equals(a > 1.0), x.constant(math.inf), 0.0)
    size = select(steps.equals(math.inf), select(a.equals(1.0), x.constant(1.0), beyond), size)
    size = select((x.bits() < 0) & odd, -size, size)
    undefined = (x < 0.0) & ~whole & a.differs(math.inf)
    size = select(undefined, x.constant(math.nan), size)
    size = select(is_nan(x) | is_nan(y), x + y, size)
    return select(y.equals(0.0) | x.equals(1.0), x.constant(1.0), size)


def remainder(x: Scalar, y: Scalar) -> Scalar:
    """The exact remainder of float32 division with the quotient rounded towards zero, C's fmod."""
    return _exact_remainder(x, y)


def hypot(x: Scalar, y: Scalar) -> Scalar:
    """The length of (x, y), within 4 ulp, without overflow of intermediate results."""
    a, b = x.magnitude(), y.magnitude()
    high, low = select(a > b, a, b), select(a > b, b, a)
    ratio = low / high
    length = select(high.equals(0.0), high, high * (ratio * ratio + 1.0).sqrt())
    length = select(is_nan(x) | is_nan(y), x + y, length)
    return select(a.equals(math.inf) | b.equals(math.inf), x.constant(math.inf), length)


def _constant_power(x: Scalar, y: float) -> Scalar | None:
    """The power for exponents that do not need a logarithm, else None."""
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
    e, f = split_exponent(a)
    square, square_rest = exact_product(f, f)
    high = f - square * 0.5
    low = ((f - high) - square * 0.5) - square_rest * 0.5 + polynomial(f, LOG) * f * square
    log2e = 1 / LN2
    log2e_high = float.fromhex("0x1.715476p+0")
    scaled, scaled_rest = exact_product(high, a.constant(log2e_high))
    scaled_rest = scaled_rest + (high * (log2e - log2e_high) + low * log2e_high)
    total = e + scaled
    # The full two-sum, as the exponent may be zero and so the smaller operand.
    virtual = total - e
    total_rest = ((e - (total - virtual)) + (scaled - virtual)) + scaled_rest
    whole = total + total_rest
    total, total_rest = whole, (total - whole) + total_rest
    product, product_rest = exact_product(total, y)
    product_rest = product_rest + total_rest * y
    n = product.at_least(-200.0).at_most(200.0).glsl(Glsl.ROUND_EVEN)
    value = times_power_of_two(exp_near_zero(((product - n) + product_rest) * LN2), n.to(INT32))
    value = select(product > 129.0, a.constant(math.inf), value)
    return select(product < -152.0, a.constant(0.0), value)


def _exact_remainder(x: Scalar, y: Scalar) -> Scalar:
    """Subtract the divisor times powers of two, largest first. Each difference is exact."""
    divisor = y.magnitude()
    usable = x.below_infinity() & (divisor >= 2.0**-126) & y.below_infinity()
    left = x.body.cell(FLOAT32.compute(x.body.module))
    left.store(x.magnitude().id)

    def current() -> Scalar:
        return Scalar(x.body, FLOAT32, left.load())

    def subtract() -> None:
        value = current()
        shift = ((value.bits() >> 23) - (divisor.bits() >> 23)) << 23
        multiple = (divisor.bits() + shift).bitcast(FLOAT32)
        multiple = select(multiple > value, multiple * 0.5, multiple)
        left.store((value - multiple).id)

    x.body.repeat(lambda: (usable & (current() >= divisor)).id, subtract)
    result = current().with_sign_of(x)
    broken = ~x.below_infinity() | divisor.equals(0.0) | is_nan(y)
    return select(broken, x.constant(math.nan), result)

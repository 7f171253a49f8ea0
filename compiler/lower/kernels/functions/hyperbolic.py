"""Hyperbolic functions of float32."""

from __future__ import annotations

import math

from heterocc.compiler.lower.kernels.approximations import EXP, LN2_HIGH, LN2_LOW, SINH
from heterocc.compiler.lower.kernels.functions.exponential import scaled_exp
from heterocc.compiler.lower.kernels.functions.number import N, polynomial, quartic, select


def tanh(x: N) -> N:
    """The hyperbolic tangent, within 2 ulp: h / (h + 1) for h = (e^2|x| - 1) / 2, which is accurate for small x."""
    size = x.magnitude().at_most(9.2)
    # 2|x| = n · ln 2 + 2r, and e^2r = 1 + 2s: no product by 2 is needed.
    n, bits = size.rounded_to_integer(2 * math.log2(math.e), 127)
    r = n.fma(-LN2_LOW / 2, n.fma(-LN2_HIGH / 2, size))
    s = quartic(r, [c * 2.0 ** (k + 1) for k, c in enumerate(EXP)]).fma(r * r, r)
    power = (bits << 23).float_of_bits()
    h = s.fma(power, power.fma(0.5, -0.5))
    quotient = h / (h + 1.0)
    # quotient = h · (1 - quotient) is free of the rounding errors of h + 1 and of the division.
    better = (-h).fma(quotient, h)
    return select(h < 0.5, better, quotient).with_sign_of(x)


def sinh(x: N) -> N:
    """The hyperbolic sine, within 2 ulp."""
    size = x.magnitude()
    square = size * size
    near = polynomial(square, SINH).fma(square * size, size)
    half_power = scaled_exp(size.at_most(90.0), -1)
    return select(size < 1.0, near, half_power - 0.25 / half_power).with_sign_of(x)


def cosh(x: N) -> N:
    """The hyperbolic cosine, within 2 ulp."""
    half_power = scaled_exp(x.magnitude().at_most(90.0), -1)
    return half_power + 0.25 / half_power

"""Hyperbolic functions and the logistic function of float32."""

from __future__ import annotations

import math

from heterocc.compiler.lower.cpu.maths.exponential import LEAST_NORMAL, ROUND, exp_normal, exp_to, scaled_exp
from heterocc.compiler.lower.cpu.maths.lanes import Value, polynomial, quartic, select
from heterocc.compiler.lower.cpu.maths.tables import by_interval
from heterocc.compiler.lower.kernels.approximations import EXP, LN2_HIGH, LN2_LOW, SINH, TANH_STEP, TANH_TABLE


def tanh(x: Value) -> Value:
    """The hyperbolic tangent, within 2 ulp: h / (h + 1) for h = (e^2|x| - 1) / 2, which is accurate for small x."""
    if x.lanes.whole_registers:
        return by_interval(x, TANH_TABLE, TANH_STEP)
    size = x.magnitude().at_most(9.2)
    # 2|x| = n · ln 2 + 2r, and e^2r = 1 + 2s: no product by 2 is needed.
    shifted = size.fma(2 * math.log2(math.e), ROUND + 127)
    n = shifted - (ROUND + 127)
    r = n.fma(-LN2_LOW / 2, n.fma(-LN2_HIGH / 2, size))
    s = quartic(r, [c * 2.0 ** (k + 1) for k, c in enumerate(EXP)]).fma(r * r, r)
    power = (shifted.bits() << 23).float_of_bits()
    h = s.fma(power, power.fma(0.5, -0.5))
    quotient = h / (h + 1.0)
    # quotient = h · (1 - quotient) is free of the rounding errors of h + 1 and of the division.
    better = (-h).fma(quotient, h)
    return select(h < 0.5, better, quotient).with_sign_of(x)


def sigmoid(x: Value) -> Value:
    """1 / (1 + e^-x), within 2 ulp.

    With AVX-512 by e^-|x|, which does not overflow and is accurate for small results. Without it, results of less than
    5e-39 may be 0.
    """
    if not x.lanes.whole_registers:
        return 1.0 / (_power_of_negated(x) + 1.0)
    z = exp_to(-x.magnitude(), None)
    top = select(x < 0.0, z, 1.0)
    quotient = top / (z + 1.0)
    return (-z).fma(quotient, top)  # free of the division's rounding error


def silu(x: Value) -> Value:
    """x / (1 + e^-x), within 3 ulp where x > -88; below, where the result is less than 1e-36, it may be 0."""
    if not x.lanes.whole_registers:
        return x / (_power_of_negated(x) + 1.0)
    return x / (scaled_exp((-x).at_least(-104.0).at_most(89.0), 0) + 1.0)


def _power_of_negated(x: Value) -> Value:
    """e^-x where 1 is added to it, infinity for x < -88.4.

    There n is 128, and its bits as an exponent are infinity; a power below 2^-126 would not change 1.
    """
    return exp_normal((-x).at_least(LEAST_NORMAL).at_most(89.0))


def tanh_softplus(x: Value) -> Value:
    """tanh(ln(1 + e^x)), within 4 ulp: n / (n + 2) for n = e^x · (e^x + 2); 1 from 20."""
    power = exp_to(x, 20.0)
    n = power * (power + 2.0)
    return n / (n + 2.0)


def sinh(x: Value) -> Value:
    """The hyperbolic sine, within 2 ulp."""
    size = x.magnitude()
    square = size * size
    near = polynomial(square, SINH).fma(square * size, size)
    half_power = scaled_exp(size.at_most(90.0), -1)
    return select(size < 1.0, near, half_power - 0.25 / half_power).with_sign_of(x)


def cosh(x: Value) -> Value:
    """The hyperbolic cosine, within 2 ulp."""
    half_power = scaled_exp(x.magnitude().at_most(90.0), -1)
    return half_power + 0.25 / half_power

"""Hyperbolic functions and the logistic function of float32."""

from __future__ import annotations

from heterocc.compiler.lower.approximations import EXP, SINH, TANH_STEP, TANH_TABLE
from heterocc.compiler.lower.cpu.maths.exponential import exp_to, reduced, scaled_exp
from heterocc.compiler.lower.cpu.maths.lanes import Value, polynomial, select
from heterocc.compiler.lower.cpu.maths.tables import by_interval


def tanh(x: Value) -> Value:
    """The hyperbolic tangent, within 2 ulp: t / (t + 2) for t = e^2|x| - 1, which is accurate for small x."""
    if x.lanes.whole_registers:
        return by_interval(x, TANH_TABLE, TANH_STEP)
    size = x.magnitude().at_most(9.2)
    bits, _, r = reduced(size + size, 127)
    power = (bits << 23).float_of_bits()
    t = polynomial(r, EXP).fma(r * r, r).fma(power, power - 1.0)
    quotient = t / (t + 2.0)
    # quotient = t · (1 - quotient) / 2 is free of the rounding errors of t + 2 and of the division.
    better = (-t).fma(quotient, t) * 0.5
    return select(t < 1.0, better, quotient).with_sign_of(x)


def sigmoid(x: Value) -> Value:
    """1 / (1 + e^-x), within 2 ulp: by e^-|x|, which does not overflow and is accurate for small results."""
    z = exp_to(-x.magnitude(), None)
    top = select(x < 0.0, z, 1.0)
    quotient = top / (z + 1.0)
    return (-z).fma(quotient, top)  # free of the division's rounding error


def silu(x: Value) -> Value:
    """x / (1 + e^-x), within 3 ulp where x > -88; below, where the result is less than 1e-36, it may be 0."""
    return x / (scaled_exp((-x).at_least(-104.0).at_most(89.0), 0) + 1.0)


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

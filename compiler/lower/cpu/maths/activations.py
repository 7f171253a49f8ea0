"""Functions that networks use as activations, of float32: other ones with AVX-512 than without."""

from __future__ import annotations

from heterocc.compiler.lower.cpu.maths.avx512 import by_interval
from heterocc.compiler.lower.kernels.approximations import ERF_STEP, ERF_TABLE, TANH_STEP, TANH_TABLE
from heterocc.compiler.lower.kernels.functions import error_function, hyperbolic
from heterocc.compiler.lower.kernels.functions.exponential import LEAST_NORMAL, exp_normal, exp_to, scaled_exp
from heterocc.compiler.lower.kernels.functions.lanes import Value
from heterocc.compiler.lower.kernels.functions.number import select


def erf(x: Value) -> Value:
    """The error function, within 2 ulp."""
    return error_function.erf(x) if x.lanes.scaled is None else by_interval(x, ERF_TABLE, ERF_STEP)


def tanh(x: Value) -> Value:
    """The hyperbolic tangent, within 2 ulp."""
    return hyperbolic.tanh(x) if x.lanes.scaled is None else by_interval(x, TANH_TABLE, TANH_STEP)


def sigmoid(x: Value) -> Value:
    """1 / (1 + e^-x), within 2 ulp.

    With AVX-512 by e^-|x|, which does not overflow and is accurate for small results. Without it, results of less than
    5e-39 may be 0.
    """
    if x.lanes.scaled is None:
        return 1.0 / (_power_of_negated(x) + 1.0)
    z = exp_to(-x.magnitude(), None)
    top = select(x < 0.0, z, 1.0)
    quotient = top / (z + 1.0)
    return (-z).fma(quotient, top)  # free of the division's rounding error


def silu(x: Value) -> Value:
    """x / (1 + e^-x), within 3 ulp where x > -88; below, where the result is less than 1e-36, it may be 0."""
    if x.lanes.scaled is None:
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

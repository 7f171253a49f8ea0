"""Functions that networks use as activations, of float32."""

from __future__ import annotations

from heterocc.compiler.lower.kernels.functions.exponential import LEAST_NORMAL, exp_normal, exp_to
from heterocc.compiler.lower.kernels.functions.lanes import Value


def sigmoid(x: Value) -> Value:
    """1 / (1 + e^-x), within 2 ulp; results of less than 5e-39 may be 0."""
    return 1.0 / (_power_of_negated(x) + 1.0)


def silu(x: Value) -> Value:
    """x / (1 + e^-x), within 3 ulp where x > -88; below, where the result is less than 1e-36, it may be 0."""
    return x / (_power_of_negated(x) + 1.0)


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

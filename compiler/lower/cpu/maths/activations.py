"""Functions that networks use as activations, of float32."""

from __future__ import annotations

from heterocc.compiler.lower.kernels.functions.exponential import LEAST_NORMAL, exp_normal
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

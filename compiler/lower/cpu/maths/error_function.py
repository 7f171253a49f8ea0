"""The error function of float32."""

from __future__ import annotations

from heterocc.compiler.lower.approximations import ERF_LOG_REST, ERF_NEAR, ERF_ONE, ERF_SPLIT, ERF_STEP, ERF_TABLE
from heterocc.compiler.lower.cpu.maths.exponential import exp_normal
from heterocc.compiler.lower.cpu.maths.lanes import Value, polynomial, select
from heterocc.compiler.lower.cpu.maths.tables import by_interval


def erf(x: Value) -> Value:
    """The error function, within 2 ulp."""
    if x.lanes.whole_registers:
        return by_interval(x, ERF_TABLE, ERF_STEP)
    size = x.magnitude()
    square = x * x
    near = polynomial(square, ERF_NEAR).fma(x, x)
    far = 1.0 - exp_normal(polynomial(size.at_most(ERF_ONE), ERF_LOG_REST))
    return select(size < ERF_SPLIT, near, far.with_sign_of(x))

"""The error function of float32."""

from __future__ import annotations

from heterocc.compiler.lower.cpu.maths.exponential import ROUND
from heterocc.compiler.lower.cpu.maths.lanes import Value, polynomial, select
from heterocc.compiler.lower.cpu.maths.tables import by_interval
from heterocc.compiler.lower.kernels.approximations import (
    ERF_LOG_REST,
    ERF_NEAR,
    ERF_ONE,
    ERF_SPLIT,
    ERF_STEP,
    ERF_TABLE,
    EXP2_SHORT,
)


def erf(x: Value) -> Value:
    """The error function, within 2 ulp."""
    if x.lanes.whole_registers:
        return by_interval(x, ERF_TABLE, ERF_STEP)
    size = x.magnitude()
    square = x * x
    near = polynomial(square, ERF_NEAR).fma(x, x)
    # 1 - erf(x) is less than 0.21 here, so that its error may be 5 times as large as the result's.
    power = polynomial(size.at_most(ERF_ONE), ERF_LOG_REST)
    shifted = power + (ROUND + 127)
    rest = polynomial(power - (shifted - (ROUND + 127)), EXP2_SHORT)
    far = (-rest).fma((shifted.bits() << 23).float_of_bits(), 1.0)
    return select(size < ERF_SPLIT, near, far.with_sign_of(x))

"""The error function of float32."""

from __future__ import annotations

from heterocc.compiler.lower.kernels.approximations import ERF_LOG_REST, ERF_NEAR, ERF_ONE, ERF_SPLIT, EXP2_SHORT
from heterocc.compiler.lower.kernels.functions.number import N, polynomial, select


def erf(x: N) -> N:
    """The error function, within 2 ulp."""
    size = x.magnitude()
    square = x * x
    near = polynomial(square, ERF_NEAR).fma(x, x)
    # 1 - erf(x) is less than 0.21 here, so that its error may be 5 times as large as the result's.
    power = polynomial(size.at_most(ERF_ONE), ERF_LOG_REST)
    n, bits = power.rounded_to_integer(None, 127)
    rest = polynomial(power - n, EXP2_SHORT)
    far = (-rest).fma((bits << 23).float_of_bits(), 1.0)
    return select(size < ERF_SPLIT, near, far.with_sign_of(x))

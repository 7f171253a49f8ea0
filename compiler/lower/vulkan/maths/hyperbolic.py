"""Hyperbolic functions and their inverses, and the error function."""

from __future__ import annotations

import math

from heterocc.compiler.lower.vulkan.maths.basic import clamped, copysign, magnitude, polynomial, sqrt
from heterocc.compiler.lower.vulkan.maths.exponential import LN2, exp, log, log1p
from heterocc.compiler.lower.vulkan.scalar import Scalar, select

_SINH = (0.1666666717, 0.0083333496, 0.0001983615948, 2.816951337e-06)
_TANH = (-0.3333331645, 0.1333258599, -0.05385230854, 0.0210716743, -0.006274233107)
_ERF = (0.1283791065, -0.3761262596, 0.1128358543, -0.02685381100, 0.005188327748, -0.0008010192542, 7.853857824e-05)
_ERFC = (
    *(-0.0001884677913, 1.129580259, 0.633216381, 0.108422101),
    *(-0.02521034144, 0.004205286037, -0.0004414729192, 2.169763866e-05),
)
"""-ln(erfc x) on [1, 4]."""


def tanh(x: Scalar) -> Scalar:
    """The hyperbolic tangent, within 3 ulp."""
    a = magnitude(x)
    z = a * a
    near = a + a * z * polynomial(z, _TANH)
    far = 1.0 - 2.0 / (exp(a + a) + 1.0)
    return copysign(select(a < 0.55, near, far), x)


def sinh(x: Scalar) -> Scalar:
    """The hyperbolic sine, within 5 ulp."""
    a = magnitude(x)
    z = a * a
    root = exp(a * 0.5)
    far = (root * 0.5) * root - 0.5 / (root * root)
    return copysign(select(a < 1.0, a + a * z * polynomial(z, _SINH), far), x)


def cosh(x: Scalar) -> Scalar:
    """The hyperbolic cosine, within 5 ulp."""
    root = exp(magnitude(x) * 0.5)
    return (root * 0.5) * root + 0.5 / (root * root)


def asinh(x: Scalar) -> Scalar:
    """The inverse hyperbolic sine, within 5 ulp."""
    a = magnitude(x)
    z = a * a
    near = log1p(a + z / (sqrt(z + 1.0) + 1.0))
    return copysign(select(a > 1e9, log(a) + LN2, near), x)


def acosh(x: Scalar) -> Scalar:
    """The inverse hyperbolic cosine, within 5 ulp; NaN below 1."""
    t = x - 1.0
    near = select(x < 1.0, x.constant(math.nan), log1p(t + sqrt(t + t + t * t)))
    return select(x > 1e9, log(x) + LN2, near)


def atanh(x: Scalar) -> Scalar:
    """The inverse hyperbolic tangent, within 6 ulp."""
    a = magnitude(x)
    return copysign(log1p((a + a) / (1.0 - a)) * 0.5, x)


def erf(x: Scalar) -> Scalar:
    """The error function, within 3 ulp."""
    a = magnitude(x)
    z = a * a
    near = a + a * polynomial(z, _ERF)
    far = 1.0 - exp(-polynomial(clamped(a, 1.0, 4.0), _ERFC))
    return copysign(select(a < 1.0, near, far), x)

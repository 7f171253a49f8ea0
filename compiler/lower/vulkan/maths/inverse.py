"""Hyperbolic functions and their inverses, and the error function."""

from __future__ import annotations

import math

from heterocc.compiler.lower.kernels.functions.exponential import log
from heterocc.compiler.lower.vulkan.maths.exponential import LN2, log1p
from heterocc.compiler.lower.vulkan.scalar import Scalar, select


def asinh(x: Scalar) -> Scalar:
    """The inverse hyperbolic sine, within 5 ulp."""
    a = x.magnitude()
    z = a * a
    near = log1p(a + z / ((z + 1.0).sqrt() + 1.0))
    return (select(a > 1e9, log(a) + LN2, near)).with_sign_of(x)


def acosh(x: Scalar) -> Scalar:
    """The inverse hyperbolic cosine, within 5 ulp; NaN below 1."""
    t = x - 1.0
    near = select(x < 1.0, x.constant(math.nan), log1p(t + (t + t + t * t).sqrt()))
    return select(x > 1e9, log(x) + LN2, near)


def atanh(x: Scalar) -> Scalar:
    """The inverse hyperbolic tangent, within 6 ulp."""
    a = x.magnitude()
    return (log1p((a + a) / (1.0 - a)) * 0.5).with_sign_of(x)

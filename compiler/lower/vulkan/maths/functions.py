"""Mathematical functions in float32, composed of correctly rounded operations.

GLSL.std.450 guarantees too little accuracy (a sine within 2^-11, an arc tangent within 4096 units in the last place)
and leaves NaN undefined, so all functions except square roots and rounding are computed here. The polynomials were
fitted for this module by iteratively reweighted least squares on relative error. Errors are in units in the last place
of float32 (ulp, 6e-8 relative), measured against float64 over the whole domain of a function, on a device that rounds
as in IEEE 754. Devices may flush denormal numbers. float16 is computed in float32; float64 is not supported.
"""

from __future__ import annotations

from heterocc.compiler.lower.vulkan.maths.basic import (
    copysign,
    is_finite,
    is_infinite,
    is_nan,
    magnitude,
    round_away,
    rsqrt,
    scaled_by_power,
    sqrt,
)
from heterocc.compiler.lower.vulkan.maths.circular import acos, asin, atan, atan2, cos, sin, tan
from heterocc.compiler.lower.vulkan.maths.exponential import exp, exp2, exp10, log, log1p, log2, log10
from heterocc.compiler.lower.vulkan.maths.hyperbolic import acosh, asinh, atanh, cosh, erf, sinh, tanh
from heterocc.compiler.lower.vulkan.maths.power import hypot, power, remainder

__all__ = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "copysign",
    "cos",
    "cosh",
    "erf",
    "exp",
    "exp2",
    "exp10",
    "hypot",
    "is_finite",
    "is_infinite",
    "is_nan",
    "log",
    "log1p",
    "log2",
    "log10",
    "magnitude",
    "power",
    "remainder",
    "round_away",
    "rsqrt",
    "scaled_by_power",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
]

"""Mathematical functions in float32, composed of correctly rounded operations.

GLSL.std.450 guarantees too little accuracy (a sine within 2^-11, an arc tangent within 4096 units in the last place)
and leaves NaN undefined, so all functions except square roots and rounding are computed by formulas: those of all
devices (`lower/kernels/functions`), or here. Errors are in units in the last place of float32 (ulp, 6e-8 relative),
measured against float64 over the whole domain of a function, on a device that rounds as in IEEE 754. Devices may flush
denormal numbers. float16 is computed in float32; float64 is not supported.
"""

from __future__ import annotations

from heterocc.compiler.lower.kernels.functions.arc_sine import acos, asin
from heterocc.compiler.lower.kernels.functions.error_function import erf
from heterocc.compiler.lower.kernels.functions.exponential import exp, log
from heterocc.compiler.lower.kernels.functions.hyperbolic import cosh, sinh, tanh
from heterocc.compiler.lower.vulkan.maths.basic import is_infinite, is_nan, round_away, rsqrt, scaled_by_power
from heterocc.compiler.lower.vulkan.maths.circular import atan, atan2, cos, sin, tan
from heterocc.compiler.lower.vulkan.maths.exponential import exp2, exp10, log1p, log2, log10
from heterocc.compiler.lower.vulkan.maths.inverse import acosh, asinh, atanh
from heterocc.compiler.lower.vulkan.maths.power import hypot, power, remainder
from heterocc.compiler.lower.vulkan.scalar import Scalar

copysign, is_finite, magnitude, sqrt = Scalar.with_sign_of, Scalar.below_infinity, Scalar.magnitude, Scalar.sqrt

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

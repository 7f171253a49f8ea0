"""Powers of float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from tvm import tirx

from heterocc.compiler.lower.cpu.maths.library import called
from heterocc.compiler.lower.kernels.approximations import EXP2, LOG_RATIO
from heterocc.compiler.lower.kernels.functions.lanes import FLOAT32, FLOAT64, ROUND64, Value
from heterocc.compiler.lower.kernels.functions.number import polynomial, select

_LEAST = 2.0**-126
"""The least normal float32."""
_ROOT_HALF_BITS = 0x3F3504F3
"""The bits of the root of 1/2: mantissas are from it to the root of 2."""


def power(x: Value, y: Value) -> Value:
    """x^y, within 2 ulp: some constant y by products and roots, positive numbers in float64.

    If one lane has another number, the C library computes all lanes.
    """
    scalar = y.expr.value if isinstance(y.expr, tirx.Broadcast) else y.expr
    of_constant = _BY_PRODUCTS.get(float(scalar.value)) if isinstance(scalar, tirx.FloatImm) else None
    if of_constant is not None:
        return of_constant(x)
    if x.lanes.count == 1:
        return x.lanes.bound(called("powf", x, y), FLOAT32)
    is_zero = x.equals(0.0)
    common = ((x >= _LEAST) & (x < math.inf) & (y.magnitude() < math.inf)) | (is_zero & (y > 0.0))
    near = select(is_zero, x.constant(0.0), _exp2(_log2(x) * y.to(FLOAT64)).to(FLOAT32))
    others = select(common, x.constant(0.0), 1.0).largest_lane()
    return x.lanes.bound(tirx.if_then_else(others > 0.0, called("powf", x, y), near.expr), FLOAT32)


def _log2(x: Value) -> Value:
    """The logarithm to base 2 of normal float32 x, in float64, within 2^-36 of it."""
    exponent = (x.bits() - _ROOT_HALF_BITS) >> 23
    mantissa = (x.bits() - (exponent << 23)).float_of_bits().to(FLOAT64)
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square = ratio * ratio
    return (polynomial(square, LOG_RATIO).fma(square, 1.0) * ratio).fma(2 / math.log(2), exponent.to(FLOAT64))


def _exp2(x: Value) -> Value:
    """2^x for float64 x, within 2^-28 of it; beyond ±200 as at ±200, out of the range of float32."""
    bounded = x.at_least(-200.0).at_most(200.0)
    shifted = bounded + (ROUND64 + 1023)
    rest = bounded - (shifted - (ROUND64 + 1023))
    return polynomial(rest, (1.0, *EXP2)) * (shifted.bits() << 52).float_of_bits()


def _root(x: Value) -> Value:
    # The result for -0 is 0, for minus infinity infinity.
    return select(x.equals(-math.inf), x.constant(math.inf), (x + 0.0).sqrt())


_BY_PRODUCTS: Mapping[float, Callable[[Value], Value]] = {
    -1.0: lambda x: 1.0 / x,
    0.5: _root,
    0.75: lambda x: _root(x) * _root(x).sqrt(),
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    4.0: lambda x: (x * x) * (x * x),
}
"""Among them that of local response normalisation, 3/4."""

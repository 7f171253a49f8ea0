"""Powers of float32, in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from tvm import tirx

from heterocc.compiler.lower.kernels.approximations import EXP2, LOG_RATIO
from heterocc.compiler.lower.kernels.functions.lanes import FLOAT32, FLOAT64, ROUND64, Value
from heterocc.compiler.lower.kernels.functions.number import polynomial, select

_ROOT_HALF_BITS = 0x3F3504F3


def power(x: Value, y: Value) -> Value:
    """x^y, within 1 ulp, with C's results for zeros, infinities, NaN and negative x; some constant y by products."""
    known = _number(y.expr)
    if known in _BY_PRODUCTS:
        return _BY_PRODUCTS[known](x)
    size, steps = x.magnitude(), y.magnitude()
    # 0 · infinity is NaN, but 1 to the power of infinity is 1.
    steady = size.equals(1.0) & steps.equals(math.inf)
    result = _exp2(_log2(size) * select(steady, y.constant(0.0), y).to(FLOAT64)).to(FLOAT32)
    half = y * 0.5
    whole, even = y.equals(y.trunc()), half.equals(half.trunc())
    result = select(x < 0.0, select(whole | size.equals(math.inf), result, math.nan), result)
    result = select(whole, select(even, result, result.negated_if(x)), result)
    return select(y.equals(0.0) | x.equals(1.0), x.constant(1.0), result)


def _log2(x: Value) -> Value:
    """The logarithm to base 2 of float32 x ≥ 0, in float64, within 2^-36 of it; of 0 minus infinity."""
    tiny = x < 2.0**-126
    bits = select(tiny, x * 2.0**23, x).bits()
    exponent = (bits - _ROOT_HALF_BITS) >> 23
    mantissa = (bits - (exponent << 23)).float_of_bits()
    n = exponent.to(FLOAT32) - select(tiny, x.constant(23.0), 0.0)
    m = mantissa.to(FLOAT64)
    ratio = (m - 1.0) / (m + 1.0)
    square, twice = ratio * ratio, ratio + ratio
    result = polynomial(square, LOG_RATIO).fma(square * twice, twice).fma(1 / math.log(2), n.to(FLOAT64))
    result = select(x < math.inf, result, x.to(FLOAT64))
    return select(x.equals(0.0), result.constant(-math.inf), result)


def _exp2(x: Value) -> Value:
    """2^x for float64 x, within 2^-28 of it; beyond ±200 as at ±200, out of the range of float32. NaN stays NaN."""
    bounded = x.at_least(-200.0).at_most(200.0)
    shifted = bounded + (ROUND64 + 1023)
    rest = bounded - (shifted - (ROUND64 + 1023))
    return polynomial(rest, (1.0, *EXP2)) * (shifted.bits() << 52).float_of_bits()


def _number(expr: tirx.Expr) -> float | None:
    """The number in all lanes; None for an expression."""
    scalar = expr.value if isinstance(expr, tirx.Broadcast) else expr
    return float(scalar.value) if isinstance(scalar, tirx.FloatImm) else None


def _root(x: Value) -> Value:
    # The result for -0 is 0, for minus infinity infinity.
    return select(x.equals(-math.inf), x.constant(math.inf), (x + 0.0).sqrt())


_BY_PRODUCTS: Mapping[float | None, Callable[[Value], Value]] = {
    -1.0: lambda x: 1.0 / x,
    0.5: _root,
    0.75: lambda x: _root(x) * _root(x).sqrt(),
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    4.0: lambda x: (x * x) * (x * x),
}

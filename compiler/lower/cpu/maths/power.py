"""Powers of float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from tvm import tirx

from heterocc.compiler.lower.cpu.maths import wide
from heterocc.compiler.lower.kernels.functions.lanes import FLOAT32, FLOAT64, Value
from heterocc.compiler.lower.kernels.functions.number import select


def power(x: Value, y: Value) -> Value:
    """x^y, within 1 ulp, with C's results for zeros, infinities, NaN and negative x; some constant y by products."""
    known = _number(y.expr)
    if known in _BY_PRODUCTS:
        return _BY_PRODUCTS[known](x)
    size, steps = x.magnitude(), y.magnitude()
    # 0 · infinity is NaN, but 1 to the power of infinity is 1.
    steady = size.equals(1.0) & steps.equals(math.inf)
    result = wide.exp2(wide.log2(size) * select(steady, y.constant(0.0), y).to(FLOAT64)).to(FLOAT32)
    half = y * 0.5
    whole, even = y.equals(y.trunc()), half.equals(half.trunc())
    result = select(x < 0.0, select(whole | size.equals(math.inf), result, math.nan), result)
    result = select(whole, select(even, result, result.negated_if(x)), result)
    return select(y.equals(0.0) | x.equals(1.0), x.constant(1.0), result)


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
    1.0: lambda x: x,
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    4.0: lambda x: (x * x) * (x * x),
}

"""Powers of float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from tvm import tirx

from heterocc.compiler.lower.cpu.maths.library import by_library
from heterocc.compiler.lower.kernels.functions.lanes import Value
from heterocc.compiler.lower.kernels.functions.number import select


def power(x: Value, y: Value) -> Value:
    """x^y, within 2 ulp; some constant y by products and roots, others by the C library."""
    scalar = y.expr.value if isinstance(y.expr, tirx.Broadcast) else y.expr
    of_constant = _BY_PRODUCTS.get(float(scalar.value)) if isinstance(scalar, tirx.FloatImm) else None
    return of_constant(x) if of_constant is not None else by_library("powf")(x, y)


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

"""The transforms of a row or column of inputs, and of products, of convolutions by minimal filtering.

The weights' transform, of the powers of the points, is in `filtered.py`. The inputs' has the coefficients of the
quotients of M(x), which is zero at all points, by each of its factors; the outputs' has the powers of the points, over
the values of the quotients there.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate.convolution.filtered import FAR, NEAR, SMALL, Filter

Values = Sequence[tirx.Expr]

_SMALLER, _LARGER = NEAR**2, FAR**2
_AT_ZERO = 1 / (_SMALLER * _LARGER)
_AT_NEAR = 1 / (2 * _SMALLER * (_SMALLER - _LARGER))
_AT_FAR = 1 / (2 * _LARGER * (_LARGER - _SMALLER))


def factors(filter_: Filter, values: Values) -> Values:
    """The inputs of a tile's row or column, transformed: as many."""
    if filter_ is SMALL:
        a, b, c, d = values
        return a - c, b + c, c - b, b - d
    a, b, c, d, e, f = (build.bind(value) for value in values)
    sum_, product = _SMALLER + _LARGER, _SMALLER * _LARGER
    near, near_odd = build.bind(e - c * _LARGER), build.bind((d - b * _LARGER) * NEAR)
    far, far_odd = build.bind(e - c * _SMALLER), build.bind((d - b * _SMALLER) * FAR)
    return (
        e + a * product - c * sum_,
        near + near_odd,
        near - near_odd,
        far + far_odd,
        far - far_odd,
        f + b * product - d * sum_,
    )


def sums(filter_: Filter, values: Values) -> Values:
    """The outputs of a tile's row or column, from the products of its factors."""
    if filter_ is SMALL:
        a, b, c, d = values
        return a + b + c, b - c - d
    a, b, c, d, e, f = (build.bind(value) for value in values)
    near, near_odd = build.bind(b + c), build.bind(b - c)
    far, far_odd = build.bind(d + e), build.bind(d - e)
    return (
        near * _AT_NEAR + far * _AT_FAR + a * _AT_ZERO,
        near_odd * (_AT_NEAR * NEAR) + far_odd * (_AT_FAR * FAR),
        near * (_AT_NEAR * NEAR**2) + far * (_AT_FAR * FAR**2),
        near_odd * (_AT_NEAR * NEAR**3) + far_odd * (_AT_FAR * FAR**3) + f,
    )

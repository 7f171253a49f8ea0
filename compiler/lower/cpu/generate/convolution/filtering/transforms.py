"""The transforms of tiles of inputs, and of products, of convolutions by minimal filtering: of each row and column.

The weights' transform, of the powers of the points, is in `filtered.py`. The inputs' has the coefficients of the
quotients of M(x), which is zero at all points, by each of its factors; the outputs' has the powers of the points, over
the values of the quotients there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.filtering.filtered import FAR, NEAR, SMALL, Filter
from heterocc.compiler.lower.cpu.generate.places import index

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


def transform_inputs(
    filter_: Filter,
    loaded: Callable[[int, int], tirx.Expr],
    lanes: int,
    put: Callable[[int, tirx.Expr], None],
) -> None:
    """Transform a vector of tiles: `loaded(row, column)` of their inputs to `put(plane, value)`."""
    side = filter_.inputs
    held = [emit.registers(side, lanes) for _ in range(side)]
    for column in range(side):
        for row, value in enumerate(factors(filter_, [loaded(row, column) for row in range(side)])):
            emit.put(held[row], value, index(column * lanes), lanes)
    for row, buffer in enumerate(held):
        values = [emit.vector(buffer, index(column * lanes), lanes) for column in range(side)]
        for column, value in enumerate(factors(filter_, values)):
            put(row * side + column, value)


def transform_products(
    filter_: Filter,
    loaded: Callable[[int, int], tirx.Expr],
    lanes: int,
    put: Callable[[int, int, tirx.Expr], None],
) -> None:
    """Transform a vector of tiles: `loaded(row, column)` of their products to `put(row, number, value)` of outputs.

    The outputs of a row are in order, in vectors of twice the lanes.
    """
    side = filter_.inputs
    held = [emit.registers(side, lanes) for _ in range(filter_.outputs)]
    for column in range(side):
        for row, value in enumerate(sums(filter_, [loaded(row, column) for row in range(side)])):
            emit.put(held[row], value, index(column * lanes), lanes)
    for row, buffer in enumerate(held):
        values = sums(filter_, [emit.vector(buffer, index(column * lanes), lanes) for column in range(side)])
        for number, part in enumerate(_interleaved(list(values), lanes)):
            put(row, number, part)


def _interleaved(values: list[tirx.Expr], lanes: int) -> list[tirx.Expr]:
    """The first numbers of two or four vectors, then the second ones, and so on, in vectors of twice the lanes."""
    if len(values) == 2:
        return [tirx.Shuffle(values, [half * lanes + lane for lane in range(lanes) for half in range(2)])]
    even, odd = (
        [build.bind(tirx.Shuffle(pair, _halves(lanes, start))) for start in (0, lanes // 2)]
        for pair in (values[::2], values[1::2])
    )
    return [part for pair in zip(even, odd, strict=True) for part in _interleaved(list(pair), lanes)]


def _halves(lanes: int, start: int) -> list[int]:
    """The order that interleaves half of two vectors, from a place on."""
    return [half * lanes + start + lane for lane in range(lanes // 2) for half in range(2)]

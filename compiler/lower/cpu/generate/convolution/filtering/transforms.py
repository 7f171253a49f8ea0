"""The transforms of tiles of inputs, and of products, of convolutions by minimal filtering: of each row and column."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.filtering.filtered import Matrix
from heterocc.compiler.lower.cpu.generate.places import index


def transformed(matrix: Matrix, loaded: Callable[[int, int], tirx.Expr], lanes: int) -> Iterator[list[tirx.Expr]]:
    """The rows of a vector of tiles, given by `loaded(row, column)`, whose columns and rows a matrix transforms."""
    side = range(len(matrix[0]))
    held = [emit.registers(len(side), lanes) for _ in matrix]
    for column in side:
        for buffer, value in zip(held, _products(matrix, [loaded(row, column) for row in side]), strict=True):
            emit.put(buffer, value, index(column * lanes), lanes)
    for buffer in held:
        yield _products(matrix, [emit.vector(buffer, index(column * lanes), lanes) for column in side])


def _products(matrix: Matrix, values: Sequence[tirx.Expr]) -> list[tirx.Expr]:
    """The product of a matrix with a column of vectors."""
    values = [build.bind(value) for value in values]
    return [_sum(row, values) for row in matrix]


def _sum(row: Sequence[float], values: Sequence[tirx.Expr]) -> tirx.Expr:
    """The sum of vectors by coefficients, most of which are 0, 1 or -1, and one of which is positive."""
    terms = [(by, value if abs(by) == 1 else value * abs(by)) for by, value in zip(row, values, strict=True) if by]
    _, total = terms.pop(next(number for number, (by, _) in enumerate(terms) if by > 0))
    for by, value in terms:
        total = total + value if by > 0 else total - value
    return total

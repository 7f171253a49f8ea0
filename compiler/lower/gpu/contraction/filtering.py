"""The matrices of Winograd's minimal filtering F(m x m, 3 x 3): (m + 2)² products for a tile of m x m outputs.

Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, https://arxiv.org/abs/1509.09308.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

import numpy as np

from heterocc.compiler.lower.gpu.packed import Layout

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Filtering:
    """F(m x m, 3 x 3): the matrices A that transform inputs, weights and outputs X to A · X · Aᵀ."""

    m: int
    inputs: Matrix
    weights: Matrix
    outputs: Matrix

    def __str__(self) -> str:
        return f"F({self.m} x {self.m}, 3 x 3)"

    @property
    def side(self) -> int:
        """The number of inputs, and of products, along a side of a tile."""
        return self.m + 2


def filtering_by(m: int, points: Sequence[Fraction]) -> Filtering:
    """The filtering for m + 1 interpolation points and infinity, by the Toom-Cook algorithm."""
    others = [[q for q in points if q != p] for p in points]
    scales = [prod((p - q for q in rest), start=Fraction(1)) for p, rest in zip(points, others, strict=True)]
    weights = [[p**i / scale for i in range(3)] for p, scale in zip(points, scales, strict=True)]
    inputs = [[*_with_roots(rest), Fraction(0)] for rest in others]
    outputs = [[*(p**i for p in points), Fraction(i == m - 1)] for i in range(m)]
    return Filtering(
        m,
        inputs=_numbers([*inputs, _with_roots(points)]),
        weights=_numbers([*weights, [Fraction(0), Fraction(0), Fraction(1)]]),
        outputs=_numbers(outputs),
    )


def _with_roots(roots: Sequence[Fraction]) -> list[Fraction]:
    """The coefficients of the monic polynomial with these roots, the constant one first."""
    found = [Fraction(1)]
    for root in roots:
        found = [b - root * a for a, b in zip([*found, Fraction(0)], [Fraction(0), *found], strict=True)]
    return found


def _numbers(rows: Sequence[Sequence[Fraction]]) -> Matrix:
    return tuple(tuple(float(number) for number in row) for row in rows)


F2 = filtering_by(2, [Fraction(0), Fraction(1), Fraction(-1)])
F4 = filtering_by(4, [Fraction(0), Fraction(2, 3), Fraction(-2, 3), Fraction(3, 2), Fraction(-3, 2)])
"""With these points the rounding error in float32 is about twice that of a plain sum; with the usual ones (1 and 2) it
is five times as large."""


@dataclass(frozen=True, slots=True)
class Transformed:
    """Weights [out, in, 3, 3] as [products of a tile, out, in], then in the layout of the matrix product."""

    filtering: Filtering
    then: Layout | None

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The transformed weights; they are computed in float64."""
        matrix = np.array(self.filtering.weights, np.float64)
        planes = np.einsum("ki,ocij,lj->kloc", matrix, array.astype(np.float64), matrix)
        flat = np.ascontiguousarray(planes.reshape(-1, *array.shape[:2]).astype(array.dtype))
        return flat if self.then is None else self.then.apply(flat)

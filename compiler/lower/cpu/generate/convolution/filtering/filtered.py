"""Minimal filtering of 3×3 convolutions: its sizes, and weights transformed for it.

Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, https://arxiv.org/abs/1509.09308.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.sizes import as_number

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Filter:
    """F(m×m, 3×3): tiles of m×m outputs are computed from (m + 2)×(m + 2) inputs, with a product for each of these.

    `outputs` is m. The matrices are the transforms, along a side, of three taps to m + 2 factors, of the inputs to as
    many, and of their products to outputs.
    """

    outputs: int
    weights: Matrix
    factors: Matrix
    sums: Matrix

    @property
    def inputs(self) -> int:
        """The inputs along a side of a tile; the next tile begins `outputs` further."""
        return len(self.weights)

    @property
    def planes(self) -> int:
        """The number of products for a tile."""
        return len(self.weights) ** 2


def _filter(*points: float) -> Filter:
    """The filter whose polynomials are multiplied at zero, at points of both signs, and at infinity."""
    roots = [0.0, *(sign * point for point in points for sign in (1, -1))]
    outputs, others = len(roots) - 1, [[q for q in roots if q != p] for p in roots]
    scales = [prod(p - q for q in rest) for p, rest in zip(roots, others, strict=True)]
    weights = [(1 / scale, p / scale, p**2 / scale) for p, scale in zip(roots, scales, strict=True)]
    factors = [(*map(float, np.poly(rest)[::-1]), 0.0) for rest in others]
    sums = [(*(p**power for p in roots), float(power == outputs - 1)) for power in range(outputs)]
    last = tuple(map(float, np.poly(roots)[::-1]))
    return Filter(outputs, (*weights, (0.0, 0.0, 1.0)), (*factors, last), tuple(sums))


SMALL = _filter(1.0)
"""16 products in place of 36, with errors like those of a plain sum."""

LARGE = _filter(0.75, 1.5)
"""36 products in place of 144, with larger errors.

Of points with exact squares these have the smallest: 1.8 times those of a plain sum, where 1 and 2 have 4.
"""


@dataclass(frozen=True, slots=True)
class FilteredPanels:
    """The layout [tile][plane][input][place in the tile] of a weight [output, input, 3, 3], as a flat array.

    Of a weight of three dimensions each tap of the depth is an input.
    `panels` is the order of the weight's planes [plane, output, input] with the planes outside.
    """

    panels: Panels
    filter: Filter = SMALL

    @property
    def argument(self) -> int:
        """The number of the weight's argument."""
        return self.panels.argument

    @property
    def key(self) -> str:
        """A name for the layout."""
        return f"filtered{'' if self.filter is SMALL else self.filter.outputs}_{self.panels.key}"

    @property
    def size(self) -> int:
        """The total number of elements."""
        return self.panels.size

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The transformed and packed copy of a weight, computed in float64."""
        matrix, count = np.array(self.filter.weights), self.filter.planes
        outputs, inputs = array.shape[0], self.panels.terms
        # One product of matrices: transforming by `einsum` takes seconds for 512 channels.
        both = np.kron(matrix, matrix)
        planes = both @ array.reshape(outputs * inputs, 9).T.astype(np.float64)
        apart = self.panels.apply(planes.astype(array.dtype).reshape(count, outputs, inputs)).reshape(count, -1)
        parts = []
        for run in self.panels.runs:
            start, tiles, size = as_number(run.start) * inputs, as_number(run.count), run.size * inputs
            part = apart[:, start : start + tiles * size].reshape(count, tiles, size)
            parts.append(part.transpose(1, 0, 2).ravel())
        return np.concatenate(parts)

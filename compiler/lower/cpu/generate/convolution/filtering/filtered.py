"""Minimal filtering of 3×3 convolutions: its sizes, and weights transformed for it.

Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, https://arxiv.org/abs/1509.09308.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heterocc.compiler.lower.cpu.generate.panels import Panels


@dataclass(frozen=True, slots=True)
class Filter:
    """F(m×m, 3×3): tiles of m×m outputs are computed from (m + 2)×(m + 2) inputs, with a product for each of these.

    `outputs` is m; `weights` is the transform of three taps to m + 2 factors, whose sums are exact in float64.
    """

    outputs: int
    weights: tuple[tuple[float, float, float], ...]

    @property
    def inputs(self) -> int:
        """The inputs along a side of a tile; the next tile begins `outputs` further."""
        return len(self.weights)

    @property
    def planes(self) -> int:
        """The number of products for a tile."""
        return len(self.weights) ** 2


SMALL = Filter(2, ((1.0, 0.0, 0.0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0.0, 0.0, 1.0)))
"""16 products in place of 36, with errors like those of a plain sum."""

NEAR, FAR = 0.75, 1.5
"""The points besides zero and infinity, with both signs, at which `LARGE` multiplies polynomials.

Of points with exact squares these have the smallest errors: 1.8 times those of a plain sum, where 1 and 2 have 4.
"""

LARGE = Filter(
    4,
    (
        (1.0, 0.0, 0.0),
        (1.0, NEAR, NEAR**2),
        (1.0, -NEAR, NEAR**2),
        (1.0, FAR, FAR**2),
        (1.0, -FAR, FAR**2),
        (0.0, 0.0, 1.0),
    ),
)
"""36 products in place of 144, with larger errors."""


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
            start, size = run.start * inputs, run.size * inputs
            part = apart[:, start : start + run.count * size].reshape(count, run.count, size)
            parts.append(part.transpose(1, 0, 2).ravel())
        return np.concatenate(parts)

"""Weights transformed for Winograd's minimal filtering F(2×2, 3×3).

Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, https://arxiv.org/abs/1509.09308.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heterocc.compiler.lower.cpu.generate.panels import Panels

WEIGHTS = ((1.0, 0.0, 0.0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0.0, 0.0, 1.0))
"""The transform of three taps to four factors."""

PLANES = len(WEIGHTS) ** 2
"""The number of products for a tile of four outputs."""


@dataclass(frozen=True, slots=True)
class FilteredPanels:
    """The layout [tile][plane][input][place in the tile] of a weight [output, input, 3, 3], as a flat array.

    `panels` is the order of the weight's planes [plane, output, input] with the planes outside.
    """

    panels: Panels

    @property
    def argument(self) -> int:
        """The number of the weight's argument."""
        return self.panels.argument

    @property
    def key(self) -> str:
        """A name for the layout."""
        return f"filtered_{self.panels.key}"

    @property
    def size(self) -> int:
        """The total number of elements."""
        return self.panels.size

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The transformed and packed copy of a weight, computed in float64."""
        matrix = np.array(WEIGHTS)
        outputs, inputs = array.shape[:2]
        # One product of matrices: transforming by `einsum` takes seconds for 512 channels.
        both = np.kron(matrix, matrix)
        planes = both @ array.reshape(outputs * inputs, 9).T.astype(np.float64)
        apart = self.panels.apply(planes.astype(array.dtype).reshape(PLANES, outputs, inputs)).reshape(PLANES, -1)
        parts = []
        for run in self.panels.runs:
            start, size = run.start * inputs, run.size * inputs
            part = apart[:, start : start + run.count * size].reshape(PLANES, run.count, size)
            parts.append(part.transpose(1, 0, 2).ravel())
        return np.concatenate(parts)

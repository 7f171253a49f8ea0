"""Weights in the order in which a generated kernel reads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heterocc.compiler.lower.cpu.generate.tiles import Run


@dataclass(frozen=True, slots=True)
class Panels:
    """The layout [outer][tile][term][place in the tile] of a weight argument, as a flat array.

    The array is viewed in `shape`; `order` is the transposition that brings its axes to (outer …, terms …, places …),
    whose sizes are `outer`, `terms` and `places`. Places are in vectors of `lanes`, and these in the tiles of `runs`,
    counted in vectors. A last vector that would exceed the end starts earlier and overlaps the previous one; a single
    one is filled with zeros.
    """

    argument: int
    shape: tuple[int, ...]
    order: tuple[int, ...]
    outer: int
    terms: int
    places: int
    lanes: int
    runs: tuple[Run, ...]

    @property
    def key(self) -> str:
        """A name for the layout."""
        sizes = (*self.order, self.outer, self.terms, self.lanes, *(r.size for r in self.runs))
        return "panels_" + "_".join(map(str, sizes))

    @property
    def block(self) -> int:
        """The number of elements for each place of `outer`."""
        return sum(r.count * r.size for r in self.runs) * self.lanes * self.terms

    @property
    def size(self) -> int:
        """The total number of elements."""
        return self.outer * self.block

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The packed copy of a weight."""
        matrix = array.reshape(self.shape).transpose(self.order).reshape(self.outer, self.terms, self.places)
        vectors = sum(r.count * r.size for r in self.runs)
        last = max(self.places - self.lanes, 0)
        starts = np.minimum(np.arange(vectors) * self.lanes, last)
        columns = (starts[:, None] + np.arange(self.lanes)).ravel()
        if self.places < self.lanes:
            matrix = np.pad(matrix, ((0, 0), (0, 0), (0, self.lanes - self.places)))
        spread = matrix[:, :, columns]
        parts = []
        for run in self.runs:
            width = run.size * self.lanes
            part = spread[:, :, run.start * self.lanes : run.start * self.lanes + run.count * width]
            split = part.reshape(self.outer, self.terms, run.count, width).transpose(0, 2, 1, 3)
            parts.append(split.reshape(self.outer, -1))
        return np.ascontiguousarray(np.concatenate(parts, axis=1).ravel())

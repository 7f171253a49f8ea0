"""8-bit weights in the order in which a product of integers reads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heterocc.compiler.lower.cpu.generate.tiles import Run


@dataclass(frozen=True, slots=True)
class IntegerPanels:
    """A weight argument is to be given as [tile][segment][group of terms][vector][lane][term], as one row of int8.

    The array is viewed in `shape`; `order` is the transposition that brings its axes to (segments …, terms …,
    columns …). The terms of a segment lie in a row on the other side of the product; zeros fill the last of their
    groups of `group`. Columns come in vectors of `lanes`, in tiles of `runs`, which count vectors. A last vector that
    would reach beyond the end starts earlier and overlaps the one before; if there is no other, zeros follow.
    With `chunk`, terms come in chunks of so many, of which the last one does likewise; terms that two have are zeros
    in the second.
    """

    argument: int
    shape: tuple[int, ...]
    order: tuple[int, ...]
    segments: int
    terms: int
    columns: int
    group: int
    lanes: int
    runs: tuple[Run, ...]
    chunk: int = 0

    @property
    def key(self) -> str:
        """A name for the layout."""
        sizes = (*self.order, self.segments, self.terms, self.group, self.lanes, *(r.size for r in self.runs))
        chunks = f"_chunks_{self.chunk}" if self.chunk else ""
        return "integers_" + "_".join(map(str, sizes)) + chunks

    @property
    def groups(self) -> int:
        """Groups of terms in a segment."""
        terms = -(-self.terms // self.chunk) * self.chunk if self.chunk else self.terms
        return -(-terms // self.group)

    @property
    def _terms(self) -> np.ndarray:
        """The terms of a segment in the order of their groups, -1 for those whose weights are zeros."""
        if not self.chunk:
            return np.arange(self.terms)
        starts = np.arange(0, self.terms, self.chunk)
        terms = np.minimum(starts, self.terms - self.chunk)[:, None] + np.arange(self.chunk)
        return np.where(terms >= starts[:, None], terms, -1).ravel()

    @property
    def pitch(self) -> int:
        """Numbers of a vector of columns, over all terms."""
        return self.segments * self.groups * self.group * self.lanes

    @property
    def vectors(self) -> int:
        """Vectors of columns."""
        return sum(r.count * r.size for r in self.runs)

    @property
    def size(self) -> int:
        """Numbers in all."""
        return self.vectors * self.pitch

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The packed copy of a weight."""
        return self.in_tiles(self.spread(array))

    def spread(self, array: np.ndarray) -> np.ndarray:
        """A weight as (segments, groups, terms of a group, lanes of all vectors)."""
        matrix = array.reshape(self.shape).transpose(self.order).reshape(self.segments, self.terms, self.columns)
        starts = np.minimum(np.arange(self.vectors) * self.lanes, max(self.columns - self.lanes, 0))
        columns = (starts[:, None] + np.arange(self.lanes)).ravel()
        terms = self._terms
        ordered = matrix if len(terms) == self.terms else matrix[:, terms] * (terms >= 0)[:, None].astype(matrix.dtype)
        more = (self.groups * self.group - len(terms), max(self.lanes - self.columns, 0))
        spread = np.pad(ordered, ((0, 0), (0, more[0]), (0, more[1])))[:, :, columns]
        return spread.reshape(self.segments, self.groups, self.group, self.vectors * self.lanes)

    def in_tiles(self, spread: np.ndarray) -> np.ndarray:
        """What `spread` gives, in the order of the panels."""
        parts = []
        for run in self.runs:
            part = spread[..., run.start * self.lanes : (run.start + run.count * run.size) * self.lanes]
            split = part.reshape(self.segments, self.groups, self.group, run.count, run.size, self.lanes)
            parts.append(split.transpose(3, 0, 1, 4, 5, 2).ravel())
        return np.ascontiguousarray(np.concatenate(parts))

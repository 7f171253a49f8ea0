"""Weights in the order in which a generated kernel reads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heterocc.compiler.lower.cpu.generate.tiles import Run


@dataclass(frozen=True, slots=True)
class Panels:
    """The layout [outer][tile][step][place in the tile][term of the step] of a weight argument, as a flat array.

    The array is viewed in `shape`; `order` is the transposition that brings its axes to (outer …, segments …, terms …,
    places …), whose sizes are fields. A step has `group` terms of a segment, one after the other; zeros fill the last
    group of a segment. Places are in vectors of `lanes`, and these in the tiles of `runs`, counted in vectors. A last
    vector that would exceed the end starts earlier and overlaps the previous one; a single one is filled with zeros.
    With `chunk`, terms come in chunks of so many, of which the last one does likewise; terms that two have are zeros in
    the second. In `pairs`, two terms are rounded to bfloat16 and are one element, of int32.
    """

    argument: int
    shape: tuple[int, ...]
    order: tuple[int, ...]
    outer: int
    terms: int
    places: int
    lanes: int
    runs: tuple[Run, ...]
    segments: int = 1
    group: int = 1
    chunk: int = 0
    pairs: bool = False

    @property
    def key(self) -> str:
        """A name for the layout."""
        sizes = (*self.order, self.outer, self.terms, self.lanes, *(r.size for r in self.runs))
        grouped = (self.segments, self.group, self.chunk)
        more = ("grouped", *grouped) if grouped != (1, 1, 0) else ()
        return "_".join(map(str, ("pairs" if self.pairs else "panels", *sizes, *more)))

    @property
    def groups(self) -> int:
        """Groups of terms in a segment."""
        terms = -(-self.terms // self.chunk) * self.chunk if self.chunk else self.terms
        return -(-terms // self.group)

    @property
    def steps(self) -> int:
        """The number of steps, the terms of which are one after the other for each vector."""
        return self.segments * self.groups

    @property
    def vectors(self) -> int:
        """Vectors of places."""
        return sum(r.count * r.size for r in self.runs)

    @property
    def pitch(self) -> int:
        """The number of elements of a vector of places, over all steps."""
        return self.steps * self.lanes * (1 if self.pairs else self.group)

    @property
    def block(self) -> int:
        """The number of elements for each place of `outer`."""
        return self.vectors * self.pitch

    @property
    def size(self) -> int:
        """The total number of elements."""
        return self.outer * self.block

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The packed copy of a weight."""
        if self.pairs:
            return self.in_tiles(self.spread(rounded(array).astype("<u2"))).view(np.int32)
        return self.in_tiles(self.spread(array))

    def spread(self, array: np.ndarray) -> np.ndarray:
        """A weight as (outer, segments, groups, terms of a group, lanes of all vectors)."""
        matrix = array.reshape(self.shape).transpose(self.order)
        matrix = matrix.reshape(self.outer, self.segments, self.terms, self.places)
        if self.chunk:
            starts = np.arange(0, self.terms, self.chunk)
            terms = np.minimum(starts, self.terms - self.chunk)[:, None] + np.arange(self.chunk)
            matrix = matrix[:, :, terms.ravel()] * (terms >= starts[:, None]).ravel()[:, None]
            matrix = matrix.astype(array.dtype)
        more = (self.groups * self.group - matrix.shape[2], max(self.lanes - self.places, 0))
        if any(more):
            matrix = np.pad(matrix, ((0, 0), (0, 0), (0, more[0]), (0, more[1])))
        starts = np.minimum(np.arange(self.vectors) * self.lanes, max(self.places - self.lanes, 0))
        lanes = (starts[:, None] + np.arange(self.lanes)).ravel()
        return matrix[..., lanes].reshape(self.outer, self.segments, self.groups, self.group, -1)

    def in_tiles(self, spread: np.ndarray) -> np.ndarray:
        """What `spread` gives, in the order of the panels."""
        parts = []
        for run in self.runs:
            width = run.size * self.lanes
            part = spread[..., run.start * self.lanes : run.start * self.lanes + run.count * width]
            split = part.reshape(self.outer, self.segments, self.groups, self.group, run.count, width)
            parts.append(split.transpose(0, 4, 1, 2, 5, 3).reshape(self.outer, -1))
        return np.ascontiguousarray(np.concatenate(parts, axis=1).ravel())


def rounded(array: np.ndarray) -> np.ndarray:
    """The bits of float32 numbers rounded to bfloat16, as uint32: to the nearest, ties to even."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    # Rounding could turn a NaN into an infinity.
    return np.where(np.isnan(array), (bits >> np.uint32(16)) | np.uint32(0x40), nearest).astype(np.uint32)

"""Weights in the order, and in the type, in which a generated kernel reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from heterocc.compiler.lower.cpu.generate.tiles import Run
from heterocc.compiler.lower.cpu.sizes import as_number
from heterocc.compiler.lower.wide_array import in_bits

LEAST = 8192
"""Bytes of float32 below which a weight is packed and stored so: bundles store those of 4096 bytes as they are, too."""


@dataclass(frozen=True, slots=True)
class Panels:
    """The layout [outer][tile][step][place in the tile][term of the step] of a weight argument, as a flat array.

    The array is viewed in `shape`; `order` is the transposition that brings its axes to (outer …, segments …, terms …,
    places …), whose sizes are fields. A step has `group` terms of a segment, one after the other; zeros fill the last
    group of a segment. Places are in vectors of `lanes`, and these in the tiles of `runs`, counted in vectors. A last
    vector that would exceed the end starts earlier and overlaps the previous one; a single one is filled with zeros.
    With `chunk`, terms come in chunks of so many, of which the last one does likewise; terms that two have are zeros in
    the second. `packed` is the type of numbers if it is not the weight's own: "float16", "uint16" for bfloat16, or
    "pairs" of terms that are rounded to bfloat16 and are one element, of int32.
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
    packed: str = ""

    @property
    def key(self) -> str:
        """A name for the layout."""
        sizes = (*self.order, self.outer, self.terms, self.lanes, *(r.size for r in self.runs))
        grouped = (self.segments, self.group, self.chunk)
        more = ("grouped", *grouped) if grouped != (1, 1, 0) else ()
        return "_".join(map(str, (self.packed or "panels", *sizes, *more)))

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
        return sum(as_number(r.count) * r.size for r in self.runs)

    @property
    def pitch(self) -> int:
        """The number of elements of a vector of places, over all steps."""
        return self.steps * self.lanes * (1 if self.packed == "pairs" else self.group)

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
        tiles = self.in_tiles(self.spread(self.narrow(array)))
        return tiles.view(np.int32) if self.packed == "pairs" else tiles

    def narrow(self, array: np.ndarray) -> np.ndarray:
        """A weight in the type in which it is packed."""
        known = in_bits(array, self.packed)
        return NARROWED[self.packed](known) if self.packed and known.dtype == np.float32 else known

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
            width, count, start = run.size * self.lanes, as_number(run.count), as_number(run.start) * self.lanes
            part = spread[..., start : start + count * width]
            split = part.reshape(self.outer, self.segments, self.groups, self.group, count, width)
            parts.append(split.transpose(0, 4, 1, 2, 5, 3).reshape(self.outer, -1))
        return np.ascontiguousarray(np.concatenate(parts, axis=1).ravel())


def rounded(array: np.ndarray) -> np.ndarray:
    """The bits of float32 numbers rounded to bfloat16: to the nearest, ties to even."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    # Rounding could turn a NaN into an infinity.
    return np.where(np.isnan(array), (bits >> np.uint32(16)) | np.uint32(0x40), nearest).astype("<u2")


def _as_half(array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return array.astype(np.float16)


def _as_bfloat(array: np.ndarray) -> np.ndarray:
    """The upper half of the bits."""
    return (array.view(np.uint32) >> np.uint32(16)).astype(np.uint16)


NARROWED: Mapping[str, Callable[[np.ndarray], np.ndarray]]
NARROWED = {"float16": _as_half, "uint16": _as_bfloat, "pairs": rounded}
"""How numbers become those of a type of 16 bits, by its name in compiled code; those of "pairs" are rounded."""


def narrowed(array: np.ndarray, name: str) -> np.ndarray | None:
    """Numbers of float32 in a type of 16 bits; None if that changes a bit of one."""
    known = in_bits(array, name)
    if known.dtype == name:
        return known
    for numbers in (known[:1], known):  # nearly all weights of float32 differ in the first row
        narrow = NARROWED[name](numbers)
        wide = narrow.astype(np.float32) if name == "float16" else (narrow.astype(np.uint32) << 16).view(np.float32)
        if not np.array_equal(wide.view(np.uint32), numbers.view(np.uint32)):
            return None
    return narrow

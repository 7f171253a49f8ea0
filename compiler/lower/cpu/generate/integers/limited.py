"""Weights of 8 bits whose products x86's `vpmaddubsw` adds up in 16 bits without saturation, and what is left of them.

The instruction multiplies unsigned bytes by signed ones and adds neighbouring products. Two products exceed 16 bits
only if both weights are large, as few pairs of trained weights are. What makes these too large is taken out of the
weight and multiplied apart, so that all sums are exact.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from heterocc.compiler.lower.cpu.generate.integers.panels import IntegerPanels
from heterocc.compiler.lower.cpu.sizes import is_number

LIMIT = 128
"""The largest sum of positive weights, and of negative ones, whose products with 255 fit in 16 bits."""

_GROUP = 4
_COSTS = {0: 3.9, 1: 3.0, 2: 2.5}
"""Instructions for a group of four terms, a row and a vector, by depth; 0 is that with products of 16-bit numbers."""
_LEFT_COST = 3.4

_WORD = 4
"""Bytes of a number among the weights."""


@dataclass(frozen=True, slots=True)
class LimitedPanels:
    """A weight argument is to be given as `panels` of what is limited, then what is left of each vector of columns.

    Sums of the products of `depth` neighbouring groups of a segment fit in 16 bits. What is left are at most `capacity`
    entries: the number of the first of each vector, and of all, in 4 bytes each, the offsets of all in the data, in 4
    bytes each, and their weights [entry][lane][term]. The terms of an entry lie in a row in the data, in which segments
    are `steps` apart: length and step of each axis.
    """

    panels: IntegerPanels
    depth: int
    capacity: int
    steps: tuple[tuple[int, int], ...]

    @property
    def argument(self) -> int:
        """The number of the argument."""
        return self.panels.argument

    @property
    def key(self) -> str:
        """A name for the layout."""
        steps = "_".join(f"{length}x{step}" for length, step in self.steps)
        return f"limited_{self.depth}_{self.capacity}_{steps}_{self.panels.key}"

    @property
    def size(self) -> int:
        """Numbers in all."""
        return self.left_weights + self.capacity * self.panels.lanes * _GROUP

    @property
    def left_offsets(self) -> int:
        """The place of the offsets of what is left, after the numbers of entries."""
        return self.panels.size + _WORD * (self.panels.vectors + 1)

    @property
    def left_weights(self) -> int:
        """The place of the weights of what is left."""
        return self.left_offsets + _WORD * self.capacity

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The packed copy of a weight. Raises ValueError if more is left of it than `capacity`."""
        limited, left = _divided(self.panels.spread(array), self.depth, self.panels)
        entries = [self._entries(left, vector) for vector in range(self.panels.vectors)]
        numbers = np.cumsum([0, *map(len, entries)]).astype("<i4")
        if numbers[-1] > self.capacity:
            raise ValueError(f"{numbers[-1]} groups are left of a weight, and there is room for {self.capacity}")
        offsets = np.zeros(self.capacity, "<i4")
        weights = np.zeros((self.capacity, self.panels.lanes, _GROUP), np.int8)
        for number, (offset, columns) in enumerate(itertools.chain.from_iterable(entries)):
            offsets[number] = offset
            weights[number] = columns.T
        parts = [self.panels.in_tiles(limited), numbers.view(np.int8), offsets.view(np.int8), weights.ravel()]
        return np.concatenate(parts)

    def _entries(self, left: Sequence[np.ndarray], vector: int) -> list[tuple[int, np.ndarray]]:
        """The offset in the data and the weights (term, lane) of each group that is left of a vector."""
        found = []
        for part in left:
            columns = _of_vector(part, self.panels, vector)
            for segment, group in np.argwhere(columns.any(axis=(2, 3))):
                first = int(group) * _GROUP
                beyond = max(0, first + _GROUP - self.panels.terms)  # the last group may have fewer terms
                shifted = np.roll(columns[segment, group], beyond, axis=0)
                found.append((self._segment_offset(int(segment)) + first - beyond, shifted))
        return found

    def _segment_offset(self, segment: int) -> int:
        offset = 0
        for length, step in reversed(self.steps):
            segment, place = divmod(segment, length)
            offset += place * step
        return offset


def limited_panels(
    panels: IntegerPanels, arrays: Iterable[np.ndarray], steps: tuple[tuple[int, int], ...]
) -> LimitedPanels | None:
    """The limited form in which the products of some weights by panels of groups of four take the fewest instructions.

    None if products of 16-bit numbers take fewer, for weights of which much is left.
    """
    spread = [panels.spread(array) for array in arrays]
    if not spread or panels.terms < _GROUP:
        return None
    groups = panels.segments * panels.groups
    best, found = _COSTS[0] * groups, None
    for depth in (2, 1):
        counts = [_count(_divided(array, depth, panels)[1], panels) for array in spread]
        cost = _COSTS[depth] * groups + _LEFT_COST * max(counts) / panels.vectors
        if cost < best:
            best, found = cost, LimitedPanels(panels, depth, _capacity(max(counts)), steps)
    return found


def _capacity(count: int) -> int:
    """Room for some groups: at most a fifth more, so that weights of equal sizes mostly share their code."""
    step = max(1, 1 << max(0, count.bit_length() - 4))
    return -(-count // step) * step


def _count(left: Sequence[np.ndarray], panels: IntegerPanels) -> int:
    """The number of groups that are left of all vectors."""
    some = (part.any(axis=2).reshape(-1, panels.vectors, panels.lanes).any(axis=2) for part in left)
    return sum(int(np.count_nonzero(part)) for part in some)


def _of_vector(spread: np.ndarray, panels: IntegerPanels, vector: int) -> np.ndarray:
    return spread[..., vector * panels.lanes : (vector + 1) * panels.lanes]


def _divided(spread: np.ndarray, depth: int, panels: IntegerPanels) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
    """A weight as (segments, groups, 4, columns) in what is limited and two arrays of what is left.

    Neighbouring terms of these are never both left in one array, so that their sums are limited, too.
    """
    limited = spread.copy()
    left = np.zeros_like(spread), np.zeros_like(spread)
    whole = panels.terms // _GROUP // depth * depth
    _take_out(limited[:, :whole], [part[:, :whole] for part in left], depth)
    _take_out(limited[:, whole:], [part[:, whole:] for part in left], 1)
    return limited, left


def _take_out(limited: np.ndarray, left: Sequence[np.ndarray], depth: int) -> None:
    """Move weights to `left`, by the parity of their term, until sums over `depth` groups are limited.

    A single weight is.
    """
    segments, groups, _, columns = limited.shape
    if not limited.size:
        return
    split = [a.reshape(segments, groups // depth, depth, 2, 2, columns) for a in (limited, *left)]
    every, *out = split
    # Of the pairs of each lane, the last weights first.
    for group in reversed(range(depth)):
        for parity in (1, 0):
            if (group, parity) == (0, 0):
                continue
            large = _exceeds(every)
            if not large.any():
                return
            moved = every[:, :, group, :, parity]
            kept = out[parity][:, :, group, :, parity]
            kept[large] = moved[large]
            moved[large] = 0


def _exceeds(split: np.ndarray) -> np.ndarray:
    """Whether the sum of the positive or of the negative weights of each lane's pairs exceeds the limit."""
    positive = np.maximum(split, 0).sum(axis=(2, 4), dtype=np.int16)
    negative = np.minimum(split, 0).sum(axis=(2, 4), dtype=np.int16)
    found: np.ndarray = (positive > LIMIT) | (negative < -LIMIT)
    return found


def steps_of(lengths: Sequence[int], steps: Sequence[int | None]) -> tuple[tuple[int, int], ...] | None:
    """Lengths and steps of axes, None if one is not the same everywhere, or known only at run time."""
    known = [step for step in steps if step is not None and is_number(step)]
    if len(known) < len(steps) or not all(map(is_number, lengths)):
        return None
    return tuple(zip(lengths, known, strict=True))

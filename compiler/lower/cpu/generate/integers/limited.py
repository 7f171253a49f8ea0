"""Weights of 8 bits whose products x86's `vpmaddubsw` adds up in 16 bits without saturation, and what is left of them.

The instruction multiplies unsigned bytes by signed ones and adds neighbouring products. Two products exceed 16 bits
only if both weights are large, as few pairs of trained weights are. What makes these too large is taken out of the
weight and multiplied apart, so that all sums are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.sizes import is_number

LIMIT = 128
"""The largest sum of positive weights, and of negative ones, whose products with 255 fit in 16 bits."""

_GROUP = 4
_COSTS = {2: 2.5, 1: 3.0}
"""Instructions for a group of four terms, a row and a vector, by depth."""
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

    panels: Panels
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
        panels = self.panels
        limited, left = _divided(_spread(panels, array), self.depth, panels)
        entries, inverse = np.unique(left.keys(panels), return_inverse=True)
        if len(entries) > self.capacity:
            raise ValueError(f"{len(entries)} groups are left of a weight, and there is room for {self.capacity}")
        vectors, segments, groups = _entries(entries, panels)
        numbers = np.searchsorted(vectors, np.arange(panels.vectors + 1)).astype("<i4")
        # The last group may have fewer terms: it is read with terms before it.
        beyond = np.maximum(0, (groups + 1) * _GROUP - panels.terms)
        offsets = np.zeros(self.capacity, "<i4")
        offsets[: len(entries)] = self._segment_offset(segments) + groups * _GROUP - beyond
        weights = np.zeros((self.capacity, panels.lanes, _GROUP), np.int8)
        weights[inverse, left.columns % panels.lanes, left.terms + beyond[inverse]] = left.weights
        parts = [panels.in_tiles(limited), numbers.view(np.int8), offsets.view(np.int8), weights.ravel()]
        return np.concatenate(parts)

    def _segment_offset(self, segments: np.ndarray) -> np.ndarray:
        offset: np.ndarray = np.zeros_like(segments)
        for length, step in reversed(self.steps):
            segments, places = np.divmod(segments, length)
            offset = offset + places * step
        return offset


@dataclass(frozen=True, slots=True)
class _Left:
    """Weights that are left: the segment, group, term in the group, and column of all vectors of each."""

    segments: np.ndarray
    groups: np.ndarray
    terms: np.ndarray
    columns: np.ndarray
    weights: np.ndarray

    def keys(self, panels: Panels) -> np.ndarray:
        """The numbers of their entries, ordered by vector: odd and even terms have entries of their own.

        Neighbouring terms are then never both in one entry, so that its sums are limited, too.
        """
        places = (self.columns // panels.lanes * 2 + self.terms % 2) * panels.segments + self.segments
        starts: np.ndarray = places * panels.groups + self.groups
        return starts


def _entries(keys: np.ndarray, panels: Panels) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The vector, segment and group of entries."""
    places, groups = np.divmod(keys, panels.groups)
    vectors, segments = np.divmod(places, panels.segments)
    return vectors // 2, segments, groups


def limited_panels(
    panels: Panels, arrays: Iterable[np.ndarray], steps: tuple[tuple[int, int], ...]
) -> list[tuple[float, LimitedPanels]]:
    """The limited forms of some weights by panels of groups of four, with the instructions for a row and a vector."""
    spread = [_spread(panels, array) for array in arrays]
    if not spread or panels.terms < _GROUP:
        return []
    options = []
    for depth, cost in _COSTS.items():
        count = max(len(np.unique(_divided(array, depth, panels)[1].keys(panels))) for array in spread)
        instructions = cost * panels.steps + _LEFT_COST * count / panels.vectors
        options.append((instructions, LimitedPanels(panels, depth, _capacity(count), steps)))
    return options


def _spread(panels: Panels, array: np.ndarray) -> np.ndarray:
    """A weight as (segments, groups, 4, columns)."""
    return panels.spread(array).reshape(panels.segments, panels.groups, _GROUP, -1)


def _capacity(count: int) -> int:
    """Room for some groups: at most a fifth more, so that weights of equal sizes mostly share their code."""
    step = max(1, 1 << max(0, count.bit_length() - 4))
    return -(-count // step) * step


def _divided(spread: np.ndarray, depth: int, panels: Panels) -> tuple[np.ndarray, _Left]:
    """A weight as (segments, groups, 4, columns) in what is limited and what is left."""
    limited = spread.copy()
    whole = panels.terms // _GROUP // depth * depth
    parts = [_taken_out(limited[:, :whole], depth, 0), _taken_out(limited[:, whole:], 1, whole)]
    return limited, _Left(*map(np.concatenate, zip(*parts, strict=True)))


def _taken_out(limited: np.ndarray, depth: int, first: int) -> list[np.ndarray]:
    """Take weights out until sums over `depth` groups, of which `first` is the first, are limited: the fields of _Left.

    A single weight is limited.
    """
    segments, groups, _, columns = limited.shape
    split = limited.reshape(segments, groups // depth, depth, 2, 2, columns)
    where = np.nonzero(_exceeds([split[:, :, n, :, p] for n in range(depth) for p in (0, 1)]))
    segment, several, pair, column = where
    large = split[segment, several, :, pair, :, column]
    fields: list[list[np.ndarray]] = []
    # The last weights first; each is left whole.
    for group in reversed(range(depth)):
        for parity in (1, 0):
            if (group, parity) == (0, 0):
                continue
            still = _exceeds([large[:, n, p] for n in range(depth) for p in (0, 1)])
            place = first + several[still] * depth + group
            terms = 2 * pair[still] + parity
            fields.append([segment[still], place, terms, column[still], large[still, group, parity]])
            large[still, group, parity] = 0
    split[segment, several, :, pair, :, column] = large
    return [np.concatenate(field) for field in zip(*fields, strict=True)]


def _exceeds(weights: Sequence[np.ndarray]) -> np.ndarray:
    """Whether the sum of the positive or of the negative of several weights exceeds the limit."""
    positive = np.zeros(weights[0].shape, np.int16)
    negative = np.zeros(weights[0].shape, np.int16)
    for weight in weights:
        positive += np.maximum(weight, 0)
        negative += np.minimum(weight, 0)
    exceeding: np.ndarray = (positive > LIMIT) | (negative < -LIMIT)
    return exceeding


def steps_of(lengths: Sequence[int], steps: Sequence[int | None]) -> tuple[tuple[int, int], ...] | None:
    """Lengths and steps of axes, None if one is not the same everywhere, or known only at run time."""
    known = [step for step in steps if step is not None and is_number(step)]
    if len(known) < len(steps) or not all(map(is_number, lengths)):
        return None
    return tuple(zip(lengths, known, strict=True))

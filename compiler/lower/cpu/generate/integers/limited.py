"""Weights of 8 bits whose products x86's `vpmaddubsw` adds up in 16 bits without saturation, and what is left of them.

The instruction multiplies unsigned bytes by signed ones and adds neighbouring products. Two products exceed 16 bits
only if both weights are large, as few pairs of trained weights are. What makes these too large is taken out of the
weight and multiplied apart, so that all sums are exact.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heterocc.compiler.lower.cpu.generate.panels import Panels

LIMIT = 128
"""The largest sum of positive weights, and of negative ones, whose products with 255 fit in 16 bits."""

GROUP = 4

_WORD = 4
"""Bytes of a number among the weights."""


@dataclass(frozen=True, slots=True)
class LimitedPanels:
    """A weight argument is to be given as `panels` of what is limited, then what is left of each vector of columns.

    Sums of the products of `depth` neighbouring groups of a segment fit in 16 bits. What is left are at most `capacity`
    groups: the number of the first of each vector, and of all, in 4 bytes each, the offsets of all in the data, in 4
    bytes each, and their weights [group][lane][term]. Segments are `steps` apart in the data: length and step of each
    axis.
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
        return self.left_weights + self.capacity * self.panels.lanes * GROUP

    @property
    def left_offsets(self) -> int:
        """The place of the offsets of what is left, after the numbers of groups."""
        return self.panels.size + _WORD * (self.panels.vectors + 1)

    @property
    def left_weights(self) -> int:
        """The place of the weights of what is left."""
        return self.left_offsets + _WORD * self.capacity

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The packed copy of a weight. Raises ValueError if more is left of it than `capacity`."""
        panels = self.panels
        limited, left = _divided(panels, array, self.depth)
        vectors, odd, segments, groups = np.nonzero(left.any(axis=(4, 5)))
        if len(groups) > self.capacity:
            raise ValueError(f"{len(groups)} groups are left of a weight, and there is room for {self.capacity}")
        numbers = np.searchsorted(vectors, np.arange(panels.vectors + 1)).astype("<i4")
        offsets = np.zeros(self.capacity, "<i4")
        weights = np.zeros((self.capacity, panels.lanes, GROUP), np.int8)
        weights[: len(groups)] = left[vectors, odd, segments, groups].transpose(0, 2, 1)
        # The last group may have fewer terms: it is read with terms before it.
        beyond = np.maximum(0, (groups + 1) * GROUP - panels.terms)
        for number in np.flatnonzero(beyond):
            weights[number] = np.roll(weights[number], beyond[number], axis=1)
        offsets[: len(groups)] = self._segment_offset(segments) + groups * GROUP - beyond
        return np.concatenate([panels.in_tiles(limited), numbers.view(np.int8), offsets.view(np.int8), weights.ravel()])

    def _segment_offset(self, segments: np.ndarray) -> np.ndarray:
        offset: np.ndarray = np.zeros_like(segments)
        for length, step in reversed(self.steps):
            segments, places = np.divmod(segments, length)
            offset = offset + places * step
        return offset


def groups_left(panels: Panels, array: np.ndarray, depth: int) -> int:
    """How many groups of terms of the vectors of a weight are left."""
    return int(_divided(panels, array, depth)[1].any(axis=(4, 5)).sum())


def room_for(count: int) -> int:
    """Room for some groups: at most a fifth more, so that weights of equal sizes mostly share their code."""
    step = max(1, 1 << max(0, count.bit_length() - 4))
    return -(-count // step) * step


def _divided(panels: Panels, array: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """A weight as `spread` in what is limited, and what is left (vector, odd terms, segment, group, term, lane).

    Even and odd terms are left apart, so that no two of them are added.
    """
    (limited,) = panels.spread(array)
    left = limited.copy()
    whole = panels.terms // GROUP // depth * depth
    for together, part in ((depth, limited[:, :whole]), (1, limited[:, whole:])):
        split = part.reshape(len(part), -1, together, 2, 2, part.shape[-1])
        sums = np.zeros((2, *split[:, :, 0, :, 0].shape), np.int16)
        for group, term in np.ndindex(together, 2):
            weight = split[:, :, group, :, term]
            more = sums + np.stack([np.maximum(weight, 0), -np.minimum(weight, 0, dtype=np.int16)])
            fits = (more <= LIMIT).all(axis=0)
            sums = np.where(fits, more, sums)
            weight *= fits
    left -= limited
    split = left.reshape(*left.shape[:3], panels.vectors, panels.lanes).transpose(3, 0, 1, 2, 4)
    odd = np.arange(GROUP)[:, None] % 2
    return limited[None], np.stack([split * (1 - odd), split * odd], axis=1).astype(np.int8)

"""Weights as pairs of bfloat16, in the order in which a generated kernel reads them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from heterocc.compiler.lower.cpu.generate.panels import Panels


@dataclass(frozen=True, slots=True)
class PairPanels:
    """The layout of `panels` of a weight argument whose terms are rounded to bfloat16 and taken in pairs, as int32.

    The array is viewed in `shape`; `order` is the transposition that brings its axes to (outer …, terms …, places …).
    Terms are `first` rows of `rest`. Those of two successive rows are a pair, the first one in the lower half; zeros
    follow an odd number of rows. The terms and places of `panels` are pairs.
    """

    shape: tuple[int, ...]
    order: tuple[int, ...]
    first: int
    rest: int
    panels: Panels

    @classmethod
    def of(cls, plain: Panels, rest: int = 1) -> PairPanels:
        """The layout of the same weight in panels of float32, whose terms are rows of `rest`."""
        first = plain.terms // rest
        terms = -(-first // 2) * rest
        shape = (plain.outer, terms, plain.places)
        sizes = (plain.outer, terms, plain.places, plain.lanes, plain.runs)
        return cls(plain.shape, plain.order, first, rest, Panels(plain.argument, shape, (0, 1, 2), *sizes))

    @property
    def argument(self) -> int:
        """The number of the argument."""
        return self.panels.argument

    @property
    def key(self) -> str:
        """A name for the layout."""
        return "_".join(["pairs", *map(str, (*self.order, self.first, self.rest)), self.panels.key])

    @property
    def terms(self) -> int:
        """The number of pairs of each place."""
        return self.panels.terms

    @property
    def block(self) -> int:
        """The number of pairs for each place of `outer`."""
        return self.panels.block

    @property
    def size(self) -> int:
        """The total number of pairs."""
        return self.panels.size

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The packed copy of a weight."""
        outer, places = self.panels.outer, self.panels.places
        matrix = array.reshape(self.shape).transpose(self.order).reshape(outer, self.first, self.rest, places)
        if self.first % 2:
            matrix = np.pad(matrix, ((0, 0), (0, 1), (0, 0), (0, 0)))
        words = rounded(matrix)
        pairs = words[:, 0::2] | (words[:, 1::2] << np.uint32(16))
        return self.panels.apply(pairs.view(np.int32).reshape(outer, math.prod(pairs.shape[1:3]), places))


def rounded(array: np.ndarray) -> np.ndarray:
    """The bits of float32 numbers rounded to bfloat16, as uint32: to the nearest, ties to even."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    # Rounding could turn a NaN into an infinity.
    return np.where(np.isnan(array), (bits >> np.uint32(16)) | np.uint32(0x40), nearest).astype(np.uint32)

"""What scheduling a kernel gives: the kernel, and other layouts of its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from tvm import tirx


class Layout(Protocol):
    """How a weight is rewritten, once, when compiling."""

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The weight as the kernel reads it."""
        ...


Layouts = tuple[tuple[int, Layout], ...]
"""Layouts of a kernel's parameters, by their index."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A scheduled kernel, and the parameters that it wants in another layout."""

    function: tirx.PrimFunc
    layouts: Layouts = ()


@dataclass(frozen=True, slots=True)
class LanesLast:
    """Axis `axis` in groups of `lanes`: groups become the first axis, lanes the last, the others stay in order.

    A work item then reads its weights from one end to the other. Zeros fill up the last group, and groups up to
    `least` of them.
    """

    axis: int
    lanes: int
    least: int = 0

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The array in this layout."""
        last = np.moveaxis(array, self.axis, -1)
        missing = max(-(-last.shape[-1] // self.lanes), self.least) * self.lanes - last.shape[-1]
        last = np.pad(last, [(0, 0)] * (last.ndim - 1) + [(0, missing)])
        groups = last.reshape(*last.shape[:-1], -1, self.lanes)
        return np.ascontiguousarray(np.moveaxis(groups, -2, 0))

    def index_map(self, rank: int) -> tirx.IndexMap:
        """The same as TVM's map of indices."""

        def mapped(*axes: tirx.Var) -> tuple[tirx.Expr, ...]:
            others = (axes[i] for i in range(rank) if i != self.axis)
            return (axes[self.axis] // self.lanes, *others, axes[self.axis] % self.lanes)

        return tirx.IndexMap.from_func(mapped, ndim=rank)

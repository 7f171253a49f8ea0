"""The result of scheduling a kernel: the kernel, and the layouts that it needs for its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from tvm import tirx


class Layout(Protocol):
    """A layout to which a weight is rewritten when compiling."""

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The weight in this layout."""
        ...


Layouts = tuple[tuple[int, Layout], ...]
"""Layouts of a kernel's parameters, by their index."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A scheduled kernel, and the layouts of the parameters that it reads repacked."""

    function: tirx.PrimFunc
    layouts: Layouts = ()


@dataclass(frozen=True, slots=True)
class LanesLast:
    """A layout with axis `axis` split into groups of `lanes`: groups become the first axis, lanes the last.

    So a work item reads its weights in memory order. Zeros pad the last group, and add groups up to `least` of them.
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
        """The layout as TVM's index map."""

        def mapped(*axes: tirx.Var) -> tuple[tirx.Expr, ...]:
            others = (axes[i] for i in range(rank) if i != self.axis)
            return (axes[self.axis] // self.lanes, *others, axes[self.axis] % self.lanes)

        return tirx.IndexMap.from_func(mapped, ndim=rank)

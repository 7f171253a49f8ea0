"""Weights in other layouts: the plain array that a packed parameter comes from, and blocks that describe the way.

Large ones may be made only when they are written (`Deferred`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np

from heterocc.artifacts.manifest import MAX_BLOCK_RANK, Block, Layout, Weight
from heterocc.artifacts.weights.layouts import layout_problem, result_dtype
from heterocc.runtime.execute.tvm_api import available_cores
from heterocc.runtime.native import cpu_api

_Size = TypeVar("_Size")

Axis = tuple[int, int, int]
"""Extent of an axis, and its strides in the source and in the result, in elements."""


@dataclass(frozen=True, slots=True, eq=False)
class Deferred:
    """An array of known type whose elements are made each time that they are wanted, by `array`.

    `sha256` is the digest of its elements in row-major order, which are the same each time.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    sha256: str
    make: Callable[[], np.ndarray]

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.size * self.dtype.itemsize


Elements = np.ndarray | Deferred
"""An array, or one that is made when it is wanted."""


def elements(array: Elements) -> np.ndarray:
    """The array itself; makes a deferred one, which the caller should not keep."""
    return array.make() if isinstance(array, Deferred) else array


@dataclass(frozen=True, slots=True, eq=False)
class Arranged:
    """A parameter that a runtime can make: from `source`, in `layout`; `proven` if that was tried."""

    source: Elements
    layout: Layout
    proven: bool = False


def in_layout(source: np.ndarray, wanted: Layout) -> np.ndarray | None:
    """An array in a layout, on all cores; None for a layout that does not fit it."""
    record = Weight(dtype=source.dtype.name, shape=source.shape, offset=0, nbytes=source.nbytes, sha256="0" * 64)
    if layout_problem(record, wanted) is not None:
        return None
    made: np.ndarray = np.zeros(wanted.shape, result_dtype(source.dtype, wanted))
    cpu_api.arrange(source, wanted, made.reshape(-1), available_cores())
    return made


def strides_of(shape: Sequence[_Size]) -> tuple[_Size, ...]:
    """The strides of a row-major array, in elements; its sizes are numbers, or what takes their place."""
    return tuple(math.prod(cast("Sequence[Any]", shape[i + 1 :])) for i in range(len(shape)))


def block(axes: Iterable[Axis], start: int = 0, to: int = 0, planes: int = 0) -> Block:
    """A block from its axes, with neighbouring axes joined that are one in source and result."""
    joined: list[Axis] = []
    for extent, stride, to_stride in axes:
        if extent == 1:
            continue
        if joined:
            before, outer, to_outer = joined[-1]
            if (outer, to_outer) == (extent * stride, extent * to_stride):
                joined[-1] = (before * extent, stride, to_stride)
                continue
        joined.append((extent, stride, to_stride))
    extents, strides, to_strides = zip(*joined, strict=True) if joined else ((), (), ())
    return Block(extents=extents, start=start, strides=strides, to=to, to_strides=to_strides, planes=planes)


def layout(
    shape: Iterable[int], blocks: Sequence[Block], matrix: Sequence[Sequence[float]] | None = None
) -> Layout | None:
    """A layout of blocks, None if one has too many axes for a bundle."""
    if any(len(b.extents) > MAX_BLOCK_RANK for b in blocks):
        return None
    rows = None if matrix is None else tuple((float(a), float(b), float(c)) for a, b, c in matrix)
    return Layout(shape=tuple(int(n) for n in shape), blocks=tuple(blocks), matrix=rows)

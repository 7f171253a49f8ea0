"""Transposed arrays: copies of them, and their layouts as layouts of the arrays before the transposition.

numpy copies a large transposed array at less than a gigabyte a second, blocks of a layout several times as fast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from heterocc.artifacts.manifest import Block, Layout
from heterocc.compiler.lower.arranged import Arranged, Axis, block, in_layout, layout, strides_of


def repacked(
    source: np.ndarray, found: Layout | None, apply: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, Arranged | None]:
    """A weight in the layout `found`, and how a runtime makes it; by `apply` alone if blocks do not describe it.

    It is made from the array that a transposed one is a view of, where it can be: others may read this one, too.
    """
    if found is None:
        return apply(source), None
    constant, order = before_transposing(source)
    direct = None if order is None else of_transposed(found, constant.shape, order)
    plain, wanted = (contiguous(source), found) if direct is None else (constant, direct)
    made = in_layout(plain, wanted)
    return (apply(source), None) if made is None else (made, Arranged(plain, wanted, proven=True))


def before_transposing(array: np.ndarray) -> tuple[np.ndarray, tuple[int, ...] | None]:
    """The array in row-major order that another is a view of, and the order of axes that makes the view of it.

    The array itself, and None, if it is row-major already, or no such view.
    """
    if array.flags.c_contiguous:
        return array, None
    outside_in = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    constant = array.transpose(outside_in)
    if not constant.flags.c_contiguous:
        return array, None
    return constant, tuple(outside_in.index(axis) for axis in range(array.ndim))


def contiguous(array: np.ndarray) -> np.ndarray:
    """The array in row-major order: itself, or a copy."""
    constant, order = before_transposing(array)
    return np.ascontiguousarray(array) if order is None else in_order(constant, order)


def in_order(constant: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """A copy of an array with its axes in another order, and its elements in the order of these."""
    transposed = constant.transpose(order)
    if constant.flags.c_contiguous and constant.dtype.itemsize in (1, 2, 4, 8):
        shape, steps = transposed.shape, [strides_of(constant.shape)[axis] for axis in order]
        plain = layout(shape, [block(zip(shape, steps, strides_of(shape), strict=True))])
        made = None if plain is None else in_layout(constant, plain)
        if made is not None:
            return made
    return np.ascontiguousarray(transposed)


def of_transposed(wanted: Layout, shape: Sequence[int], order: Sequence[int]) -> Layout | None:
    """A layout of an array of `shape` with its axes in another order, as a layout of the array itself.

    None for one with a matrix, which needs groups of neighbouring elements, and for one whose blocks would have too
    many axes, or have steps that are not the same everywhere in the array.
    """
    if wanted.matrix is not None:
        return None
    transposed, steps = [shape[axis] for axis in order], [strides_of(shape)[axis] for axis in order]
    blocks = [_of_transposed(found, transposed, steps) for found in wanted.blocks]
    known = [found for found in blocks if found is not None]
    made = layout(wanted.shape, known) if len(known) == len(blocks) else None
    return None if made is None else made.model_copy(update={"widens": wanted.widens})


def _of_transposed(found: Block, transposed: Sequence[int], steps: Sequence[int]) -> Block | None:
    """A block that reads an array of shape `transposed`, with `steps` in place of its strides."""
    start = _digits(found.start, transposed)
    if start is None:
        return None
    axes: list[Axis] = []
    last = list(start)
    for extent, stride, to in zip(found.extents, found.strides, found.to_strides, strict=True):
        for part, stride_of_part, to_of_part in _within(extent, stride, to, transposed):
            digits = _digits(stride_of_part, transposed)
            if digits is None:
                return None
            last = [n + (part - 1) * d for n, d in zip(last, digits, strict=True)]
            axes.append((part, sum(d * step for d, step in zip(digits, steps, strict=True)), to_of_part))
    if any(n >= size for n, size in zip(last, transposed, strict=True)):  # an index would be carried to the next axis
        return None
    return block(axes, sum(n * step for n, step in zip(start, steps, strict=True)), found.to)


def _within(extent: int, stride: int, to: int, transposed: Sequence[int]) -> list[Axis]:
    """An axis of a block, divided where it goes from one axis of the array to the next."""
    for axis in reversed(range(len(transposed))):
        inner = math.prod(transposed[axis + 1 :])
        size = inner * transposed[axis]
        if inner <= stride < size and size % stride == 0 and extent > size // stride and extent * stride % size == 0:
            count = size // stride
            return [*_within(extent // count, size, to * count, transposed), (count, stride, to)]
    return [(extent, stride, to)]


def _digits(number: int, transposed: Sequence[int]) -> list[int] | None:
    """A number of elements as steps along each axis; None if it leaves the array."""
    digits = []
    for size in reversed(transposed):
        digits.append(number % size if size else 0)
        number = number // size if size else number
    return None if number else digits[::-1]

"""Weights in other layouts, as `Layout` of the manifest describes them; FORMAT.md is the specification."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from heterocc.artifacts.dtypes import STORAGE
from heterocc.artifacts.manifest import Block, Layout, Weight

if TYPE_CHECKING:
    import numpy.typing as npt

GROUP = 9
"""Elements of a group that a matrix transforms: 3 x 3 taps of a convolution."""

CODES = {"float16": "float16", "bfloat16": "uint16"}
"""The dtype of a weight that a layout widens, by its format."""

MAX_GROWTH = 8
MAX_EXTRA = 1 << 16
"""A layout may have as many bytes as this multiple of the weight's, and this number more."""


def layout_problem(weight: Weight, layout: Layout) -> str | None:
    """Why a layout cannot be made from a weight, as the end of a sentence; None if it can.

    After this check every block is inside the weight and inside the layout.
    """
    size = math.prod(layout.shape)
    if layout.widens is not None and weight.dtype != CODES[layout.widens]:
        return f"widens a weight of {weight.dtype}"
    stored = STORAGE[weight.dtype]
    if size * result_dtype(stored, layout).itemsize > MAX_GROWTH * weight.nbytes + MAX_EXTRA:
        return "is too large for its weight"
    if layout.matrix is not None and result_dtype(stored, layout) != np.float32:
        return f"transforms a weight of {weight.dtype}"
    planes = 1 if layout.matrix is None else len(layout.matrix) ** 2
    group = 1 if layout.matrix is None else GROUP
    elements = math.prod(weight.shape)
    for block in layout.blocks:
        if not len(block.extents) == len(block.strides) == len(block.to_strides):
            return "has a block with different numbers of extents and strides"
        last = block.start + sum((n - 1) * s for n, s in zip(block.extents, block.strides, strict=True))
        if last + group > elements:
            return "has a block outside its weight"
        last = block.to + sum((n - 1) * s for n, s in zip(block.extents, block.to_strides, strict=True))
        if last + (planes - 1) * block.planes >= size:
            return "has a block outside itself"
    return None


def result_dtype(dtype: np.dtype[Any], layout: Layout) -> np.dtype[Any]:
    """The dtype of a layout of a weight of this dtype."""
    return dtype if layout.widens is None else np.dtype(np.float32)


def widened(array: npt.NDArray[Any], layout: Layout) -> npt.NDArray[Any]:
    """The weight as float32 if the layout widens it, else as it is."""
    if layout.widens == "float16":
        return array.astype(np.float32)
    if layout.widens == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array


def arranged(array: npt.NDArray[Any], layout: Layout) -> npt.NDArray[Any]:
    """A weight in a layout, as a new array. The layout must have no problem according to `layout_problem`."""
    result = np.zeros(math.prod(layout.shape), result_dtype(array.dtype, layout))
    arrange(array, layout, result)
    return result.reshape(layout.shape)


def arrange(array: npt.NDArray[Any], layout: Layout, result: npt.NDArray[Any]) -> None:
    """Write the elements of `layout.blocks` to `result`, which is flat and holds zeros."""
    flat = widened(array, layout).reshape(-1)
    for block in layout.blocks:
        if layout.matrix is None:
            _view(result[block.to :], block.extents, block.to_strides)[...] = _view(
                flat[block.start :], block.extents, block.strides
            )
        else:
            _transform(flat, np.array(layout.matrix), block, result)


def _transform(flat: npt.NDArray[Any], matrix: npt.NDArray[Any], block: Block, result: npt.NDArray[Any]) -> None:
    groups = _view(flat[block.start :], (*block.extents, 3, 3), (*block.strides, 3, 1)).astype(np.float64)
    rows = len(matrix)
    places = _view(
        result[block.to :], (*block.extents, rows, rows), (*block.to_strides, rows * block.planes, block.planes)
    )
    places[...] = matrix @ groups @ matrix.T


def _view(flat: npt.NDArray[Any], shape: tuple[int, ...], strides: tuple[int, ...]) -> npt.NDArray[Any]:
    return np.lib.stride_tricks.as_strided(flat, shape, tuple(s * flat.itemsize for s in strides))

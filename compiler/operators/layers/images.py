"""Operators that sample maps at computed places."""

from __future__ import annotations

import math

import numpy as np

from heterocc.compiler.operators.arrays.indexing import rows_of, some
from heterocc.compiler.operators.record import COORDINATES, MICROSOFT, Operator, Renamed
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size, number


def resize(needs: Needs) -> None:
    """Resize and Upsample: a factor or a size for each axis."""
    given, rank = needs.given, len(needs.shape(0))
    if given.node.op_type == "Upsample" or given.opset < 11:
        needs.equal(1, 0, rank)
        return
    axes = given.attribute("axes") or range(rank)
    count = len(axes)
    wanted = given.sizes(3) if given.has(3) else None
    if wanted is not None and len(wanted) == count:
        for axis, size in zip(axes, wanted, strict=True):
            if size is not None and size.number != 0:
                needs.at_least(0, axis, 1)
    for place in (2, 3):
        known = needs.size(place, 0)
        if known is not None and known.number != 0:  # an empty one is as an absent one
            needs.equal(place, 0, count)


def affine_grid(needs: Needs) -> None:
    """AffineGrid: a matrix for each item of the batch."""
    wanted = needs.given.sizes(1)
    if wanted is not None:
        needs.shaped(0, [wanted[0], number(len(wanted) - 2), number(len(wanted) - 1)])
        for size in wanted[2:]:
            needs.relate(size, "at_least", number(1), "a size of the grid")


def roi_align(needs: Needs) -> None:
    """RoiAlign: a number of the batch for each region, which has four numbers."""
    needs.equal(2, 0, needs.size(1, 0))
    needs.equal(1, 1, 4)
    for axis in range(4):
        needs.at_least(0, axis, some(needs, 1) if axis != 1 else 0)


def max_roi_pool(needs: Needs) -> None:
    """MaxRoiPool: a region has the number of its image and four others."""
    needs.equal(1, 1, 5)


def grid_sample(needs: Needs) -> None:
    """GridSample: a grid for each item of the batch, with a number for each spatial axis."""
    data = needs.shape(0)
    needs.equal(1, 0, needs.size(0, 0))
    needs.equal(1, -1, len(data) - 2)
    for axis in range(2, len(data)):
        needs.at_least(0, axis, some(needs, 1))


def _resize_shapes(given: Given) -> list[Shape] | None:
    shape = given.first
    dims = list(shape)
    axes = [int(a) % len(shape) for a in given.attribute("axes") or range(len(shape))]
    found: list[Size | None] | None = None
    if given.has(3):
        wanted = None if given.attribute("keep_aspect_ratio_policy", b"stretch") != b"stretch" else given.sizes(3)
        found = None if wanted is None else [*wanted]
    else:
        place = 2 if given.opset >= 11 else 1
        scales = given.constants[place] if place < len(given.constants) else None
        if scales is not None and scales.size == len(axes):
            found = [
                None if d is None else _scaled(d, float(s))
                for d, s in zip((dims[a] for a in axes), scales, strict=True)
            ]
    if found is None or len(found) != len(axes):
        found = [None] * len(axes)
    for axis, size in zip(axes, found, strict=True):
        dims[axis] = size
    return [tuple(dims)]


def _scaled(size: Size, scale: float) -> Size | None:
    """A size times a scale, rounded down; None unless the scale or its reciprocal is a whole number.

    The product of numbers is rounded to float32, as in ONNX Runtime: 160 times 0.7 is 112. ONNX infers 111.
    """
    if size.number is not None:
        return number(math.floor(np.float32(size.number) * np.float32(scale)))
    if scale >= 1:
        return size * number(int(scale)) if scale.is_integer() else None
    parts = 1 / scale if scale > 0 else 0.0
    # Other reciprocals than those of powers of two are rounded, and their product with a multiple may be less than 1.
    return quotient(size, number(int(parts))) if parts and math.log2(parts).is_integer() else None


def grid_shapes(given: Given) -> list[Shape] | None:
    """AffineGrid: the batch of the matrices, the spatial sizes, and the number of these."""
    theta, count = given.shape(), given.shape(1)
    rank = count[0].number if count is not None and count[0] is not None else None
    if theta is None or rank is None or rank < 3:
        return None
    wanted = given.sizes(1)
    space = [None] * (rank - 2) if wanted is None else wanted[2:]
    return [(theta[0], *space, number(rank - 2))]


_RESIZING = (
    "antialias coordinate_transformation_mode cubic_coeff_a exclude_outside extrapolation_value mode "
    "keep_aspect_ratio_policy nearest_mode"
)

_OF_FIRST_IMAGE = (0.0, 1.0)
"""Numbers with which a region of MaxRoiPool is of the first image, whose number is among its coordinates."""

OPERATORS = (
    Operator(
        "Resize",
        shapes=_resize_shapes,
        misjudged=True,
        needs=resize,
        rank_from=(2, 3),
        settings=True,
        reads_reals=True,
        flops=7,
        unread=_RESIZING,
    ),
    Operator("Upsample", needs=resize, settings=True, reads_reals=True, flops=7),
    Operator("GridSample", needs=grid_sample, float32_inputs=COORDINATES),
    Operator("GridSample", MICROSOFT, renamed=Renamed("result = GridSample (x, grid)", ("x", "grid"), since=16)),
    Operator("AffineGrid", shapes=grid_shapes, sized=True, needs=affine_grid, float32_inputs=COORDINATES),
    Operator("RoiAlign", below={2: rows_of(0)}, needs=roi_align, settings=True, float32_inputs=COORDINATES, steep=True),
    Operator("MaxRoiPool", intervals={1: _OF_FIRST_IMAGE}, needs=max_roi_pool, float32_inputs=COORDINATES, steep=True),
)

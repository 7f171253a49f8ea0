"""Operators that sample maps at computed places."""

from __future__ import annotations

from heterocc.compiler.operators.indexing import some
from heterocc.compiler.operators.record import COORDINATES, Operator
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import number


def resize(needs: Needs) -> None:
    """Resize and Upsample: a factor or a size for each axis."""
    given, rank = needs.given, len(needs.shape(0))
    if given.node.op_type == "Upsample" or given.opset < 11:
        needs.equal(1, 0, rank)
        return
    count = len(given.attribute("axes") or range(rank))
    for place in (2, 3):
        known = needs.size(place, 0)
        if known is not None and known.number != 0:  # an empty one is as an absent one
            needs.equal(place, 0, count)


def affine_grid(needs: Needs) -> None:
    """AffineGrid: a matrix for each item of the batch."""
    wanted = needs.given.sizes(1)
    if wanted is not None:
        needs.shaped(0, [wanted[0], number(len(wanted) - 2), number(len(wanted) - 1)])


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


_RESIZING = (
    "antialias coordinate_transformation_mode cubic_coeff_a exclude_outside extrapolation_value "
    "keep_aspect_ratio_policy nearest_mode"
)

OPERATORS = (
    Operator("Resize", needs=resize, rank_from=(2, 3), settings=True, flops=7, unread=_RESIZING),
    Operator("Upsample", needs=resize, settings=True, flops=7),
    Operator("GridSample", needs=grid_sample, float32_inputs=COORDINATES),
    Operator("AffineGrid", needs=affine_grid, float32_inputs=COORDINATES),
    Operator("RoiAlign", needs=roi_align, settings=True, float32_inputs=COORDINATES, steep=True),
    Operator("MaxRoiPool", needs=max_roi_pool, float32_inputs=COORDINATES, steep=True),
)

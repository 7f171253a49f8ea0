"""Operators that give elements another shape or order, or read shapes and make tensors of them."""

from __future__ import annotations

from heterocc.compiler.operators.record import COUNTS, FIRST, Operator, nothing
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import product_of


def same_count(needs: Needs) -> None:
    """Reshape and its kin: the result has as many elements."""
    first, result = needs.shape(0), needs.result
    if first and result is not None and None not in first and None not in result:
        sizes = [product_of(d for d in shape if d is not None) for shape in (first, result)]
        needs.relate(sizes[0], "equal", sizes[1], f"the number of elements of {needs.name(0)}")


def squeeze(needs: Needs) -> None:
    """Squeeze: an axis that is removed has one element."""
    given = needs.given
    for axis in given.numbers(1, "axes" if given.opset < 13 else None) or ():
        needs.equal(0, axis, 1)
    same_count(needs)


def expand(needs: Needs) -> None:
    """Expand: each size is the data's, or one of the two is 1."""
    wanted = needs.given.elements(1)
    if wanted is not None:
        needs.fits(0, wanted)


def tile(needs: Needs) -> None:
    """Tile: a number for each axis."""
    if needs.shape(0):
        needs.equal(1, 0, len(needs.shape(0)))


def depth_to_space(needs: Needs) -> None:
    """DepthToSpace: the channels are those of whole blocks."""
    needs.multiple(0, 1, needs.given.attribute("blocksize", 1) ** 2)


def space_to_depth(needs: Needs) -> None:
    """SpaceToDepth: the sides are whole blocks."""
    for axis in (2, 3):
        needs.multiple(0, axis, needs.given.attribute("blocksize", 1))


def numbered(needs: Needs) -> None:
    """Range: three numbers."""
    needs.single(0, 1, 2)


OPERATORS = (
    Operator("Reshape", needs=same_count, rank_from=(1,), moves=FIRST, settings=True, unread="allowzero"),
    Operator("Flatten", needs=same_count, moves=FIRST, unread="axis"),
    Operator("Unsqueeze", needs=same_count, moves=FIRST, axes=1, settings=True, unread="axes"),
    Operator("Squeeze", needs=squeeze, moves=FIRST, axes=1, settings=True, unread="axes"),
    Operator("Expand", needs=expand, chooses=True, rank_from=(1,), moves=FIRST, settings=True),
    Operator("Tile", needs=tile, moves=FIRST, settings=True),
    Operator("Transpose", needs=nothing, moves=FIRST),
    Operator("DepthToSpace", needs=depth_to_space, moves=FIRST),
    Operator("SpaceToDepth", needs=space_to_depth, moves=FIRST),
    Operator("Shape", needs=nothing, flops=0),
    Operator("Size", needs=nothing, flops=0),
    Operator("Constant", needs=nothing, flops=0),
    Operator("ConstantOfShape", needs=nothing, rank_from=(0,), settings=True, flops=0),
    Operator("EyeLike", needs=nothing, flops=0, unread="dtype"),
    Operator("Range", needs=numbered, settings=True, float32_results=COUNTS, flops=0, unread="stash_type"),
)

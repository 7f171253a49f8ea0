"""Operators that give elements another shape or order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import onnx

from heterocc.compiler.operators.record import (
    FIRST,
    FLAT,
    MICROSOFT,
    Known,
    Operator,
    Ranks,
    Renamed,
    nothing,
    rank_of_result,
)
from heterocc.compiler.symbolic.comparisons import broadcast_size
from heterocc.compiler.symbolic.contents import same_contents
from heterocc.compiler.symbolic.fractions import same_fractions
from heterocc.compiler.symbolic.given import Contents, Given, Shape
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size, number, product_of


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


def _reshape_shapes(given: Given) -> list[Shape] | None:
    shape, wanted = given.shape(), given.elements(1)
    if given.opset < 5:
        wanted = [number(int(n)) for n in given.attribute("shape")]
    if shape is None or wanted is None:
        return None
    copied = given.attribute("allowzero", 0) == 0
    dims: list[Size | None] = []
    for axis, size in enumerate(wanted):
        if size is not None and size.number == 0 and copied:
            dims.append(shape[axis] if axis < len(shape) else None)
        else:
            dims.append(size)
    places = [axis for axis, size in enumerate(dims) if size is not None and size.number == -1]
    if places:
        rest = [d for axis, d in enumerate(dims) if axis not in places]
        dims[places[0]] = None
        if len(places) == 1 and None not in shape and None not in rest:
            total = product_of(d for d in shape if d is not None)
            dims[places[0]] = quotient(total, product_of(d for d in rest if d is not None))
    return [tuple(dims)]


def _flatten_shapes(given: Given) -> list[Shape] | None:
    shape = given.shape()
    if shape is None or None in shape:
        return None
    axis = given.attribute("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return [tuple(product_of(d for d in part if d is not None) for part in (shape[:axis], shape[axis:]))]


def _expand_shapes(given: Given) -> list[Shape] | None:
    shape, wanted = given.shape(), given.elements(1)
    if shape is None or wanted is None:
        return None
    rank = max(len(shape), len(wanted))
    own: list[Size | None] = [*[number(1)] * (rank - len(shape)), *shape]
    asked: list[Size | None] = [*[number(1)] * (rank - len(wanted)), *wanted]
    return [tuple(broadcast_size(a, b) for a, b in zip(own, asked, strict=True))]


def _tile_shapes(given: Given) -> list[Shape] | None:
    shape, times = given.shape(), given.sizes(1)
    if shape is None or times is None:
        return None
    return [tuple(None if d is None else d * n for d, n in zip(shape, times, strict=True))]


def _blocks_shapes(given: Given) -> list[Shape] | None:
    shape, size = given.shape(), number(given.attribute("blocksize"))
    if shape is None or len(shape) != 4 or None in shape:
        return None
    batch, channels, *space = (d for d in shape if d is not None)
    if given.node.op_type == "DepthToSpace":
        return [(batch, quotient(channels, size * size), *(d * size for d in space))]
    return [(batch, channels * size * size, *(quotient(d, size) for d in space))]


def axes_shapes(given: Given) -> list[Shape] | None:
    """Unsqueeze and Squeeze by computed axes: the rank is known, if their number is."""
    shape, axes = given.shape(), given.shape(1)
    if shape is None or axes is None or not given.has(1) or given.numbers(1) is not None:
        return None
    count = axes[0].number if len(axes) == 1 and axes[0] is not None else None
    if not count:
        return None
    rank = len(shape) + (count if given.node.op_type == "Unsqueeze" else -count)
    return [(None,) * rank] if rank >= 0 else None


def _expand_contents(given: Given) -> Contents | None:
    data, dims = given.contents[0], given.numbers(1)
    if data is None or dims is None:
        return None
    return np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(dims)))


def transpose_contents(given: Given) -> Contents | None:
    """Exporters of TorchScript turn the padding of a tensor around in this way."""
    data = given.contents[0]
    return None if data is None else np.transpose(data, given.attribute("perm"))


def _settled_reshape(given: Given, result: Sequence[Size | None]) -> dict[int, list[int]]:
    shape = given.shape()
    if shape is None or not result or given.attribute("allowzero", 0):
        return {}
    numbers = []
    for axis, size in enumerate(result):
        if size is not None and size.number is not None:
            numbers.append(size.number or -2)
        else:
            numbers.append(0 if size is not None and axis < len(shape) and shape[axis] == size else -1)
    return {1: numbers} if numbers.count(-1) < 2 and -2 not in numbers else {}


def _settled_expand(given: Given, result: Sequence[Size | None]) -> dict[int, list[int]]:
    shape, wanted = given.shape(), given.sizes(1)
    if shape is None or wanted is None:
        return {}
    numbers = []
    for place, size in enumerate(wanted):
        axis = place - len(wanted) + len(shape)
        if size.number is not None:
            numbers.append(size.number)
        elif axis >= 0 and shape[axis] == size:
            numbers.append(1)
        else:
            return {}
    return {1: numbers}


def _filled(given: Given, result: Shape, unknown: Collection[str]) -> dict[int, tuple[Size, ...]]:
    """Reshape: a size of the data follows from the other ones and the result's."""
    own = [size for size in given.shape() or () if size is not None]
    if result is None or None in result:
        return {}
    total = product_of(size for size in result if size is not None)
    for axis, size in enumerate(own):
        rest = product_of(own[:axis] + own[axis + 1 :])
        wanted = quotient(total, rest)
        if not size.names.isdisjoint(unknown) and wanted is not None and wanted * rest == total:
            return {} if wanted == size else {0: (*own[:axis], wanted, *own[axis + 1 :])}
    return {}


def _rows(_node: onnx.NodeProto, count: int, _known: Known) -> list[int]:
    """Reshape: a shape that any data can have."""
    return [-1, *[1] * (count - 1)]


def _of_axes(name: str, needs: Callable[[Needs], None], length: Ranks) -> Operator:
    return Operator(
        name,
        keeps_order=True,
        length="first",
        listed=True,
        length_from_ranks=length,
        fractions=same_fractions,
        contents=same_contents,
        shapes=axes_shapes,
        needs=needs,
        moves=FIRST,
        axes=1,
        settings=True,
        unread="axes",
    )


OPERATORS = (
    Operator(
        "Reshape",
        keeps_order=True,
        vectors={1: _rows},
        settled=_settled_reshape,
        shaped=_filled,
        copies_sizes=True,
        fractions=same_fractions,
        contents=same_contents,
        shapes=_reshape_shapes,
        needs=same_count,
        rank_from=(1,),
        length_from_ranks=rank_of_result,
        moves=FIRST,
        settings=True,
        unread="allowzero",
    ),
    Operator(
        "Flatten",
        keeps_order=True,
        contents=same_contents,
        shapes=_flatten_shapes,
        needs=same_count,
        moves=FIRST,
        unread="axis",
    ),
    Operator(
        "ExpandDims",
        MICROSOFT,
        renamed=Renamed(
            FLAT + "wide = Cast <to = 7> (axis)\naxes = Reshape (wide, flat)\nresult = Unsqueeze (x, axes)",
            ("x", "axis"),
        ),
    ),
    _of_axes("Unsqueeze", same_count, lambda _, inputs, result: None if inputs[0] is None else result - inputs[0]),
    _of_axes("Squeeze", squeeze, lambda _, inputs, result: None if inputs[0] is None else inputs[0] - result),
    Operator(
        "Expand",
        settled=_settled_expand,
        contents=_expand_contents,
        shapes=_expand_shapes,
        needs=expand,
        chooses=True,
        rank_from=(1,),
        length_from_ranks=rank_of_result,
        moves=FIRST,
        settings=True,
    ),
    Operator("Tile", shapes=_tile_shapes, sized=True, needs=tile, moves=FIRST, settings=True),
    Operator("Transpose", contents=transpose_contents, needs=nothing, moves=FIRST),
    Operator("DepthToSpace", shapes=_blocks_shapes, needs=depth_to_space, moves=FIRST),
    Operator("SpaceToDepth", shapes=_blocks_shapes, needs=space_to_depth, moves=FIRST),
)

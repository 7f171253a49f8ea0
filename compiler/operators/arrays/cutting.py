"""Operators that split tensors, pad them and join them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np
import onnx

from heterocc.compiler.operators.record import EVERY, FIRST, FLAT, MICROSOFT, Known, Operator, Renamed
from heterocc.compiler.symbolic.alike import alike
from heterocc.compiler.symbolic.contents import array
from heterocc.compiler.symbolic.given import Contents, Given, Shape, known_numbers
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size, larger, number, smaller


def _padding(given: Given, rank: int) -> list[tuple[int, Size | None, Size | None]] | None:
    """Each axis that a Pad changes, with the padding before and after it; None if they are not known."""
    axes = given.numbers(3) if given.has(3) else list(range(rank))
    pads = given.elements(1) if given.opset >= 11 else [number(int(n)) for n in given.attribute("pads", ())]
    if axes is None or pads is None or len(pads) != 2 * len(axes):
        return None
    return list(zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True))


def pad(needs: Needs) -> None:
    """Pad: what is cut off is there, and so is what is repeated."""
    given, data = needs.given, needs.shape(0)
    needs.single(2)
    places = needs.size(3, 0) if given.has(3) else number(len(data)) if data else None
    if given.opset >= 11 and places is not None:
        needs.equal(1, 0, places * number(2))
    mode = given.attribute("mode", b"constant")
    none, one = number(0), number(1)
    for axis, before, after in _padding(given, len(data)) or ():
        size = needs.size(0, axis)
        if size is None or before is None or after is None:
            continue
        what = f"dimension {axis % len(data)} of {needs.name(0)}"
        needs.relate(size + before + after, "at_least", none, f"{what} and its padding")
        if mode == b"constant":
            continue
        left = size + smaller(before, none) + smaller(after, none)
        if left != size:
            needs.relate(left, "at_least", one, f"{what}, without what the padding cuts off,")
        for added in (larger(before, none), larger(after, none)):
            # An edge and a turn of the whole need one element, and a reflection one more than it repeats.
            repeated = smaller(added, one)
            needs.relate(left, "at_least", added + repeated if mode == b"reflect" else repeated, what)


def concat(needs: Needs) -> None:
    """Concat: all other axes are equal."""
    first = needs.shape(0)
    axis = needs.given.attribute("axis", 1)
    for number_, (one, other) in enumerate(pairwise(needs.given.shapes)):
        if one is None or other is None or len(one) != len(other) or not first:
            continue
        for place, size in enumerate(first):
            if place != axis % len(first):
                needs.equal(number_ + 1, place, size)


def _parts(given: Given) -> list[Size] | None:
    """The lengths that a Split is given; None if there are none, or they are not known."""
    if given.opset >= 13:
        return given.sizes(1)
    found = given.attribute("split")
    return None if found is None else [number(int(n)) for n in found]


def split(needs: Needs) -> None:
    """Split: the parts are all of the axis, or equal parts, of which the last one may be smaller."""
    given = needs.given
    axis, size = given.attribute("axis", 0), needs.size(0, given.attribute("axis", 0))
    parts = _parts(given)
    count = number(len(given.node.output))
    if given.opset >= 13 and len(given.node.output) > 1:  # a node that computes the sizes of the parts has one output
        needs.equal(1, 0, count)
    if parts:
        needs.equal(0, axis, sum(parts, number(0)))
    elif given.has(1) or size is None:
        return
    elif given.opset < 18:
        needs.multiple(0, axis, count)
    else:
        part = quotient(size + count - number(1), count)
        needs.at_least(0, axis, None if part is None else part * (count - number(1)))


def concatenated(given: Sequence[Shape], axis: int) -> Shape:
    """The shape of tensors that are joined along an axis; None if the rank of one is not known."""
    shapes = [s for s in given if s is not None]
    if len(shapes) < len(given):
        return None
    axis %= len(shapes[0])
    dims: list[Size | None] = []
    for place, sizes in enumerate(zip(*shapes, strict=True)):
        known = [s for s in sizes if s is not None]
        if place == axis:
            dims.append(sum(known, number(0)) if len(known) == len(sizes) else None)
        else:
            fixed = [s for s in known if s.number is not None]
            dims.append(next(iter(fixed or known), None))
    return tuple(dims)


def _concat_shapes(given: Given) -> list[Shape] | None:
    found = concatenated(given.shapes, given.attribute("axis"))
    return None if found is None else [found]


def _split_shapes(given: Given) -> list[Shape] | None:
    shape, count = given.first, len(given.node.output)
    axis = given.attribute("axis", 0) % len(shape)
    size = shape[axis]
    parts = _parts(given)
    sizes: list[Size | None]
    if parts is not None:
        sizes = [*parts]
    elif given.has(1) or size is None:
        sizes = [None] * count
    else:
        # What remains for the last part, or that the parts are equal, is a requirement (`split`).
        equal = given.opset < 18
        part = quotient(size if equal else size + number(count - 1), number(count))
        sizes = [part] * count
        if part is not None and not equal:
            sizes[-1] = larger(size - part * number(count - 1), number(0))  # a last part may be empty
    return [(*shape[:axis], s, *shape[axis + 1 :]) for s in sizes]


def _pad_shapes(given: Given) -> list[Shape] | None:
    shape = given.first
    padding = _padding(given, len(shape))
    if padding is None:
        return [(None,) * len(shape)]
    dims = list(shape)
    for axis, before, after in padding:
        size = dims[axis]
        dims[axis] = None if size is None or before is None or after is None else size + before + after
    return [tuple(dims)]


def _concat_contents(given: Given) -> Contents | None:
    parts: list[Contents] = []
    for index, shape in enumerate(given.shapes):
        found, dims = given.contents[index], known_numbers(shape)
        if found is None and dims is None:
            return None
        parts.append(array([None] * int(np.prod(dims or ())), dims or ()) if found is None else found)
    return np.concatenate(parts, axis=given.attribute("axis"))


def split_contents(given: Given) -> Contents | None:
    """The first part."""
    data, count = given.contents[0], len(given.node.output)
    if data is None:
        return None
    axis = given.attribute("axis", 0) % data.ndim
    parts = _parts(given)
    if given.has(1) and parts is None:
        return None
    first = parts[0].number if parts is not None else -(-data.shape[axis] // count)
    return None if first is None else data.take(range(first), axis)


def _lengths(node: onnx.NodeProto, count: int, known: Known) -> list[int] | None:
    """Split: lengths of all parts of a whole."""
    shape = known.shape(node.input[0])
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    return [*[1] * (count - 1), (shape[axis] or count) - count + 1] if shape else None


def _joined(given: Given, _result: Shape, unknown: Collection[str]) -> dict[int, tuple[Size, ...]]:
    """Concat: all sizes but those along its axis are equal."""
    rank = len(given.first)
    if not all(s is not None and len(s) == rank and None not in s for s in given.shapes):
        return {}
    axes = [axis for axis in range(rank) if axis != given.attribute("axis") % rank]
    return alike(given.shapes, [[(place, axis) for place in range(len(given.shapes))] for axis in axes], unknown)


def _whole(given: Given, result: Shape, unknown: Collection[str]) -> dict[int, tuple[Size, ...]]:
    """Split: the size along its axis is the sum of the parts."""
    own = [size for size in given.first if size is not None]
    axis = given.attribute("axis", 0) % len(own)
    needs = Needs(given, result)
    split(needs)
    needed = ((r.left, r.right) for r in needs.found if r.relation == "equal" and not r.always)
    wanted = next((right for left, right in needed if left == own[axis]), own[axis])
    known = own[axis].names.isdisjoint(unknown) or wanted == own[axis]
    return {} if known else {0: (*own[:axis], wanted, *own[axis + 1 :])}


_LISTED = FLAT + "listed = Reshape (pads, flat)\n"

OPERATORS = (
    Operator(
        "Split",
        vectors={1: _lengths},
        contents=split_contents,
        shapes=_split_shapes,
        sized=True,
        needs=split,
        shaped=_whole,
        moves=FIRST,
        settings=True,
        unread="num_outputs",
    ),
    Operator(
        "Concat",
        joins="inputs",
        alone=True,
        length="sum",
        listed=True,
        contents=_concat_contents,
        shapes=_concat_shapes,
        needs=concat,
        shaped=_joined,
        moves=EVERY,
        unread="axis",
    ),
    Operator("Pad", shapes=_pad_shapes, needs=pad, moves=FIRST, axes=3, settings=True),
    Operator(
        "Pad",
        MICROSOFT,
        renamed=Renamed(
            _LISTED + "none = Constant <value = int64[0] {}> ()\nfill = Reshape (value, none)\n"
            "result = Pad (x, listed, fill)",
            ("x", "pads", "value"),
            without=_LISTED + "result = Pad (x, listed)",
        ),
    ),
    Operator("CenterCropPad", expanded=True, rank_from=(1,), settings=True),
)

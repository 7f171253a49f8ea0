"""Operators that cut tensors, pad them and join them."""

from __future__ import annotations

from itertools import pairwise

from heterocc.compiler.operators.record import EVERY, FIRST, Operator, nothing
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import larger, number, smaller


def pad(needs: Needs) -> None:
    """Pad: what is cut off is there, and so is what is repeated."""
    given, data = needs.given, needs.shape(0)
    needs.single(2)
    axes = given.numbers(3) if given.has(3) else list(range(len(data)))
    pads = given.elements(1) if given.opset >= 11 else [number(n) for n in given.attribute("pads", ())]
    if axes is None or pads is None or len(pads) != 2 * len(axes):
        return
    mode = given.attribute("mode", b"constant")
    none, one = number(0), number(1)
    for index, axis in enumerate(axes):
        size, before, after = needs.size(0, axis), pads[index], pads[index + len(axes)]
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


def split(needs: Needs) -> None:
    """Split: the parts are all of the axis, or equal parts, of which the last one may be smaller."""
    given = needs.given
    axis, size = given.attribute("axis", 0), needs.size(0, given.attribute("axis", 0))
    parts = given.numbers(1, "split" if given.opset < 13 else None)
    count = number(len(given.node.output))
    if parts is not None:
        needs.equal(0, axis, number(sum(parts)))
    elif given.has(1) or size is None:
        return
    elif given.opset < 18:
        needs.multiple(0, axis, count)
    else:
        part = quotient(size + count - number(1), count)
        needs.at_least(0, axis, None if part is None else part * (count - number(1)))


OPERATORS = (
    Operator("Slice", needs=nothing, moves=FIRST, axes=3, settings=True),
    Operator("Split", needs=split, moves=FIRST, settings=True, unread="num_outputs"),
    Operator("Concat", needs=concat, moves=EVERY, unread="axis"),
    Operator("Pad", needs=pad, moves=FIRST, axes=3, settings=True),
    Operator("CenterCropPad", rank_from=(1,), settings=True),
)

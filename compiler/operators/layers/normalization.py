"""Normalisations, with parameters for each channel or element that is normalised."""

from __future__ import annotations

from typing import Any

from heterocc.compiler.operators.arrays.indexing import rows_of
from heterocc.compiler.operators.elements.arithmetic import DENOMINATOR
from heterocc.compiler.operators.record import MICROSOFT, SPATIAL, Operator, Part, nothing, same_shape
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import number


def channels(needs: Needs) -> None:
    """BatchNormalization and InstanceNormalization: a number for each channel in each parameter."""
    for place in range(1, len(needs.given.shapes)):
        needs.shaped(place, [needs.size(0, 1)])


def groups(needs: Needs) -> None:
    """GroupNormalization: whole groups, and a number for each channel, before operator set 21 for each group."""
    count = needs.given.attribute("num_groups")
    needs.multiple(0, 1, count)
    for place in (1, 2):
        if needs.given.opset >= 21:
            needs.shaped(place, [needs.size(0, 1)])
        else:
            needs.shaped(place, [count])


def last(needs: Needs) -> None:
    """LayerNormalization and its kin: parameters that are broadcast to what is normalised together."""
    data = needs.shape(0)
    for place in range(1, len(needs.given.shapes)):
        for axis in range(1, 1 + min(len(needs.shape(place)), len(data))):
            needs.spread(place, -axis, data[-axis])


def skip(needs: Needs) -> None:
    """SkipLayerNormalization: a second input like the first or one for all items, and numbers for a row's elements."""
    needs.fits(1, needs.shape(0))
    for place in range(2, len(needs.given.shapes)):
        needs.shaped(place, [needs.size(0, -1)])


def embedding(needs: Needs) -> None:
    """EmbedLayerNormalization: ids of one shape, tables and parameters of one width."""
    ids = needs.shape(0)
    for place in (1, 7):
        needs.shaped(place, ids)
    needs.fits(8, ids)
    width = needs.size(2, 1)
    for place in (3, 4):
        needs.equal(place, 1, width)
    for place in (5, 6):
        needs.shaped(place, [width])
    if not needs.given.has(8):  # then positions are counted
        needs.at_least(3, 0, needs.size(0, 1))


def layer_shapes(given: Given) -> list[Shape] | None:
    """The normalised tensor, and its statistics: sizes of 1 along what is normalised together."""
    shape = given.shape()
    if not shape:
        return None
    axis = int(given.attribute("axis", -1)) % len(shape)
    each = tuple(number(1) if d >= axis else size for d, size in enumerate(shape))
    return [shape, each, each]


def skip_shapes(given: Given) -> list[Shape] | None:
    """The normalised sum; its statistics, which are not computed; the sum."""
    shape = given.shape()
    return None if shape is None else [shape, None, None, shape]


def embedding_shapes(given: Given) -> list[Shape] | None:
    """The normalised embeddings, the numbers of tokens, and the sum of the embeddings."""
    tokens, words = given.shape(), given.shape(2)
    if tokens is None or words is None:
        return None
    return [(*tokens, words[1]), (tokens[0],), (*tokens, words[1])]


def _skipping(name: str, **facts: Any) -> Operator:
    return Operator(name, MICROSOFT, unchecked="memory", shapes=skip_shapes, needs=skip, filled=((Part(1),),), **facts)


OPERATORS = (
    Operator("BatchNormalization", needs=channels, sums=True, intervals={4: DENOMINATOR}, flops=2, unread="momentum"),
    Operator("InstanceNormalization", needs=channels, sums=True, flops=8, filled=((Part(0, SPATIAL),),)),
    Operator("GroupNormalization", shapes=same_shape, needs=groups, sums=True, flops=8, unread="stash_type"),
    Operator(
        "LayerNormalization",
        taken_over=17,
        shapes=layer_shapes,
        needs=last,
        chooses=True,
        sums=True,
        flops=8,
        unread="stash_type",
    ),
    Operator("RMSNormalization", shapes=same_shape, needs=last, chooses=True, sums=True, flops=8, unread="stash_type"),
    Operator("SimplifiedLayerNormalization", shapes=same_shape, needs=last, chooses=True),
    Operator("LpNormalization", needs=nothing, sums=True, flops=8),
    Operator("MeanVarianceNormalization", taken_over=9, shapes=same_shape, needs=nothing, sums=True, flops=8),
    Operator("LRN", needs=nothing, flops=12, steep=True),
    _skipping("SkipLayerNormalization", flops=8),
    _skipping("SkipSimplifiedLayerNormalization"),
    Operator(
        "EmbedLayerNormalization",
        MICROSOFT,
        below={0: rows_of(2), 1: rows_of(4)},
        shapes=embedding_shapes,
        needs=embedding,
    ),
)

"""Operators that read or write elements at indices, or select elements."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
import onnx

from heterocc.compiler.operators.elements.reductions import running
from heterocc.compiler.operators.record import (
    FIRST,
    FIRST_FILLED,
    MICROSOFT,
    Known,
    Operator,
    Renamed,
    attribute,
    nothing,
)
from heterocc.compiler.symbolic.contents import array_of
from heterocc.compiler.symbolic.given import Contents, Given, Shape, known_numbers
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size, number, product_of, smaller


def some(needs: Needs, place: int) -> Size | None:
    """1 if an input has elements, else 0."""
    shape = needs.shape(place)
    return None if None in shape else smaller(product_of(d for d in shape if d is not None), number(1))


def gather(needs: Needs) -> None:
    """Gather: the axis has elements if any is read."""
    needs.at_least(0, needs.given.attribute("axis", 0), some(needs, 1))


def gather_elements(needs: Needs) -> None:
    """GatherElements: indices are within the data along the other axes."""
    rank = len(needs.shape(0))
    for axis in range(rank if len(needs.shape(1)) == rank else 0):
        if axis == needs.given.attribute("axis", 0) % rank:
            needs.at_least(0, axis, some(needs, 1))
        else:
            needs.at_least(0, axis, needs.size(1, axis))


def gather_nd(needs: Needs) -> None:
    """GatherND: the batches are equal."""
    batch, indices = needs.given.attribute("batch_dims", 0), needs.shape(1)
    for axis in range(batch):
        needs.equal(1, axis, needs.size(0, axis))
    depth = indices[-1].number if indices and indices[-1] is not None else None
    for axis in range(batch, batch + (depth or 0)):
        needs.at_least(0, axis, some(needs, 1))


def scatter_elements(needs: Needs) -> None:
    """ScatterElements: an update for each index, and indices within the data along the other axes."""
    indices = needs.shape(1)
    needs.shaped(2, indices)
    rank = len(needs.shape(0))
    for axis in range(rank if len(indices) == rank else 0):
        if axis == needs.given.attribute("axis", 0) % rank:
            needs.at_least(0, axis, some(needs, 1))
        else:
            needs.at_least(0, axis, indices[axis])


def scatter_nd(needs: Needs) -> None:
    """ScatterND: an update is a slice of the data for each index tuple."""
    data, indices = needs.shape(0), needs.shape(1)
    depth = indices[-1].number if indices and indices[-1] is not None else None
    if depth is not None:
        needs.shaped(2, [*indices[:-1], *data[depth:]])
        for axis in range(depth):
            needs.at_least(0, axis, some(needs, 1))


def tensor_scatter(needs: Needs) -> None:
    """TensorScatter: the update is as the cache but for the axis, along which it is not longer."""
    past = needs.shape(0)
    axis = needs.given.attribute("axis", -2)
    for place, size in enumerate(past):
        if place != axis % len(past):
            needs.equal(1, place, size)
    needs.at_least(0, axis, needs.size(1, axis))
    needs.equal(2, 0, needs.size(0, 0))


def reverse_sequence(needs: Needs) -> None:
    """ReverseSequence: a length for each item of the batch."""
    needs.equal(1, 0, needs.size(0, needs.given.attribute("batch_axis", 1)))


def suppression(needs: Needs) -> None:
    """NonMaxSuppression: a score for each box, which has four numbers."""
    needs.equal(1, 0, needs.size(0, 0))
    needs.equal(1, 2, needs.size(0, 1))
    needs.equal(0, 2, 4)
    needs.single(2, 3, 4)


def one_hot(needs: Needs) -> None:
    """OneHot: a depth, and two values."""
    depth = needs.given.sizes(1)
    needs.relate(depth[0] if depth else None, "at_least", number(1), "the depth")
    needs.single(1)
    needs.equal(2, 0, 2)


def _gather_contents(given: Given) -> Contents | None:
    data, indices = given.contents[0], given.numbers(1)
    dims = known_numbers(given.shape(1))
    if data is None or indices is None or dims is None:
        return None
    axis = given.attribute("axis", 0)
    if any(not -data.shape[axis] <= i < data.shape[axis] for i in indices):
        return None
    return array_of(np.take(data, np.array(indices, np.int64).reshape(dims), axis=axis))


def _one_hot_shapes(given: Given) -> list[Shape] | None:
    """OneHot: the depth at the axis."""
    shape, depth = given.first, given.elements(1)
    axis = given.attribute("axis", -1) % (len(shape) + 1)
    return [(*shape[:axis], depth[0] if depth else None, *shape[axis:])]


def rows_of(table: int) -> Callable[[onnx.NodeProto, Known], int | None]:
    """A number of rows of the input `table`, for `Operator.below`."""

    def rows(node: onnx.NodeProto, known: Known) -> int | None:
        shape = known.shape(node.input[table]) if len(node.input) > table else None
        return shape[0] or None if shape else None

    return rows


def _depth(node: onnx.NodeProto, known: Known) -> int | None:
    """OneHot: the number of places."""
    depth = known.scalar(node.input[1])
    return None if depth is None else max(1, int(depth))


def _smallest(node: onnx.NodeProto, known: Known) -> int:
    """GatherND and ScatterND: an index along any axis."""
    return min((d or 1 for d in known.shape(node.input[0]) or ()), default=0)


def _gathered_depth(node: onnx.NodeProto, inputs: Sequence[int | None], result: int) -> int | None:
    """GatherND: the length of an index tuple."""
    data, places = inputs[:2]
    if data is None or places is None:
        return None
    batch: int = attribute(node, "batch_dims", 0)
    return data + places - 1 - batch - result


def _scattered_depth(_node: onnx.NodeProto, inputs: Sequence[int | None], _result: int) -> int | None:
    """ScatterND: the length of an index tuple."""
    data, places, updates = inputs
    return None if data is None or places is None or updates is None else data + places - 1 - updates


def _updated(given: Given, _result: Shape, unknown: Collection[str]) -> dict[int, tuple[Size, ...]]:
    """ScatterND: the updates are a slice of the data for each index tuple."""
    data, indices, updates = (given.shape(place) or (None,) for place in range(3))
    depth = None if indices[-1] is None else indices[-1].number
    if depth is None or None in data or None in indices or None in updates:
        return {}
    own, wanted = [d for d in updates if d is not None], [d for d in (*indices[:-1], *data[depth:]) if d is not None]
    if len(own) != len(wanted):
        return {}
    pairs = zip(own, wanted, strict=True)
    return {2: tuple(one if one.names.isdisjoint(unknown) else new for one, new in pairs)}


OPERATORS = (
    Operator(
        "Gather", length="last", listed=True, contents=_gather_contents, needs=gather, moves=FIRST, indices=1, matrix=0
    ),
    Operator("GatherElements", needs=gather_elements, moves=FIRST, indices=1),
    Operator(
        "GatherND", below={1: _smallest}, needs=gather_nd, moves=FIRST, indices=1, length_from_ranks=_gathered_depth
    ),
    Operator("Scatter", needs=scatter_elements),
    Operator("ScatterElements", needs=scatter_elements, indices=1, flops=0),
    Operator(
        "ScatterND",
        below={1: _smallest},
        needs=scatter_nd,
        shaped=_updated,
        indices=1,
        flops=0,
        length_from_ranks=_scattered_depth,
        code_needs_length=True,
    ),
    Operator("TensorScatter", needs=tensor_scatter),
    Operator("ReverseSequence", needs=reverse_sequence, moves=FIRST, lengths=1),
    Operator(
        "OneHot",
        below={0: _depth},
        shapes=_one_hot_shapes,
        sized=True,
        needs=one_hot,
        choice=0,
        indices=0,
        settings=True,
        reads_reals=True,
        flops=0,
    ),
    Operator("Trilu", needs=running, settings=True, flops=0),
    Operator(
        "Trilu",
        MICROSOFT,
        renamed=Renamed("result = Trilu (x, k)", ("x", "k"), since=14, without="result = Trilu (x)"),
    ),
    Operator("Compress", selects=True, chosen=True, needs=nothing, choice=0, flops=0),
    Operator("NonZero", selects=True, needs=nothing, choice=0),
    Operator("Unique", selects=True, chosen=True, needs=nothing, choice=0, filled=FIRST_FILLED),
    Operator(
        "Unique",
        MICROSOFT,
        renamed=Renamed(
            "result, first, places, counts = Unique <sorted = 0> (x)", ("x",), outputs=("result", "places", "counts")
        ),
    ),
    Operator(
        "NonMaxSuppression",
        unchecked="memory",
        selects=True,
        needs=suppression,
        choice=0,
        intervals={1: (0.0, 1.0)},
        steep=True,
    ),
    Operator("AllClassNMS", needs=nothing),
    Operator("TfIdfVectorizer", needs=nothing, keys="pool_strings pool_int64s"),
)

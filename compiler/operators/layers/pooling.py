"""Pooling, and operators that undo windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod

import onnx

from heterocc.compiler.operators.elements.reductions import of_each_input
from heterocc.compiler.operators.layers.quantised import quantised_unary
from heterocc.compiler.operators.layers.windows import FROM_SHAPES, reach, window_shapes
from heterocc.compiler.operators.record import MICROSOFT, Dims, Operator, attribute
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size, number, product_of


def pooling(needs: Needs) -> None:
    """Pooling: maps that have elements, and room for the window."""
    whole_pooling(needs)
    reach(needs, [number(n) for n in needs.given.attribute("kernel_shape", ())], 1 if _has_channels_last(needs) else 2)


def whole_pooling(needs: Needs) -> None:
    """Pooling of whole maps, which have elements."""
    rank = len(needs.shape(0))
    for axis in range(1, rank - 1) if _has_channels_last(needs) else range(2, rank):
        needs.at_least(0, axis, 1)


def _has_channels_last(needs: Needs) -> bool:
    return bool(needs.given.attribute("channels_last", 0))


def quantised_pool(needs: Needs) -> None:
    """QLinearAveragePool."""
    pooling(needs)
    quantised_unary(needs)


def quantised_whole_pool(needs: Needs) -> None:
    """QLinearGlobalAveragePool."""
    whole_pooling(needs)
    quantised_unary(needs)


def max_unpool(needs: Needs) -> None:
    """MaxUnpool: an index for each element, and a result of the same batch and channels, with room for the windows."""
    needs.shaped(1, needs.shape(0))
    least = least_unpooled(needs.given)
    if needs.given.has(2) and least is not None:
        for axis, (size, needed) in enumerate(zip(needs.given.elements(2) or (), least, strict=False)):
            if size is not None and needed is not None:
                needs.relate(size, "equal" if axis < 2 else "at_least", needed, f"dimension {axis} of its result")


def columns(needs: Needs) -> None:
    """Col2Im: a row for each element of a block, a column for each place of one."""
    given = needs.given
    image, block = given.sizes(1), given.sizes(2)
    if block is None or image is None:
        return
    needs.equal(2, 0, len(image))
    needs.multiple(0, 1, product_of(block))
    rank = len(image)
    pads = given.attribute("pads") or [0] * 2 * rank
    strides, dilations = (given.attribute(k) or [1] * rank for k in ("strides", "dilations"))
    places: list[Size] = []
    for axis, (size, taps) in enumerate(zip(image, block, strict=False)):
        beyond = pads[axis] + pads[axis + rank] - 1
        room = size + number(beyond) - (taps - number(1)) * number(dilations[axis])
        count = quotient(room, number(strides[axis]))
        if count is None:
            return
        places.append(count + number(1))
    needs.equal(0, 2, product_of(places))


pooled_shapes = partial(window_shapes, weights=None)


def _quantised_pool_shapes(given: Given) -> list[Shape] | None:
    if not given.attribute("channels_last", 0):
        return pooled_shapes(given)
    batch, *space, channels = given.first
    found = pooled_shapes(replace(given, shapes=[(batch, channels, *space), *given.shapes[1:]]))
    shape = found[0] if found else None
    return None if shape is None else [(batch, *shape[2:], channels)]


def _whole_shapes(given: Given) -> list[Shape] | None:
    shape = given.first
    ones = (number(1),) * (len(shape) - 2)
    return [(shape[0], *ones, shape[-1]) if given.attribute("channels_last", 0) else (*shape[:2], *ones)]


def unpooled_shapes(given: Given) -> list[Shape] | None:
    """MaxUnpool: the given shape, or the one whose windows are the data."""
    if given.has(2):
        wanted, shape = given.elements(2), given.shape()
        if wanted is None:
            return None if shape is None else [(None,) * len(shape)]
        impossible = (shape is not None and len(wanted) != len(shape)) or any(
            n is not None and n.number is not None and n.number < 0 for n in wanted
        )
        return None if impossible else [tuple(wanted)]
    least = least_unpooled(given)
    return None if least is None else [least]


def least_unpooled(given: Given) -> Shape:
    """The shape whose windows are the data of a MaxUnpool."""
    shape, kernel = given.shape(), given.attribute("kernel_shape")
    if shape is None or kernel is None:
        return None
    rank = len(kernel)
    strides, pads = given.attribute("strides") or [1] * rank, given.attribute("pads") or [0] * 2 * rank
    dims = list(shape[:2])
    for axis, size in enumerate(shape[2:]):
        beyond = kernel[axis] - strides[axis] - pads[axis] - pads[axis + rank]
        dims.append(None if size is None else size * number(strides[axis]) + number(beyond))
    return tuple(dims)


def _columns_shapes(given: Given) -> list[Shape] | None:
    data, image = given.shape(), given.shape(1)
    rank = image[0].number if image is not None and image[0] is not None else None
    if data is None or rank is None or len(data) != 3:
        return None
    wanted, block = given.sizes(1), given.sizes(2)
    taps = None if block is None else product_of(block)
    channels = quotient(data[1], taps) if data[1] is not None and taps is not None else None
    return [(data[0], channels, *([None] * rank if wanted is None else wanted))]


def _pool_flops(node: onnx.NodeProto, _inputs: Sequence[Dims], output: Dims) -> float:
    """One operation for each output element and tap."""
    return float(prod(output) * prod(attribute(node, "kernel_shape")))


OPERATORS = (
    Operator(
        "MaxPool",
        window="largest",
        shapes=pooled_shapes,
        misjudged=True,
        needs=pooling,
        between=True,
        choice=1,
        flops=_pool_flops,
        unread=FROM_SHAPES,
    ),
    Operator(
        "AveragePool",
        window="mean",
        shapes=pooled_shapes,
        misjudged=True,
        needs=pooling,
        between=True,
        sums=True,
        flops=_pool_flops,
    ),
    Operator("LpPool", shapes=pooled_shapes, misjudged=True, needs=pooling, magnitude="risen", flops=_pool_flops),
    Operator(
        "QLinearAveragePool",
        MICROSOFT,
        shapes=_quantised_pool_shapes,
        needs=quantised_pool,
        quantised="rounds",
        unchecked="memory",
    ),
    Operator("GlobalAveragePool", needs=whole_pooling, between=True, sums=True, flops=of_each_input),
    Operator("GlobalMaxPool", needs=whole_pooling, between=True, flops=of_each_input),
    Operator("GlobalLpPool", needs=whole_pooling, magnitude="risen", flops=of_each_input),
    Operator(
        "QLinearGlobalAveragePool", MICROSOFT, shapes=_whole_shapes, needs=quantised_whole_pool, quantised="rounds"
    ),
    Operator("MaxUnpool", shapes=unpooled_shapes, sized=True, needs=max_unpool, unread="kernel_shape pads strides"),
    Operator("Col2Im", shapes=_columns_shapes, needs=columns),
)

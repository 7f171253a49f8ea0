"""Convolutions, pooling and other operators on windows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import onnx

from heterocc.compiler.operators.quantised import along, quantised_unary
from heterocc.compiler.operators.record import COORDINATES, MICROSOFT, SCALES, Dims, Flops, Operator, attribute
from heterocc.compiler.operators.reductions import of_each_input
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size, number, product_of


def convolution(needs: Needs, weights: int = 1, bias: int | None = 2) -> None:
    """Conv: channels for each group, a bias for each channel, and data that has room for the kernel."""
    shape, group = needs.shape(weights), needs.given.attribute("group", 1)
    if len(shape) < 3:
        return
    needs.equal(0, 1, None if shape[1] is None else shape[1] * number(group))
    needs.multiple(weights, 0, group)
    if bias is not None:
        needs.shaped(bias, [shape[0]])
    _kernel(needs, weights)
    reach(needs, shape[2:])


def transposed(needs: Needs) -> None:
    """ConvTranspose: channels of the data for each row of the weights, and a bias for each channel."""
    shape, group = needs.shape(1), needs.given.attribute("group", 1)
    if len(shape) < 3:
        return
    needs.equal(0, 1, shape[0])
    needs.multiple(0, 1, group)
    needs.shaped(2, [None if shape[1] is None else shape[1] * number(group)])
    _kernel(needs, 1)
    if any(needs.given.attribute("output_padding") or ()) or needs.given.attribute("output_shape"):
        for axis in range(2, len(needs.shape(0))):
            needs.at_least(0, axis, 1)


def deformed(needs: Needs) -> None:
    """DeformConv: two offsets and a mask for each tap and place."""
    weights, groups = needs.shape(1), needs.given.attribute("offset_group", 1)
    if len(weights) < 3 or None in weights[2:]:
        return
    group, taps = needs.given.attribute("group", 1), product_of(d for d in weights[2:] if d is not None)
    needs.equal(0, 1, None if weights[1] is None else weights[1] * number(group))
    needs.multiple(1, 0, group)
    needs.multiple(0, 1, groups)
    needs.shaped(3, [weights[0]])
    space = needs.result[2:] if needs.result is not None else ()
    for place, count in ((2, groups * (len(weights) - 2)), (4, groups)):
        needs.shaped(place, [needs.size(0, 0), taps * number(count), *space])
    _kernel(needs, 1)
    reach(needs, weights[2:])


def pooling(needs: Needs) -> None:
    """Pooling: maps that have elements, and room for the window."""
    for axis in range(2, len(needs.shape(0))):
        needs.at_least(0, axis, 1)
    reach(needs, [number(n) for n in needs.given.attribute("kernel_shape", ())])


def whole_pooling(needs: Needs) -> None:
    """Pooling of whole maps, which have elements."""
    for axis in range(2, len(needs.shape(0))):
        needs.at_least(0, axis, 1)


def _kernel(needs: Needs, weights: int) -> None:
    for axis, size in enumerate(needs.given.attribute("kernel_shape") or ()):
        needs.equal(weights, axis + 2, int(size))


def reach(needs: Needs, kernel: Sequence[Size | None]) -> None:
    """The data with its padding has room for a window."""
    given, rank = needs.given, len(kernel)
    if given.attribute("auto_pad", b"NOTSET") in (b"SAME_UPPER", b"SAME_LOWER") or len(needs.shape(0)) != rank + 2:
        return
    pads = given.attribute("pads") if given.attribute("auto_pad", b"NOTSET") == b"NOTSET" else None
    strides, dilations = (given.attribute(k) or [1] * rank for k in ("strides", "dilations"))
    pads = pads or [0] * 2 * rank
    for axis, taps in enumerate(kernel):
        if taps is None:
            continue
        wide = (taps - number(1)) * number(dilations[axis]) + number(1)
        beyond = pads[axis] + pads[axis + rank] + (strides[axis] - 1 if given.attribute("ceil_mode", 0) else 0)
        needs.at_least(0, axis + 2, wide - number(beyond))


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


def convolved(needs: Needs) -> None:
    """QLinearConv."""
    convolution(needs, weights=3, bias=8)
    needs.single(1, 2, 6, 7)
    along(needs, (4, 5), needs.size(3, 0))


def convolved_integers(needs: Needs) -> None:
    """ConvInteger, whose kernels have taps: ONNX Runtime returns memory that it has not written for others."""
    convolution(needs, bias=None)
    for axis in range(2, len(needs.shape(1))):
        needs.at_least(1, axis, 1)
    needs.single(2)
    along(needs, (3,), needs.size(1, 0))


def quantised_pool(needs: Needs) -> None:
    """QLinearAveragePool."""
    pooling(needs)
    quantised_unary(needs)


def added_convolution(needs: Needs) -> None:
    """FusedConv: a tensor that is added has the shape of the result."""
    convolution(needs)
    if needs.result is not None:
        needs.shaped(3, needs.result)


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


def max_unpool(needs: Needs) -> None:
    """MaxUnpool: an index for each element, and a result of the same batch and channels, with room for the windows."""
    needs.shaped(1, needs.shape(0))
    least = least_unpooled(needs.given)
    if needs.given.has(2) and least is not None:
        for axis, (size, needed) in enumerate(zip(needs.given.elements(2) or (), least, strict=False)):
            if size is not None and needed is not None:
                needs.relate(size, "equal" if axis < 2 else "at_least", needed, f"dimension {axis} of its result")


def _conv_flops(weights: int, bias: int | None) -> Flops:
    """2 x output elements x (input channels per group x kernel) + bias."""

    def rule(_node: onnx.NodeProto, inputs: Sequence[Dims], output: Dims) -> float:
        added = bias is not None and len(inputs) > bias and inputs[bias]
        return 2.0 * prod(output) * prod(inputs[weights][1:]) + (prod(output) if added else 0)

    return rule


def _transposed_flops(_node: onnx.NodeProto, inputs: Sequence[Dims], output: Dims) -> float:
    """2 x input elements x (output channels per group x kernel): each input element is multiplied by all its taps."""
    bias = prod(output) if len(inputs) > 2 and inputs[2] else 0
    return 2.0 * prod(inputs[0]) * prod(inputs[1][1:]) + bias


def _pool_flops(node: onnx.NodeProto, _inputs: Sequence[Dims], output: Dims) -> float:
    """One operation for each output element and tap."""
    return float(prod(output) * prod(attribute(node, "kernel_shape")))


_FROM_SHAPES = "kernel_shape storage_order"

OPERATORS = (
    Operator("Conv", needs=convolution, product=True, flops=_conv_flops(1, 2), unread=_FROM_SHAPES),
    Operator(
        "ConvTranspose", needs=transposed, product=True, flops=_transposed_flops, unread=f"{_FROM_SHAPES} output_shape"
    ),
    Operator("DeformConv", needs=deformed, float32_inputs=COORDINATES, steep=True, unread=_FROM_SHAPES),
    Operator(
        "FusedConv", MICROSOFT, needs=added_convolution, product=True, flops=_conv_flops(1, 2), unread=_FROM_SHAPES
    ),
    Operator(
        "ConvInteger", needs=convolved_integers, quantised="computes", flops=_conv_flops(1, None), unread=_FROM_SHAPES
    ),
    Operator(
        "QLinearConv",
        needs=convolved,
        settings=True,
        quantised="rounds",
        float32_inputs=SCALES,
        flops=_conv_flops(3, 8),
        unread=_FROM_SHAPES,
    ),
    Operator("MaxPool", needs=pooling, between=True, choice=1, flops=_pool_flops, unread=_FROM_SHAPES),
    Operator("AveragePool", needs=pooling, between=True, sums=True, flops=_pool_flops),
    Operator("LpPool", needs=pooling, magnitude="risen", flops=_pool_flops),
    Operator("QLinearAveragePool", MICROSOFT, needs=quantised_pool, quantised="rounds"),
    Operator("GlobalAveragePool", needs=whole_pooling, between=True, sums=True, flops=of_each_input),
    Operator("GlobalMaxPool", needs=whole_pooling, between=True, flops=of_each_input),
    Operator("GlobalLpPool", needs=whole_pooling, magnitude="risen", flops=of_each_input),
    Operator("QLinearGlobalAveragePool", MICROSOFT, needs=quantised_unary, quantised="rounds"),
    Operator("MaxUnpool", needs=max_unpool, unread="kernel_shape pads strides"),
    Operator("Col2Im", needs=columns),
)

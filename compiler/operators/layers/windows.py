"""Convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod

import onnx

from heterocc.compiler.operators.layers.quantised import along
from heterocc.compiler.operators.record import (
    AFTER_FIRST,
    COORDINATES,
    FIRST_TWO,
    MICROSOFT,
    SCALES,
    SPATIAL,
    ByteProduct,
    Dims,
    Flops,
    Operator,
    Part,
)
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
    """ConvTranspose: channels of the data for each row of the weights, and a bias for each channel.

    A result of a given shape is reached by the data, but for less than a stride.
    """
    shape, group = needs.shape(1), needs.given.attribute("group", 1)
    if len(shape) < 3:
        return
    needs.equal(0, 1, shape[0])
    needs.multiple(0, 1, group)
    needs.shaped(2, [None if shape[1] is None else shape[1] * number(group)])
    _kernel(needs, 1)
    wanted, rank = needs.given.attribute("output_shape"), len(shape) - 2
    if not wanted and not any(needs.given.attribute("output_padding") or ()):
        return
    strides, dilations = (needs.given.attribute(k) or [1] * rank for k in ("strides", "dilations"))
    for axis, taps in enumerate(shape[2:]):
        least = 1
        if wanted and taps is not None and taps.number is not None:
            reached = (taps.number - 1) * dilations[axis] + 1
            least = max(1, (wanted[axis - rank] - reached) // strides[axis] + 1)
        needs.at_least(0, axis + 2, least)


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


def _kernel(needs: Needs, weights: int) -> None:
    for axis, size in enumerate(needs.given.attribute("kernel_shape") or ()):
        needs.equal(weights, axis + 2, int(size))


def reach(needs: Needs, kernel: Sequence[Size | None], first: int = 2) -> None:
    """The data with its padding has room for a window, which lies along axes from `first` on."""
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
        needs.at_least(0, axis + first, wide - number(beyond))


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


def added_convolution(needs: Needs) -> None:
    """FusedConv: a tensor that is added has the shape of the result."""
    convolution(needs)
    if needs.result is not None:
        needs.shaped(3, needs.result)


def window_shapes(given: Given, weights: int | None = 1) -> list[Shape] | None:
    """Convolutions and pooling: the spatial dimensions; batch and channels are those of the data and the weights.

    `weights` is the input that has them; pooling has none.
    """
    shape = given.first
    rank = len(shape) - 2
    filters = None if weights is None else given.shape(weights)
    kernel = given.attribute("kernel_shape")
    if kernel is None and filters is not None:
        kernel = [None if d is None else d.number for d in filters[2:]]
    if kernel is None or None in kernel:
        return None
    strides, dilations = (given.attribute(k) or [1] * rank for k in ("strides", "dilations"))
    pads, mode = given.attribute("pads") or [0] * 2 * rank, given.attribute("auto_pad", b"NOTSET")
    channels = filters[0] if filters is not None else shape[1]
    dims: list[Size | None] = [shape[0], channels]
    for axis in range(rank):
        size, stride = shape[axis + 2], number(strides[axis])
        reached = (kernel[axis] - 1) * dilations[axis] + 1
        gaps = (kernel[axis] - 1) * (dilations[axis] - 1) if weights is None else None
        if size is None:
            dims.append(None)
        elif mode in (b"SAME_UPPER", b"SAME_LOWER"):
            dims.append(_windows_of_same(given, size, strides[axis], gaps))
        else:
            both = pads[axis] + pads[axis + rank] if mode == b"NOTSET" else 0
            beyond = both - reached
            if size.number is not None and size.number + beyond < 0:
                dims.append(_windows_beyond(-size.number - beyond, strides[axis]))
                continue
            if given.attribute("ceil_mode", 0):
                # A last window that begins in the padding behind the data is left out.
                before = pads[axis] if mode == b"NOTSET" else 0
                beyond = min(beyond + strides[axis] - 1, before - 1)
            whole = quotient(size + number(beyond), stride)
            dims.append(None if whole is None else whole + number(1))
    return [tuple(dims)] * len(given.node.output)  # indices of maxima have the shape of the maxima


def _windows_of_same(given: Given, size: Size, stride: int, gaps: int | None) -> Size | None:
    """The number of windows with `auto_pad`. Those of pooling leave out the `gaps` of a window with dilation."""
    whole = quotient(size + number(stride - 1), number(stride))
    if whole is None or gaps is None:
        return whole
    if whole.number is not None and gaps > (whole.number - 1) * stride:
        return _windows_beyond(gaps - (whole.number - 1) * stride, stride)
    less = gaps // stride if given.attribute("ceil_mode", 0) else -(-gaps // stride)
    return whole - number(less)


def _windows_beyond(missing: int, stride: int) -> Size:
    """The number of windows that are longer than the data by `missing`: one, if this is less than a stride."""
    return number(1 - missing // stride)


def transposed_shapes(given: Given) -> list[Shape] | None:
    """Transposed convolutions: the spatial dimensions; batch and channels are those of the data and the weights."""
    shape, weights, wanted = given.shape(), given.shape(1), given.attribute("output_shape")
    if shape is None or weights is None or weights[1] is None:
        return None
    rank = len(shape) - 2
    strides, dilations = (given.attribute(k) or [1] * rank for k in ("strides", "dilations"))
    pads, more = given.attribute("pads") or [0] * 2 * rank, given.attribute("output_padding") or [0] * rank
    mode = given.attribute("auto_pad", b"NOTSET")
    dims: list[Size | None] = [shape[0], weights[1] * number(given.attribute("group", 1))]
    for axis in range(rank):
        size, taps = shape[axis + 2], weights[axis + 2]
        if wanted:
            dims.append(number(int(wanted[axis - rank])))
        elif size is None or taps is None or taps.number is None:
            dims.append(None)
        else:
            both = pads[axis] + pads[axis + rank] if mode == b"NOTSET" else 0
            beyond = (taps.number - 1) * dilations[axis] + 1 - strides[axis] + more[axis] - both
            if mode in (b"SAME_UPPER", b"SAME_LOWER"):
                beyond = min(beyond, 0)
            dims.append(size * number(strides[axis]) + number(beyond))
    return [tuple(dims)]


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


FROM_SHAPES = "kernel_shape storage_order"

_WINDOW = ((Part(1, SPATIAL),),)
_TAPS = ((Part(1, AFTER_FIRST),),)

OPERATORS = (
    Operator(
        "Conv",
        window="product",
        shapes=window_shapes,
        needs=convolution,
        filled=_WINDOW,
        filled_bytes=_TAPS,
        factors=FIRST_TWO,
        flops=_conv_flops(1, 2),
        unread=FROM_SHAPES,
    ),
    Operator(
        "ConvTranspose",
        shapes=transposed_shapes,
        filled=((Part(0, SPATIAL),), *_WINDOW),
        misjudged=True,
        needs=transposed,
        factors=FIRST_TWO,
        flops=_transposed_flops,
        unread=f"{FROM_SHAPES} output_shape",
    ),
    Operator("DeformConv", needs=deformed, float32_inputs=COORDINATES, steep=True, unread=FROM_SHAPES),
    Operator(
        "FusedConv",
        MICROSOFT,
        shapes=window_shapes,
        needs=added_convolution,
        filled=_WINDOW,
        factors=FIRST_TWO,
        flops=_conv_flops(1, 2),
        unread=FROM_SHAPES,
    ),
    Operator(
        "ConvInteger",
        unchecked="memory",
        shapes=window_shapes,
        needs=convolved_integers,
        filled=_TAPS,
        byte_product=ByteProduct({0: 2, 1: 3}),
        quantised="computes",
        flops=_conv_flops(1, None),
        unread=FROM_SHAPES,
    ),
    Operator(
        "QLinearConv",
        shapes=partial(window_shapes, weights=3),
        needs=convolved,
        filled=((Part(3, AFTER_FIRST),), (Part(4),), (Part(5),)),
        byte_product=ByteProduct({0: 2, 3: 5}, result=7),
        settings=True,
        quantised="rounds",
        float32_inputs=SCALES,
        flops=_conv_flops(3, 8),
        unread=FROM_SHAPES,
    ),
)

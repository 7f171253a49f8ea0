"""Shapes of convolutions and pooling as expressions of named dimensions."""

from __future__ import annotations

from heterocc.compiler.operators.windows import least_unpooled
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.sizes import Size, number

_WEIGHTS = {"Conv": 1, "FusedConv": 1, "ConvInteger": 1, "QLinearConv": 3}
"""The input of a convolution that is its weights; pooling has none."""


POOLS = frozenset({"MaxPool", "AveragePool", "LpPool"})


def window_shapes(given: Given) -> list[Shape] | None:
    """Convolutions and pooling: the spatial dimensions; batch and channels are those of the data and the weights."""
    shape = given.shape()
    node = given.node
    if shape is None:
        return None
    rank = len(shape) - 2
    place = _WEIGHTS.get(node.op_type)
    weights = None if place is None else given.shape(place)
    kernel = given.attribute("kernel_shape")
    if kernel is None and weights is not None:
        kernel = [None if d is None else d.number for d in weights[2:]]
    if kernel is None or None in kernel:
        return None
    strides, dilations = (given.attribute(k) or [1] * rank for k in ("strides", "dilations"))
    pads, mode = given.attribute("pads") or [0] * 2 * rank, given.attribute("auto_pad", b"NOTSET")
    channels = weights[0] if weights is not None else shape[1]
    dims: list[Size | None] = [shape[0], channels]
    for axis in range(rank):
        size, stride = shape[axis + 2], number(strides[axis])
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        if size is None:
            dims.append(None)
        elif mode in (b"SAME_UPPER", b"SAME_LOWER"):
            dims.append(_windows_of_same(given, size, strides[axis], (kernel[axis] - 1) * (dilations[axis] - 1)))
        else:
            both = pads[axis] + pads[axis + rank] if mode == b"NOTSET" else 0
            beyond = both - reach
            if size.number is not None and size.number + beyond < 0:
                dims.append(_windows_beyond(-size.number - beyond, strides[axis]))
                continue
            if given.attribute("ceil_mode", 0):
                # A last window that begins in the padding behind the data is left out.
                before = pads[axis] if mode == b"NOTSET" else 0
                beyond = min(beyond + strides[axis] - 1, before - 1)
            whole = quotient(size + number(beyond), stride)
            dims.append(None if whole is None else whole + number(1))
    return [tuple(dims)] * len(node.output)  # indices of maxima have the shape of the maxima


def _windows_of_same(given: Given, size: Size, stride: int, gaps: int) -> Size | None:
    """The number of windows with `auto_pad`. That of pooling leaves out the `gaps` of a window with dilation."""
    whole = quotient(size + number(stride - 1), number(stride))
    if whole is None or given.node.op_type not in POOLS:
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


def unpooled_shapes(given: Given) -> list[Shape] | None:
    """MaxUnpool: the given shape, or the one whose windows are the data."""
    if given.has(2):
        wanted, shape = given.elements(2), given.shape()
        if wanted is None:
            return None if shape is None else [(None,) * len(shape)]
        impossible = any(n is not None and n.number is not None and n.number < 0 for n in wanted)
        return None if impossible else [tuple(wanted)]
    least = least_unpooled(given)
    return None if least is None else [least]

"""Requirements of convolutions, pooling and operators on windows."""

from __future__ import annotations

from collections.abc import Sequence

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


def stft(needs: Needs) -> None:
    """STFT: a signal with a frame, and a window of its length."""
    length = needs.given.sizes(3) if needs.given.has(3) else None
    size = length[0] if length else needs.size(2, 0)
    needs.at_least(0, 1, size)
    needs.equal(2, 0, size)
    needs.single(1, 3)
    signal = needs.shape(0, 3)
    if signal and signal[2] is not None and signal[2].number is None:
        needs.equal(0, 2, 1)  # code of a size that may be another one is for real signals


RULES = {
    "Conv": convolution,
    "ConvTranspose": transposed,
    "DeformConv": deformed,
    "MaxPool": pooling,
    "AveragePool": pooling,
    "LpPool": pooling,
    "GlobalAveragePool": whole_pooling,
    "GlobalLpPool": whole_pooling,
    "GlobalMaxPool": whole_pooling,
    "Col2Im": columns,
    "STFT": stft,
}

"""Fourier transforms, and what is used with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from heterocc.compiler.operators.record import RANGE, Operator, Part, attribute
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import number


def fourier(needs: Needs) -> None:
    """DFT: real or complex numbers along the last axis."""
    size = needs.size(0, -1)
    if size is not None and size.number != 1:
        needs.broadcast(0, -1, number(2))
    needs.single(1, 2)


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


def _stft_shapes(given: Given) -> list[Shape] | None:
    data, window = given.shape(), given.shape(2)
    if data is None:
        return None
    step, length = given.numbers(1), given.sizes(3)
    size = length[0] if length is not None else None if given.has(3) or window is None else window[0]
    frames = bins = None
    if size is not None and size.number is not None:
        bins = number(size.number // 2 + 1 if given.attribute("onesided", 1) else size.number)
        if step is not None and data[1] is not None:
            frames = quotient(data[1] - size + number(step[0]), number(step[0]))
    return [(data[0], frames, bins, number(2))]


def dft_shapes(given: Given) -> list[Shape] | None:
    """DFT along a known axis, whose length becomes that of the transform, or half of it; complex numbers."""
    shape = given.shape()
    axes = given.numbers(2) if given.has(2) else [given.attribute("axis", 1 if given.opset < 20 else -2)]
    length = given.sizes(1) if given.has(1) else None
    if shape is None or axes is None or (given.has(1) and length is None):
        return None
    halved, inverse = given.attribute("onesided", 0), given.attribute("inverse", 0)
    axis = axes[0] % len(shape)
    size = shape[axis] if length is None else length[0]
    if size is None or (halved and inverse):
        return None
    half = quotient(size, number(2)) if halved else None
    return [(*shape[:axis], half + number(1) if half is not None else size, *shape[axis + 1 : -1], number(2))]


def _of_any_length(
    node: onnx.NodeProto, opset: int, shapes: Sequence[Sequence[int | str | None] | None], constants: Sequence[Any]
) -> bool:
    """Whether only the run knows the length of a DFT, or its axis: all terms of all results are taken."""
    length, axis = (place < len(node.input) and bool(node.input[place]) for place in (1, 2))
    if any(given and constants[place] is None for place, given in ((1, length), (2, axis))):
        return True
    if length or shapes[0] is None:
        return shapes[0] is None
    along = int(constants[2].flat[0]) if axis else attribute(node, "axis", 1 if opset < 20 else -2)
    return not isinstance(shapes[0][along % len(shapes[0])], int)


def _of_any_frames(
    node: onnx.NodeProto, _opset: int, shapes: Sequence[Sequence[int | str | None] | None], constants: Sequence[Any]
) -> bool:
    """Whether only the run knows the length of the frames of an STFT, its step, or a window of a signal of any size."""
    window, length = (place < len(node.input) and bool(node.input[place]) for place in (2, 3))
    if constants[1] is None or (length and constants[3] is None):
        return True
    if not window or constants[2] is not None:
        return False
    return not all(shape is not None and all(isinstance(d, int) for d in shape) for shape in (shapes[0], shapes[2]))


OPERATORS = (
    Operator("DFT", shapes=dft_shapes, needs=fourier, float32_results=RANGE, steep=True, quadratic=_of_any_length),
    Operator(
        "STFT",
        shapes=_stft_shapes,
        needs=stft,
        filled=((Part(2),),),
        intervals={0: (-1.0, 1.0)},
        float32_results=RANGE,
        steep=True,
        quadratic=_of_any_frames,
    ),
    Operator("MelWeightMatrix", float32_results=RANGE),
    *(Operator(name, expanded=True) for name in ("BlackmanWindow", "HammingWindow", "HannWindow")),
)

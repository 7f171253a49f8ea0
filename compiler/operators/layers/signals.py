"""Fourier transforms, and what is used with them."""

from __future__ import annotations

from heterocc.compiler.operators.record import EVERY, RANGE, Operator, Part
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
    if shape is None or axes is None:
        return None
    halved, inverse = given.attribute("onesided", 0), given.attribute("inverse", 0)
    axis = axes[0] % len(shape)
    length = given.sizes(1) if given.has(1) else [shape[axis]]
    size = None if length is None else length[0]
    if halved and inverse:
        usual = size + size - number(2) if size is not None and not given.has(1) else size
        return [(*shape[:axis], usual, *shape[axis + 1 : -1], number(1))]
    if halved and size is not None:
        half = quotient(size, number(2))
        size = None if half is None else half + number(1)
    # With a length that only a run knows, ONNX infers the size of the data.
    return [(*shape[:axis], size, *shape[axis + 1 : -1], number(2))]


OPERATORS = (
    Operator("DFT", shapes=dft_shapes, needs=fourier, scalars=(1, 2), float32_results=RANGE, steep=True),
    Operator(
        "STFT",
        shapes=_stft_shapes,
        needs=stft,
        scalars=(1, 3),
        filled=((Part(2),),),
        intervals={0: (-1.0, 1.0)},
        float32_results=RANGE,
        steep=True,
    ),
    Operator("MelWeightMatrix", scalars=EVERY, float32_results=RANGE),
    *(Operator(name, expanded=True, stricter="counted") for name in ("BlackmanWindow", "HammingWindow", "HannWindow")),
)

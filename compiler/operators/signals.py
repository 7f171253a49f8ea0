"""Fourier transforms, and what is used with them."""

from __future__ import annotations

from heterocc.compiler.operators.record import RANGE, Operator
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


OPERATORS = (
    Operator("DFT", needs=fourier, float32_results=RANGE, steep=True),
    Operator("STFT", needs=stft, intervals={0: (-1.0, 1.0)}, float32_results=RANGE, steep=True),
    Operator("MelWeightMatrix", float32_results=RANGE),
)

"""The taps along a copied row: unrolled, or in loops if they are many."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.form import Window
from heterocc.compiler.lower.cpu.generate.places import index

MOST_IN_ROW = 16
"""The limit on unrolled taps of a row: the code of more would not stay in the first-level cache."""

MOST_IN_STRIDES = 64
"""The limit on unrolled taps of a row by a stride: LLVM takes minutes for hundreds."""

HERE = index(0), index(0)
"""No taps, and no places in the copy, behind a tap."""


def along_row(columns: Window, plane: int, step: Callable[[int, tuple[tirx.Expr, tirx.Expr], int], None]) -> None:
    """Call `step` for the taps of a row, with a tap, how far the one meant is behind it, and a number.

    Long rows are loops. By a stride, taps are in the copies of its phases: `stride` taps on, one place further.
    """
    taps, stride = columns.taps, columns.stride

    def loops(first: int, count: int, before: tuple[tirx.Expr, tirx.Expr], each: int, places: int) -> None:
        """Loops over groups of `each` taps, in which the next group is `places` further."""
        whole = count // each if count > each else 0
        if whole:
            with emit.loop(whole) as part:
                further = before[0] + part * index(each), before[1] + part * index(places)
                for tap in range(each):
                    step(first + tap, further, tap)
        for tap in range(whole * each, count):
            step(first + tap, before, tap)

    if stride == 1:
        loops(0, taps, HERE, MOST_IN_ROW, MOST_IN_ROW * columns.dilation)
    elif columns.dilation > 1 or taps <= MOST_IN_STRIDES:
        loops(0, taps, HERE, taps, 0)
    elif stride <= MOST_IN_ROW:
        several = -(-MOST_IN_ROW // stride)
        loops(0, taps, HERE, several * stride, several)
    else:
        with emit.loop(taps // stride) as turn:
            loops(0, stride, (turn * index(stride), turn), MOST_IN_ROW, MOST_IN_ROW * plane)
        loops(taps - taps % stride, taps % stride, HERE, MOST_IN_ROW, MOST_IN_ROW * plane)

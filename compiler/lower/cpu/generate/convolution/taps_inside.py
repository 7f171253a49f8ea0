"""Taps of an output that lie inside the input: the others read padding."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.form import Window
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.tiles import runs


@dataclass(frozen=True, slots=True)
class Term:
    """A term of a sum: an input channel, a row of taps, a tap of it.

    `first` is the first input channel of those that come one after the other for a tap.
    """

    input: tirx.Expr
    row: tirx.Expr
    tap: tirx.Expr
    first: tirx.Expr


@dataclass(frozen=True, slots=True)
class Part:
    """Outputs `start` to `end` of a row or column, all with the taps `first` to `last` inside the input."""

    start: int
    end: int
    first: int
    last: int


def parts_of(window: Window) -> tuple[Part, ...]:
    """The parts of a dimension of the outputs, by the taps inside the input."""
    inside = [taps_of(window, place) for place in range(window.places)]
    parts, start = [], 0
    for taps, group in groupby(inside):
        end = start + len(list(group))
        parts.append(Part(start, end, *taps))
        start = end
    return tuple(parts)


def taps_of(window: Window, place: int) -> tuple[int, int]:
    """The first tap of an output inside the input and the one after the last."""
    begin = place * window.stride - window.before
    first = min(window.taps, max(0, -(begin // window.dilation)))
    last = max(0, min(window.taps, (window.size - 1 - begin) // window.dilation + 1))
    return first, max(first, last)


def share_inside(window: Window, tall: int) -> float:
    """The share of the taps of all outputs in `range_inside` of tiles of at most `tall` outputs."""
    computed = 0
    for run in runs(window.places, tall):
        for start in range(run.start, run.start + run.count * run.size, run.size):
            first, last = taps_of(window, start + run.size - 1)[0], taps_of(window, start)[1]
            computed += run.size * max(0, last - first)
    return computed / (window.places * window.taps)


def range_inside(window: Window, begin: tirx.Expr, places: int = 1) -> tuple[tirx.Expr, tirx.Expr] | None:
    """The first tap inside the input and the one after the last, if tap 0 is at `begin`; None if all are.

    Of several `places` one after the other, all that are inside for one of them.
    """
    if len(parts := parts_of(window)) == 1 and (parts[0].first, parts[0].last) == (0, window.taps):
        return None
    apart = index(window.dilation)
    end = begin + index((places - 1) * window.stride)
    first = tirx.max(index(0), -tirx.floordiv(end, apart))
    last = tirx.min(index(window.taps), tirx.floordiv(index(window.size - 1) - begin, apart) + index(1))
    return emit.bound(first), emit.bound(last)


def loop_inside(window: Window, inside: tuple[tirx.Expr, tirx.Expr] | None) -> AbstractContextManager[tirx.Expr]:
    """A loop over the taps of a range, all of the window if it is None."""
    return emit.loop(window.taps) if inside is None else build.serial(*inside)

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
    found, start = [], 0
    for taps, group in groupby(inside):
        end = start + len(list(group))
        found.append(Part(start, end, *taps))
        start = end
    return tuple(found)


def taps_of(window: Window, place: int) -> tuple[int, int]:
    """The first tap of an output inside the input and the one after the last."""
    begin = place * window.stride - window.before
    first = min(window.taps, max(0, -(begin // window.dilation)))
    last = max(0, min(window.taps, (window.size - 1 - begin) // window.dilation + 1))
    return first, max(first, last)


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

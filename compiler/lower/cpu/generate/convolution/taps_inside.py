"""Taps that lie inside the input: the others read padding."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.form import Window
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.sizes import Size, as_number


def taps_of(window: Window, place: int) -> range:
    """The taps of an output that are inside the input."""
    begin = place * window.stride - as_number(window.before)
    first = min(window.taps, max(0, -(begin // window.dilation)))
    return range(first, max(first, min(window.taps, (as_number(window.size) - 1 - begin) // window.dilation + 1)))


def taps_inside(window: Window, place: tirx.Expr, places: Size = 1) -> tuple[tirx.Expr, tirx.Expr]:
    """The first tap that is inside the input for one of several outputs from a place on, and the one after the last."""
    begin, apart = place * index(window.stride) - index(window.before), index(window.dilation)
    end = begin + index((places - 1) * window.stride)
    first = tirx.max(index(0), -tirx.floordiv(end, apart))
    last = tirx.min(index(window.taps), tirx.floordiv(index(window.size - 1) - begin, apart) + index(1))
    return emit.bound(first), emit.bound(last)


def loop_inside(window: Window, place: tirx.Expr, places: int = 1) -> AbstractContextManager[tirx.Expr]:
    """A loop over the taps that are inside the input for one of several outputs, one after the other from a place."""
    return emit.loop(window.taps) if window.is_inside else emit.serial(*taps_inside(window, place, places))

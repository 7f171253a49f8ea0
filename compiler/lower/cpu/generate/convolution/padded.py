"""Copies of rows of a tensor with zero padding, with strides separated by the remainder of the column."""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.form import Window
from heterocc.compiler.lower.cpu.generate.places import index


def padded_row(
    flat: tirx.Buffer,
    source: tirx.Expr,
    copied: tirx.Buffer,
    to: tirx.Expr,
    columns: tuple[Window, int, int],
    rows: tuple[Window, tirx.Expr, bool],
    lanes: int,
) -> None:
    """Copy the row that begins at `source` to `to`; a row outside the tensor is zeros.

    `columns` are the window, the length of a copied row, and the distance between the copies of its phases; `rows` the
    window, the row's number, and whether it is never outside.
    """
    window, pitch, plane = columns

    def take() -> None:
        for place, phase in enumerate(window.phases):
            _take(flat, source, copied, to + index(place * plane), (window, pitch, phase), lanes)

    def clear() -> None:
        for place in range(len(window.phases)):
            _clear(copied, to + index(place * plane), pitch)

    if rows[2]:
        take()
    else:
        emit.either(tirx.all(rows[1] >= index(0), rows[1] < index(rows[0].size)), take, clear)


def _take(
    flat: tirx.Buffer,
    source: tirx.Expr,
    copied: tirx.Buffer,
    to: tirx.Expr,
    columns: tuple[Window, int, int],
    lanes: int,
) -> None:
    """Copy all columns of one phase of a row, with zero padding."""
    window, pitch, phase = columns
    shift = phase - window.before
    first = max(0, -(shift // window.stride))
    end = max(first, min(pitch, -(-(window.size - shift) // window.stride)))
    _clear(copied, to, first)
    _clear(copied, to + index(end), pitch - end)
    source, to, count = source + index(first * window.stride + shift), to + index(first), end - first
    if not count:
        return
    if window.stride == 1:
        _in_vectors(
            count,
            lanes,
            lambda start, width: emit.put(copied, emit.vector(flat, source + start, width), to + start, width),
        )
        return
    begin = first * window.stride + shift
    # Two vectors hold one of every other column; they have to end, or to begin, inside the row.
    earlier = 0 if begin + 2 * count <= window.size else 1
    if window.stride == 2 and count >= lanes and begin >= earlier:
        every_other = range(earlier, 2 * lanes, 2)

        def take(start: tirx.Expr, width: int) -> None:
            from_ = source + start * index(2) - index(earlier)
            pair = [emit.vector(flat, from_, width), emit.vector(flat, from_ + index(width), width)]
            emit.put(copied, tirx.Shuffle(pair, list(every_other)), to + start, width)

        _in_vectors(count, lanes, take)
        return
    with emit.loop(count) as place:
        build.buffer_store(copied, flat[source + place * index(window.stride)], [to + place])


def _in_vectors(count: int, lanes: int, move: Callable[[tirx.Expr, int], None]) -> None:
    """`move(start, width)` for vectors that cover `count` numbers, the last overlapping the one before."""
    width = min(lanes, count)
    with emit.loop(count // width) as number:
        move(number * index(width), width)
    if count % width:
        move(index(count - width), width)


def _clear(copied: tirx.Buffer, to: tirx.Expr, count: int) -> None:
    if count:
        with emit.loop(count) as place:
            build.buffer_store(copied, build.float32(0.0), [to + place])

"""Copies of rows of a tensor with padding, with strides separated by the remainder of the column.

Rows are copied in vectors whose masks leave out the padding, by instruction sets that read parts of vectors; else
number by number, which LLVM makes vectors of where they are side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.form import Window
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.masked import mask, masked_vector
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.sizes import Size
from heterocc.compiler.lower.kernels.expressions import dtype_of


@dataclass(frozen=True, slots=True)
class CopiedRow:
    """A copied row of `pitch` numbers, with the window along it; the copies of its phases are `plane` apart.

    The `padding` has one value.
    """

    window: Window
    pitch: Size
    plane: Size
    padding: float = 0.0


def takes_vectors(stride: int, isa: Isa, dtype: str = "float32") -> bool:
    """Whether columns by a stride are copied in vectors: fewer shuffles than numbers."""
    return isa.reads_parts and dtype == "float32" and stride <= max(2, isa.lanes // 2)


def copy_row(
    flat: tirx.Buffer,
    source: tirx.Expr,
    copied: tirx.Buffer,
    to: tirx.Expr,
    columns: CopiedRow,
    row: tirx.Expr,
    rows: Size,
    isa: Isa,
) -> None:
    """Copy the row that begins at `source` to `to`. A `row` that is not one of `rows` is padding.

    In vectors, the last one of each phase writes up to `lanes` - 1 numbers beyond the copied row. What is beyond may be
    the next phase, which is written again: the last vectors are written first.
    """
    in_vectors = takes_vectors(columns.window.stride, isa, dtype_of(copied))
    write = partial(_vectors, lanes=isa.lanes) if in_vectors else _numbers
    inside, outside = (partial(write, read, source, copied, to, columns) for read in (flat, None))
    emit.either(tirx.all(row >= index(0), row < index(rows)), inside, outside)


def _vectors(
    flat: tirx.Buffer | None, source: tirx.Expr, copied: tirx.Buffer, to: tirx.Expr, columns: CopiedRow, lanes: int
) -> None:
    """Copy all phases of a row, or the padding if there is no `flat`."""
    window, plane = columns.window, columns.plane
    vectors = -(-columns.pitch // lanes)

    def loaded(first: tirx.Expr) -> tirx.Expr:
        if flat is None:
            return emit.broadcast(tirx.const(columns.padding, "float32"), lanes)
        kept = mask(first, lanes, window.size)
        return build.bind(masked_vector(flat, source + first, lanes, kept, columns.padding))

    with emit.loop(vectors) as number:
        place = (index(vectors - 1) - number) * index(lanes)
        first = emit.bound(place * index(window.stride) - index(window.before))
        parts = [loaded(first + index(n * lanes)) for n in range(window.stride)]
        for phase, remainder in enumerate(window.phases):
            emit.put(copied, every(parts, window.stride, remainder, lanes), to + index(phase * plane) + place, lanes)


def _numbers(
    flat: tirx.Buffer | None, source: tirx.Expr, copied: tirx.Buffer, to: tirx.Expr, columns: CopiedRow
) -> None:
    """As `_vectors`, number by number."""
    window, pitch, padding = columns.window, index(columns.pitch), columns.padding
    with emit.loop(len(window.phases)) as number:
        here = to + number * index(columns.plane)
        if flat is None:
            _pad(copied, here, columns.pitch, padding)
            return
        shift = number * index(window.phases.step) - index(window.before)
        begin = -tirx.floordiv(shift, index(window.stride))
        end = -tirx.floordiv(shift - index(window.size), index(window.stride))
        first = emit.bound(tirx.max(index(0), tirx.min(pitch, begin)))
        last = emit.bound(tirx.max(first, tirx.min(pitch, end)))
        _pad(copied, here, first, padding)
        with emit.loop(last - first) as column:
            there = source + shift + (first + column) * index(window.stride)
            build.buffer_store(copied, flat[there], [here + first + column])
        _pad(copied, here + last, pitch - last, padding)


def every(vectors: Sequence[tirx.Expr], stride: int, first: int, lanes: int) -> tirx.Expr:
    """Every `stride`th number from number `first` on of as many vectors, of which each step takes one more."""
    places = [divmod(first + lane * stride, lanes) for lane in range(lanes)]
    taken = vectors[0]
    for number in range(1, stride):
        order = []
        for lane, (vector, place) in enumerate(places):
            before = place if number == 1 and vector == 0 else lane
            order.append(lanes + place if vector == number else before)
        taken = tirx.Shuffle([taken, vectors[number]], order)
    return taken


def _pad(copied: tirx.Buffer, to: tirx.Expr, count: int | tirx.Expr, padding: float) -> None:
    with emit.loop(count) as place:
        build.buffer_store(copied, tirx.const(padding, dtype_of(copied)), [to + place])

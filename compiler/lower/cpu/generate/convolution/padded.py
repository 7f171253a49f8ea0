"""Copies of rows of a tensor with zero padding, with strides separated by the remainder of the column.

With masks, what these leave out is the padding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.form import Window
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.masked import mask, masked_vector
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.spans import in_vectors
from heterocc.compiler.lower.cpu.sizes import is_number, larger, smaller
from heterocc.compiler.lower.kernels.expressions import dtype_of

MANY_PHASES = 4
"""The limit on phases whose copies have code of their own: LLVM takes seconds for that of a hundred."""


@dataclass(frozen=True, slots=True)
class CopiedRow:
    """A copied row of `pitch` numbers, with the window along it; the copies of its phases are `plane` apart."""

    window: Window
    pitch: int
    plane: int


@dataclass(frozen=True, slots=True)
class SourceRow:
    """A row of a tensor by its `number`, which may be outside unless it is always `inside`, with the window across."""

    window: Window
    number: tirx.Expr
    inside: bool


def padded_row(
    flat: tirx.Buffer,
    source: tirx.Expr,
    copied: tirx.Buffer,
    to: tirx.Expr,
    columns: CopiedRow,
    row: SourceRow,
    lanes: int,
) -> None:
    """Copy the row that begins at `source` to `to`; a row outside the tensor is zeros."""
    window, pitch, plane = columns.window, columns.pitch, columns.plane

    def take() -> None:
        if len(window.phases) > MANY_PHASES and not takes_vectors(window.stride, lanes):
            _take_numbers(flat, source, copied, to, columns)
            return
        for place, phase in enumerate(window.phases):
            here = to + index(place * plane)
            first, end = _inside(window, pitch, phase)
            _clear(copied, here, first)
            _clear(copied, here + index(end), pitch - end)
            _take(flat, source, copied, here, (window, pitch, phase), lanes)

    def clear() -> None:
        with emit.loop(len(window.phases)) as place:
            _clear(copied, to + place * index(plane), pitch)

    _if_inside(row, take, clear)


def takes_masked_rows(window: Window, isa: Isa) -> bool:
    """Whether `masked_row` copies the rows of a window: of a length that is known only at run time."""
    return isa.reads_parts and not is_number(window.size) and takes_vectors(window.stride, isa.lanes)


def masked_row(
    flat: tirx.Buffer,
    source: tirx.Expr,
    copied: tirx.Buffer,
    to: tirx.Expr,
    columns: CopiedRow,
    row: SourceRow,
    lanes: int,
) -> None:
    """As `padded_row`, by vectors that are loaded by masks: for instruction sets that have these.

    The last vector of each phase writes up to `lanes` - 1 numbers beyond the copied row. What is beyond may be the next
    phase, which is written again: the last vectors are written first.
    """
    window, pitch, plane = columns.window, columns.pitch, columns.plane
    vectors = -(-pitch // lanes)

    def loaded(first: tirx.Expr | int) -> tirx.Expr:
        if isinstance(first, int):
            if 0 <= first <= window.size - lanes:
                return emit.vector(flat, source + index(first), lanes)
            if not -lanes < first < window.size:
                return emit.zeros(lanes, dtype_of(copied))
            first = index(first)
        return masked_vector(flat, source + first, lanes, mask(first, lanes, window.size))

    def put(place: tirx.Expr, parts: Sequence[tirx.Expr]) -> None:
        for number, phase in enumerate(window.phases):
            emit.put(copied, every(parts, window.stride, phase, lanes), to + index(number * plane) + place, lanes)

    def take() -> None:
        if is_number(window.size) and is_number(pitch):
            for start in reversed(range(0, pitch, lanes)):
                first = start * window.stride - window.before
                put(index(start), [build.bind(loaded(first + n * lanes)) for n in range(window.stride)])
            return
        with emit.loop(vectors) as number:
            place = (index(vectors - 1) - number) * index(lanes)
            begin = emit.bound(place * index(window.stride) - index(window.before))
            put(place, [build.bind(loaded(begin + index(n * lanes))) for n in range(window.stride)])

    def clear() -> None:
        with emit.loop(vectors) as number:
            put((index(vectors - 1) - number) * index(lanes), [emit.zeros(lanes, dtype_of(copied))] * window.stride)

    _if_inside(row, take, clear)


def _if_inside(row: SourceRow, take: Callable[[], None], otherwise: Callable[[], None]) -> None:
    """Write `take` for a row of the tensor, `otherwise` for one outside it."""
    if row.inside:
        take()
    else:
        there = tirx.all(row.number >= index(0), row.number < index(row.window.size))
        emit.either(there, take, otherwise)


def _inside(window: Window, pitch: int, phase: int) -> tuple[int, int]:
    """The places of a phase's row that are not zeros: from the first to before the second."""
    shift = phase - window.before
    first = max(0, -(shift // window.stride))
    return first, larger(first, smaller(pitch, -(-(window.size - shift) // window.stride)))


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
    first, end = _inside(window, pitch, phase)
    begin = first * window.stride + phase - window.before
    count = end - first
    if is_number(count) and not count:
        return
    source, to = source + index(begin), to + index(first)
    if window.stride == 1:
        in_vectors(
            count,
            lanes,
            lambda start, width: emit.put(copied, emit.vector(flat, source + start, width), to + start, width),
        )
        return
    while is_number(count) and lanes > max(4, count):
        lanes //= 2
    stride = window.stride
    # As many vectors as the stride hold one of every so many columns; they have to begin, and to end, inside the row.
    earlier = max(0, begin + stride * count - window.size) if is_number(count) else 0
    if is_number(count) and takes_vectors(stride, lanes) and count >= lanes and begin >= earlier:
        in_vectors(
            count,
            lanes,
            lambda start, width: emit.put(
                copied,
                _every(flat, source + start * index(stride) - index(earlier), stride, earlier, width),
                to + start,
                width,
            ),
        )
        return
    with emit.loop(count) as place:
        build.buffer_store(copied, flat[source + place * index(window.stride)], [to + place])


def _take_numbers(
    flat: tirx.Buffer,
    source: tirx.Expr,
    copied: tirx.Buffer,
    to: tirx.Expr,
    columns: CopiedRow,
) -> None:
    """Copy all phases of a row, number by number."""
    window, pitch, plane = columns.window, columns.pitch, columns.plane
    known = is_number(window.size) and is_number(pitch)

    def ends(phase: int) -> tuple[int, int | None]:
        first, end = _inside(window, pitch, phase)
        return first, end if known else None

    for place, phases in window.phases_alike(ends):
        first, end = ends(phases[0])
        begin = first * window.stride + phases[0] - window.before
        with emit.loop(len(phases)) as number:
            here = to + (index(place) + number) * index(plane)
            if end is not None:
                stop = index(end)
            else:
                left = index(window.size + window.before - phases[0] + window.stride - 1)
                last = tirx.floordiv(left - number * index(phases.step), index(window.stride))
                stop = emit.bound(tirx.max(index(first), tirx.min(index(pitch), last)))
            _clear(copied, here, first)
            _clear(copied, here + stop, index(pitch) - stop if end is None else pitch - end)
            there = source + index(begin) + number * index(phases.step)
            with emit.loop(stop - index(first) if end is None else end - first) as column:
                number_there = flat[there + column * index(window.stride)]
                build.buffer_store(copied, number_there, [here + index(first) + column])


def takes_vectors(stride: int, lanes: int) -> bool:
    """Whether columns by a stride are copied in vectors: fewer shuffles than numbers."""
    return lanes > 1 and stride <= max(2, lanes // 2)


def _every(flat: tirx.Buffer, begin: tirx.Expr, stride: int, first: int, lanes: int) -> tirx.Expr:
    """Every `stride`th number from `begin` + `first` on."""
    return every([emit.vector(flat, begin + index(n * lanes), lanes) for n in range(stride)], stride, first, lanes)


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


def _clear(copied: tirx.Buffer, to: tirx.Expr, count: int | tirx.Expr) -> None:
    if isinstance(count, tirx.Expr) or not is_number(count) or count:
        with emit.loop(count) as place:
            build.buffer_store(copied, emit.zeros(1, dtype_of(copied)), [to + place])

"""Generation of pooling in NCHW: rows of a window are combined first, then columns, in vectors along a row of outputs.

The combined rows are in the first-level cache, with their padding. Windows of few taps are read where they are instead,
if none reads padding or masks leave it out. Columns by a stride are separated by shuffles of as many vectors. Of maps
of any size, the last vector of a row is masked if the instruction set has masks. The order of additions differs from
the sequential one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from tvm import tirx
from tvm.ir import TensorLoad
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.divisors import with_tables
from heterocc.compiler.lower.cpu.generate.convolution.form import Window, padding, read_window
from heterocc.compiler.lower.cpu.generate.convolution.padded import every
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import Element, can_store, kept_stages
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.masked import can_mask, in_masked, mask, masked_vector, store_masked
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, index, shape_of
from heterocc.compiler.lower.cpu.generate.read import Fold
from heterocc.compiler.lower.cpu.sizes import filled, is_number, larger, smaller, typical
from heterocc.compiler.lower.kernels.expressions import dtype_of

MOST_TAPS = 16
"""The limit on unrolled taps of a row or column; longer windows are scheduled."""

MOST_STRIDE = 8
"""The limit on strides along a row of which vectors of inputs are shuffled; numbers of others are gathered."""

FEW_TAPS = 4
"""The taps of a window up to which rows are combined in registers, again for each column that reads them."""

NARROW_TAPS = 12
"""The same for rows of at most a vector, each of which would wait for the combined row that was stored just before."""

MANY_TERMS = 8
"""The terms of a plane above which it is reduced: rows of 9 to 16 took two to four times as long as windows."""

LINES = 8
"""The number of rows whose windows' rows are combined before their columns, so that stored values leave the CPU's store
buffer before they are read: a load across two stores in it would wait."""

PLANES = 16
"""The planes from which on each is computed by one thread."""

WORK = 4
"""The cost of combining one value, in multiply-adds, for the division of work between threads."""


@dataclass(frozen=True, slots=True)
class Pooling:
    """out[outer…, row, column, after…]: `data` is the argument's buffer.

    `loops` are those over rows, of two dimensions, and columns.
    """

    data: tirx.Buffer
    outer: Axis
    rows: Window
    columns: Window
    loops: tuple[int, ...]
    after: Axis

    @property
    def is_reduction(self) -> bool:
        """Whether windows are so large and apart that vectors of outputs take longer than one of terms for each: those
        of all of a plane or row, of more than MANY_TERMS.
        """
        whole = all(w.places == 1 and w.taps == w.size for w in (self.rows, self.columns))
        return whole and self.rows.taps * self.columns.taps > MANY_TERMS


def generate_pooling(kernel: Fold, isa: Isa) -> tuple[tirx.PrimFunc, tuple[Panels, ...]] | None:
    """The kernel written as pooling, None if it is not a sum, maximum or minimum over windows."""
    pool = find_pooling(kernel)
    if pool is None or pool.is_reduction or not can_store(kernel):
        return None
    if max(pool.rows.taps, pool.columns.taps) > MOST_TAPS:
        return None
    return emit.written(kernel, {}, _Writer(kernel, pool, isa).write), ()


def find_pooling(kernel: Fold, after: int = 0) -> Pooling | None:
    """Read a kernel as pooling of one or two dimensions, which `after` others follow."""
    data, places, terms = kernel.value, kernel.places, kernel.terms
    outer = len(places) - len(terms) - after
    if not isinstance(data, TensorLoad) or len(terms) not in (1, 2) or outer < 0 or len(data.indices) != len(places):
        return None
    padded = padding(kernel, data, kernel.start)
    shape = None if padded is None else shape_of(padded[0])
    if padded is None or shape is None:
        return None
    source, before = padded
    others = [*range(outer), *range(outer + len(terms), len(places))]
    if any(before[d] or not data.indices[d].same_as(kernel.loops[places[d]]) for d in others):
        return None
    windows = [Window(1, 0, 1, 1, 1, 1)] if len(terms) == 1 else []
    for d, term in enumerate(terms, outer):
        window = read_window(kernel, data.indices[d], (places[d], term), (shape[d], before[d]))
        if window is None or not is_number(window.taps) or window.before > window.reach:
            return None
        windows.append(window)
    inner = places[outer : outer + len(terms)]
    rows, columns = windows
    after_ = kernel.axis(places[outer + len(terms) :])
    return Pooling(source, kernel.axis(places[:outer]), rows, columns, inner, after_)


@dataclass(frozen=True, slots=True)
class _Line:
    """A row of outputs: the place of its plane, and the first of the rows that it reads, with where that begins."""

    plane: Place
    number: tirx.Expr
    top: tirx.Expr
    begin: tirx.Expr


Read = Callable[[tirx.Expr, int, int], tirx.Expr]
"""A vector of the combined rows: from which column of the padded map on, of how many lanes, every how many columns."""


class _Writer:
    """A generator of pooling: planes or parts of them are divided among threads, row by row of outputs."""

    def __init__(self, kernel: Fold, pool: Pooling, isa: Isa) -> None:
        self.kernel, self.pool = kernel, pool
        rows, columns = pool.rows, pool.columns
        sized = not (is_number(rows.places) and is_number(columns.places))
        self.masks = sized and isa.has_masks
        self.lanes = isa.lanes if self.masks else isa.narrowed(columns.places).lanes
        self.along = Axis(pool.loops[-1:], (kernel.extents[pool.loops[-1]],))
        self.stores_masked = self.masks and can_mask(kernel, self.along)
        few = rows.taps == 1 or (rows.taps * columns.taps <= FEW_TAPS and columns.stride <= 2)
        self.in_registers = few and ((self.masks and columns.stride <= 2) or self._reads_inside())
        taps = rows.taps * columns.taps
        self.takes_narrow = self.stores_masked and taps <= NARROW_TAPS and columns.stride <= 2
        # The last vector of outputs reads as many vectors as the stride.
        spare = min(columns.stride, MOST_STRIDE) * (self.lanes + 1)
        self.length = larger((columns.places - 1) * columns.stride + columns.reach + 1, columns.before + columns.size)
        self.length += spare

    def _reads_inside(self) -> bool:
        """Whether all windows' rows are inside the image, and all numbers that vectors load inside its rows."""
        rows, columns = self.pool.rows, self.pool.columns
        if not all(map(is_number, (rows.size, rows.places, columns.size, columns.places))) or columns.before:
            return False
        read = (columns.places - 1) * columns.stride + columns.reach + 1
        if columns.stride == 2:
            read = columns.places * 2 + columns.reach - columns.reach % 2
        return rows.is_inside and read <= columns.size and columns.stride <= 2

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        pool, rows, columns = self.pool, self.pool.rows, self.pool.columns
        planes = pool.outer.length
        parts = 1 if typical(planes) >= PLANES else smaller(rows.places, -(-PLANES // typical(planes)))
        shared = WORK * planes * rows.places * columns.places * (rows.taps + columns.taps)
        tasks = emit.tasks_of(shared, planes * parts)
        # Adjacent windows are read at the places of the stores.
        overlap = columns.before > 0 or columns.reach >= columns.stride
        lines = min(LINES, typical(-(-rows.places // parts))) if overlap else 1
        with emit.shared_loop(tasks, shared) as task:
            whole = -(-columns.places // self.lanes) * self.lanes if self.masks else columns.places
            self.kernel = with_tables(self.kernel, whole, rows.taps * columns.taps)
            share = arguments, (task, tasks), (planes, parts)
            if self.in_registers:
                self._planes(*share, self._in_place)
            elif self.takes_narrow:
                emit.either(
                    index(columns.places) <= index(self.lanes),
                    lambda: self._planes(*share, self._narrow),
                    lambda: self._planes_by_lines(*share, lines),
                )
            else:
                self._planes_by_lines(*share, lines)

    @contextmanager
    def _parts(
        self, task: tuple[tirx.Expr, int], work: tuple[int, int]
    ) -> Iterator[tuple[tuple[tirx.Expr, tirx.Expr], Place, tirx.Expr]]:
        """A loop over the parts of planes of a task: the range of rows, the place of the plane, and its number."""
        (planes, parts), pool = work, self.pool
        with emit.share_loop(*task, planes * parts) as number:
            plane, part = emit.unpacked(number, (planes, parts))
            first, end = (emit.bound(place) for place in emit.share(part, parts, pool.rows.places))
            yield (first, end), self.kernel.place(emit.split(pool.outer, plane)), plane

    def _planes(
        self,
        arguments: Arguments,
        task: tuple[tirx.Expr, int],
        work: tuple[int, int],
        row: Callable[[Arguments, _Line], None],
    ) -> None:
        """The rows of outputs of a task, one by one."""
        with self._parts(task, work) as (ends, outer, plane), build.serial(*ends) as line:
            row(arguments, self._line(outer, plane, line))

    def _planes_by_lines(
        self, arguments: Arguments, task: tuple[tirx.Expr, int], work: tuple[int, int], lines: int
    ) -> None:
        """The rows of outputs of a task, whose windows' rows are combined for some at a time."""
        combined = self._cleared(lines)

        def blocks(length: tirx.Expr) -> tirx.Expr:
            return tirx.floordiv(length + index(lines - 1), index(lines))

        with (
            self._parts(task, work) as ((first, end), outer, plane),
            build.serial(index(0), blocks(end - first)) as block,
        ):
            top = emit.bound(first + block * index(lines))
            count = emit.bound(tirx.min(end - top, index(lines)))
            with build.serial(index(0), count) as line:
                self._combine_rows(arguments, combined, line, self._line(outer, plane, top + line))
            with build.serial(index(0), count) as line:
                base = emit.bound(line * index(self.length))
                self._row(arguments, self._line(outer, plane, top + line), partial(_stepping, combined, base))

    def _cleared(self, lines: int) -> tirx.Buffer:
        """A buffer for combined rows; what surrounds these is padding, and is never written."""
        combined = emit.scratch(self.length * lines)
        with emit.loop(self.length * lines) as place:
            build.buffer_store(combined, build.float32(self.kernel.start), [place])
        return combined

    def _line(self, outer: Place, plane: tirx.Expr, number: tirx.Expr) -> _Line:
        rows, columns = self.pool.rows, self.pool.columns
        top = emit.bound(number * index(rows.stride) - index(rows.before))
        begin = emit.bound((plane * index(rows.size) + top) * index(columns.size))
        return _Line(outer, number, top, begin)

    def _if_inside(self, line: _Line, write: Callable[[bool], None]) -> None:
        """Call `write` with whether all rows that a row of outputs reads are inside the image, for both if needed."""
        rows = self.pool.rows
        if is_number(rows.size) and is_number(rows.places) and rows.is_inside:
            write(True)
        else:
            inside = tirx.all(line.top >= index(0), line.top + index(rows.reach) < index(rows.size))
            emit.either(inside, lambda: write(True), lambda: write(False))

    def _combined(
        self,
        arguments: Arguments,
        line: _Line,
        column: tirx.Expr,
        lanes: int,
        kept: tirx.Expr | None,
        *,
        inside: bool,
    ) -> tirx.Expr:
        """A vector of the combined rows, from a column of the map on, of the lanes `kept`.

        Rows outside the image are left out, unless all are `inside`.
        """
        rows, flat, combine = self.pool.rows, arguments.flat(self.pool.data), self.kernel.combine

        def value(tap: tirx.Expr) -> tirx.Expr:
            place = line.begin + tap * index(rows.dilation) * index(self.pool.columns.size) + column
            if kept is None:
                return emit.vector(flat, place, lanes)
            return masked_vector(flat, place, lanes, kept, self.kernel.start)

        if inside:
            total = value(index(0))
            if math.isinf(self.kernel.start):  # of a maximum, from which a NaN in the first row would hide others
                total = combine(emit.broadcast(build.float32(self.kernel.start), lanes), total)
            for tap in range(1, rows.taps):
                total = combine(total, value(index(tap)))
            return build.bind(total)
        held = emit.registers(1, lanes)
        emit.put(held, emit.broadcast(build.float32(self.kernel.start), lanes), index(0), lanes)
        with emit.loop(rows.taps) as tap:
            at = line.top + tap * index(rows.dilation)
            with build.If(tirx.all(at >= index(0), at < index(rows.size))), build.Then():
                emit.put(held, combine(emit.vector(held, index(0), lanes), value(tap)), index(0), lanes)
        return build.bind(emit.vector(held, index(0), lanes))

    def _combine_rows(self, arguments: Arguments, combined: tirx.Buffer, number: tirx.Expr, line: _Line) -> None:
        """Combine the rows that a row of outputs reads."""
        columns = self.pool.columns
        base = emit.bound(number * index(self.length) + index(columns.before))

        def write(inside: bool) -> None:
            def move(start: tirx.Expr, lanes: int, kept: tirx.Expr | None) -> None:
                value = self._combined(arguments, line, start, lanes, kept, inside=inside)
                emit.put(combined, value, base + start, lanes)

            lanes = self._lanes_of(columns.size)
            in_masked(columns.size, lanes, move, masks=self.masks, few=not inside)

        self._if_inside(line, write)

    def _in_place(self, arguments: Arguments, line: _Line) -> None:
        """A row of outputs, whose windows' rows are combined in registers."""
        columns, before = self.pool.columns, index(self.pool.columns.before)

        def write(inside: bool) -> None:
            def read(at: tirx.Expr, lanes: int, _step: int) -> tirx.Expr:
                return self._combined(arguments, line, at - before, lanes, None, inside=inside)

            def masked(at: tirx.Expr, lanes: int, _step: int) -> tirx.Expr:
                kept = mask(at - before, lanes, columns.size)
                return self._combined(arguments, line, at - before, lanes, kept, inside=inside)

            self._row(arguments, line, read, masked if self.masks else None)

        self._if_inside(line, write)

    def _narrow(self, arguments: Arguments, line: _Line) -> None:
        """A row of at most a vector of outputs: what it reads is masked at the places of the taps."""
        columns, before = self.pool.columns, index(self.pool.columns.before)
        kept = mask(index(0), self.lanes, columns.places)

        def write(inside: bool) -> None:
            def read(at: tirx.Expr, lanes: int, _step: int) -> tirx.Expr:
                there = mask(emit.bound(at - before), lanes, columns.size)
                return self._combined(arguments, line, at - before, lanes, there, inside=inside)

            self._outputs(arguments, line, (index(0), self.lanes, kept), read)

        self._if_inside(line, write)

    def _row(self, arguments: Arguments, line: _Line, read: Read, masked: Read | None = None) -> None:
        """A row of outputs; those of which not all that they read is in the map read it `masked`, if that is given."""
        columns = self.pool.columns

        def vector(start: tirx.Expr, lanes: int, kept: tirx.Expr | None) -> None:
            if masked is None:
                self._outputs(arguments, line, (start, lanes, kept), read)
                return
            first = start * index(columns.stride) - index(columns.before)
            last = first + index(columns.reach + lanes * columns.stride - 1)
            emit.either(
                tirx.all(first >= index(0), last < index(columns.size)),
                lambda: self._outputs(arguments, line, (start, lanes, kept), read),
                lambda: self._outputs(arguments, line, (start, lanes, kept), masked),
            )

        lanes = self._lanes_of(columns.places)
        in_masked(columns.places, lanes, vector, masks=self.stores_masked)

    def _lanes_of(self, count: int) -> int:
        """The lanes of vectors of so many numbers; of a count of the run, `in_vectors` halves them."""
        return filled(self.lanes, count) if is_number(count) else self.lanes

    def _outputs(
        self, arguments: Arguments, line: _Line, place: tuple[tirx.Expr, int, tirx.Expr | None], read: Read
    ) -> None:
        """A vector of outputs: its first column, its lanes, and which of these are stored."""
        kernel, (start, lanes, kept), stride = self.kernel, place, self.pool.columns.stride
        known: dict[int, tirx.Expr] = {}

        def at(shift: int, step: int = 1) -> tirx.Expr:
            if shift not in known:
                known[shift] = read(start * index(stride) + index(shift), lanes, step)
            return known[shift]

        def tap(across: int) -> tirx.Expr:
            if lanes == 1 or not 1 < stride <= MOST_STRIDE:
                return at(across, stride)
            first = across - across % stride
            return every([at(first + number * lanes) for number in range(stride)], stride, across % stride, lanes)

        combined = tap(0)
        for number in range(1, self.pool.columns.taps):
            combined = kernel.combine(combined, tap(number * self.pool.columns.dilation))
        total = emit.registers(1, lanes)
        emit.put(total, combined, index(0), lanes)

        def place_of(_row: tirx.Expr, lane: tirx.Expr) -> Place:
            loops = self.pool.loops
            return [*line.plane, *kernel.place(zip(loops, [line.number, start + lane][-len(loops) :], strict=True))]

        if self.stores_masked and lanes == self.lanes:
            store_masked(kernel, arguments, total, (1, lanes), self.along, place_of, kept)
            return
        registers = {n: emit.registers(1, lanes, dtype_of(s.value)) for n, s in kept_stages(kernel)}
        with emit.loop(lanes, "vectorized") as lane:
            Element(kernel, arguments, total[lane], registers, place_of(index(0), lane), lane).store()


def _stepping(row: tirx.Buffer, base: tirx.Expr, at: tirx.Expr, lanes: int, step: int) -> tirx.Expr:
    if lanes == 1 or step == 1:
        return emit.vector(row, base + at, lanes)
    return row[build.ramp(base + at, index(step), lanes)]

"""Generation of pooling of maps of any size in NCHW, in masked vectors along a row of outputs.

As in `pooling.py`, rows of a window are combined first, then columns: in a buffer in the first-level cache, or of small
windows in registers, for each vector of outputs. What masks leave out is the padding, so that one form of code serves
all sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.divisors import with_tables
from heterocc.compiler.lower.cpu.generate.convolution.padded import every
from heterocc.compiler.lower.cpu.generate.convolution.pooling import Pooling, find_pooling
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.masked import can_mask, mask, masked_vector, store_masked
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, index
from heterocc.compiler.lower.cpu.generate.read import Fold
from heterocc.compiler.lower.cpu.sizes import is_number, smaller, typical

FEW_TAPS = 4
"""The taps of a window up to which rows are combined in registers, again for each column that reads them."""

MOST_STRIDE = 8
"""The limit on strides along a row: a vector of outputs is made from so many vectors of inputs."""

LINES = 8
"""The rows whose windows' rows are combined before their columns, so that stored values leave the CPU's store buffer
before they are read: a load across two stores in it would wait."""

TASKS = 16
"""The limit on shares of the work, each of which allocates its memory once: enough for the threads of any machine."""

PLANES = 16
"""The planes from which on each is computed by one thread."""

WORK = 4
"""The cost of combining one value, in multiply-adds, for the division of work between threads."""

Tap = Callable[[int], tirx.Expr]
"""The combined rows that a vector of outputs reads at the tap of this number."""


def generate_sized_pooling(kernel: Fold, isa: Isa) -> tuple[tirx.PrimFunc, tuple[Panels, ...]] | None:
    """The kernel written as pooling of maps of any size; None if it is another or not suitable."""
    found = find_pooling(kernel)
    if found is None or not isa.has_masks or found.columns.stride > MOST_STRIDE:
        return None
    sized = not (is_number(found.rows.places) and is_number(found.columns.places))
    if not sized or not can_mask(kernel, _along(kernel, found)):
        return None
    return emit.written(kernel, {}, _Writer(kernel, found, isa).write), ()


def _along(kernel: Fold, found: Pooling) -> Axis:
    """The axis of a row of outputs."""
    return Axis((found.loops[-1],), (kernel.extents[found.loops[-1]],))


@dataclass(frozen=True, slots=True)
class _Line:
    """A row of outputs: the place of its plane, and what it reads: where each of the rows begins, and whether it is
    in the map.
    """

    plane: Place
    number: tirx.Expr
    begins: tuple[tirx.Expr, ...]
    exist: tuple[tirx.Expr, ...]
    inside: tirx.Expr


class _Writer:
    """A generator of pooling: planes or parts of them are divided among threads, row by row of outputs."""

    def __init__(self, kernel: Fold, found: Pooling, isa: Isa) -> None:
        self.kernel, self.found, self.lanes = kernel, found, isa.lanes
        rows, columns = found.rows, found.columns
        self.in_registers = (rows.taps == 1 or rows.taps * columns.taps <= FEW_TAPS) and columns.stride <= 2
        self.copied = -(-columns.extent // self.lanes)
        """The vectors of a combined row that outputs read of each phase of a stride."""
        self.pitch = (self.copied + -(-(columns.reach // columns.stride) // self.lanes)) * self.lanes
        self.along = _along(kernel, found)

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        found, rows, columns = self.found, self.found.rows, self.found.columns
        planes = found.outer.length
        parts = 1 if typical(planes) >= PLANES else smaller(rows.places, -(-PLANES // typical(planes)))
        work = WORK * planes * rows.places * columns.places * (rows.taps + columns.taps)
        shared = typical(work) >= emit.PARALLEL_WORK
        tasks = smaller(planes * parts, TASKS) if shared else 1
        with emit.loop(tasks, "parallel" if shared else "serial") as task:
            whole = -(-columns.places // self.lanes) * self.lanes
            self.kernel = with_tables(self.kernel, whole, rows.taps * columns.taps)
            combined = None if self.in_registers else self._cleared()
            with emit.share_loop(task, tasks, planes * parts) as number:
                plane, part = emit.unpacked(number, (planes, parts))
                outer = [(Axis((n,), (self.kernel.extents[n],)), value) for n, value in emit.split(found.outer, plane)]
                first, end = (emit.bound(place) for place in emit.share(part, parts, rows.places))
                if combined is None:
                    with build.serial(first, end) as line:
                        self._line_of_map(arguments, self._line(outer, plane, line))
                    return
                with build.serial(index(0), tirx.floordiv(end - first + index(LINES - 1), index(LINES))) as block:
                    top = emit.bound(first + block * index(LINES))
                    count = emit.bound(tirx.min(end - top, index(LINES)))
                    with build.serial(index(0), count) as line:
                        self._combine_rows(arguments, combined, line, self._line(outer, plane, top + line))
                    with build.serial(index(0), count) as line:
                        self._combine_columns(arguments, combined, line, (outer, top + line))

    def _cleared(self) -> tirx.Buffer:
        """A buffer for combined rows. Vectors of outputs read lanes beyond these, which are never written again."""
        numbers = LINES * len(self.found.columns.phases) * self.pitch
        combined, start = emit.scratch(numbers), build.float32(self.kernel.start)
        with emit.loop(numbers // self.lanes) as vector:
            emit.put(combined, emit.broadcast(start, self.lanes), vector * index(self.lanes), self.lanes)
        return combined

    def _line(self, outer: Place, plane: tirx.Expr, number: tirx.Expr) -> _Line:
        rows, columns = self.found.rows, self.found.columns
        top = emit.bound(number * index(rows.stride) - index(rows.before))
        begin = emit.bound((plane * index(rows.size) + top) * index(columns.size))
        down = [index(tap * rows.dilation) for tap in range(rows.taps)]
        begins = tuple(emit.bound(begin + d * index(columns.size)) for d in down)
        exist = tuple(tirx.all(top + d >= index(0), top + d < index(rows.size)) for d in down)
        inside = tirx.all(top >= index(0), top + index(rows.reach) < index(rows.size))
        return _Line(outer, number, begins, exist, inside)

    def _combined(
        self, arguments: Arguments, line: _Line, column: tirx.Expr, kept: tirx.Expr | None, *, inside: bool
    ) -> tirx.Expr:
        """A vector of the combined rows from a column of the map. Lanes that are not `kept` are outside of it, and so
        are some of the rows, unless all are `inside`.
        """
        flat, lanes = arguments.flat(self.found.data), self.lanes
        combined = None
        for begin, exists in zip(line.begins, line.exist, strict=True):
            here = kept if inside or kept is None else tirx.And(kept, build.broadcast(exists, lanes))
            if here is None:
                value = emit.vector(flat, begin + column, lanes)
            else:
                value = masked_vector(flat, begin + column, lanes, here, self.kernel.start)
            combined = value if combined is None else self.kernel.combine(combined, value)
        return build.bind(combined)

    def _combine_rows(self, arguments: Arguments, combined: tirx.Buffer, to: tirx.Expr, line: _Line) -> None:
        """Combine the rows that a row of outputs reads, with the padding beside them: the phases of a stride apart."""
        columns, lanes = self.found.columns, self.lanes
        base = emit.bound(to * index(len(columns.phases) * self.pitch))

        def combine(*, inside: bool) -> None:
            with emit.loop(self.copied) as vector:
                place = vector * index(lanes)
                first = emit.bound(place * index(columns.stride) - index(columns.before))
                parts = []
                for part in range(columns.stride):
                    column = first + index(part * lanes)
                    kept = mask(column, lanes, columns.size)
                    parts.append(self._combined(arguments, line, column, kept, inside=inside))
                for number, phase in enumerate(columns.phases):
                    taken = every(parts, columns.stride, phase, lanes)
                    emit.put(combined, taken, base + index(number * self.pitch) + place, lanes)

        emit.either(line.inside, lambda: combine(inside=True), lambda: combine(inside=False))

    def _combine_columns(
        self, arguments: Arguments, combined: tirx.Buffer, of: tirx.Expr, line: tuple[Place, tirx.Expr]
    ) -> None:
        """Combine the columns of a row of outputs."""
        columns, lanes = self.found.columns, self.lanes
        base = emit.bound(of * index(len(columns.phases) * self.pitch))

        def vector(start: tirx.Expr, kept: tirx.Expr | None) -> None:
            def tap(number: int) -> tirx.Expr:
                across = number * columns.dilation
                phase = columns.phases.index(across % columns.stride)
                return emit.vector(combined, base + start + index(phase * self.pitch + across // columns.stride), lanes)

            self._store(arguments, tap, line, start, kept)

        with emit.loop(columns.places // lanes) as number:
            vector(emit.bound(number * index(lanes)), None)
        start = emit.bound(index(columns.places - columns.places % lanes))
        with build.If(start < index(columns.places)), build.Then():
            vector(start, mask(start, lanes, columns.places, may_precede=False))

    def _line_of_map(self, arguments: Arguments, line: _Line) -> None:
        """A row of outputs, whose windows' rows are combined in registers."""
        columns, lanes = self.found.columns, self.lanes

        def vector(start: tirx.Expr, first: tirx.Expr, *, masked: bool, inside: bool) -> None:
            known = dict[int, tirx.Expr]()

            def at(shift: int) -> tirx.Expr:
                if shift not in known:
                    column = emit.bound(first + index(shift))
                    kept = mask(column, lanes, columns.size) if masked else None
                    known[shift] = self._combined(arguments, line, column, kept, inside=inside)
                return known[shift]

            def tap(number: int) -> tirx.Expr:
                phase = number * columns.dilation % columns.stride
                begin = number * columns.dilation - phase
                parts = [at(begin + part * lanes) for part in range(columns.stride)]
                return every(parts, columns.stride, phase, lanes)

            kept = mask(start, lanes, columns.places, may_precede=False) if masked else None
            self._store(arguments, tap, (line.plane, line.number), start, kept)

        def vectors(*, inside: bool) -> None:
            with emit.loop(-(-columns.places // lanes)) as number:
                start = emit.bound(number * index(lanes))
                first = emit.bound(start * index(columns.stride) - index(columns.before))
                last = first + index(columns.reach + lanes * columns.stride - 1)
                whole = [first >= index(0), last < index(columns.size), start + index(lanes) <= index(columns.places)]
                if inside:
                    emit.either(
                        tirx.all(*whole),
                        lambda: vector(start, first, masked=False, inside=True),
                        lambda: vector(start, first, masked=True, inside=True),
                    )
                else:
                    vector(start, first, masked=True, inside=False)

        emit.either(line.inside, lambda: vectors(inside=True), lambda: vectors(inside=False))

    def _store(
        self,
        arguments: Arguments,
        tap: Tap,
        line: tuple[Place, tirx.Expr],
        start: tirx.Expr,
        kept: tirx.Expr | None,
    ) -> None:
        """Combine the taps of a vector of outputs, and store the lanes `kept`."""
        kernel, lanes = self.kernel, self.lanes
        combined = tap(0)
        for number in range(1, self.found.columns.taps):
            combined = kernel.combine(combined, tap(number))
        total = emit.registers(1, lanes)
        emit.put(total, combined, index(0), lanes)
        outer, row = line
        axes = [Axis((n,), (kernel.extents[n],)) for n in self.found.loops]

        def place(_row: tirx.Expr, lane: tirx.Expr) -> Place:
            return [*outer, *zip(axes, [row, start + lane][-len(axes) :], strict=True)]

        store_masked(kernel, arguments, total, (1, lanes), self.along, place, kept)

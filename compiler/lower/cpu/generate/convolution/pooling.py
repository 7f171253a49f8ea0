"""Generation of pooling in NCHW: rows of a window are combined first, then columns, in vectors along a row of outputs.

The combined row is in the first-level cache, with its padding; windows of few taps without padding are read in place.
With stride 2 its columns are separated by two shuffles of two vectors. The order of additions differs from the
sequential one.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import tirx
from tvm.ir import TensorLoad
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.blocks import dtype_of
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.divisors import with_tables
from heterocc.compiler.lower.cpu.generate.convolution.form import Window, padding, read_window
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import FLOATS_AND_BYTES, Element, can_store, kept_stages
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Axis, index, shape_of
from heterocc.compiler.lower.cpu.generate.read import Fold
from heterocc.compiler.lower.cpu.generate.reductions import find_reduction
from heterocc.compiler.lower.cpu.generate.spans import in_vectors
from heterocc.compiler.lower.cpu.sizes import is_number, larger, smaller, typical

MOST_TAPS = 16
"""The limit on unrolled taps of a row or column; longer windows are scheduled."""

FEW_TAPS = 4
"""The taps of a window up to which rows are combined in registers, again for each column that reads them."""

MANY_TERMS = 8
"""The terms of a plane above which it is reduced: rows of 9 to 16 took two to four times as long as windows."""

LINES = 8
"""The number of rows whose windows' rows are combined before their columns, so that stored values leave the CPU's store
buffer before they are read: a load across two stores in it would wait."""

WORK = 4
"""The cost of combining one value, in multiply-adds, for the division of work between threads."""


@dataclass(frozen=True, slots=True)
class Pooling:
    """out[outer…, row, column]: `data` is the argument's buffer, `loops` are those over the output's dimensions."""

    data: tirx.Buffer
    outer: Axis
    rows: Window
    columns: Window
    loops: tuple[int, ...]

    @property
    def is_reduction(self) -> bool:
        """Whether windows are so large and apart that vectors of outputs take longer than one of terms for each: those
        of all of a plane or row, of more than MANY_TERMS.
        """
        whole = all(w.places == 1 and w.taps == w.size for w in (self.rows, self.columns))
        return whole and self.rows.taps * self.columns.taps > MANY_TERMS


def generate_pooling(kernel: Fold, isa: Isa) -> tuple[tirx.PrimFunc, tuple[Panels, ...]] | None:
    """The kernel written as pooling, None if it is not a sum, maximum or minimum over windows."""
    found = find_pooling(kernel)
    if found is None or not can_store(kernel, FLOATS_AND_BYTES):
        return None
    if found.is_reduction and find_reduction(kernel, isa.lanes) is not None:
        return None
    return emit.written(kernel, {}, _Writer(kernel, found, isa.narrowed(found.columns.places)).write), ()


def find_pooling(kernel: Fold) -> Pooling | None:
    """Read a kernel as pooling of one or two dimensions, the last ones."""
    data, places, terms = kernel.value, kernel.places, kernel.terms
    if not isinstance(data, TensorLoad) or len(terms) not in (1, 2) or len(places) <= len(terms):
        return None
    padded = padding(kernel, data, kernel.start)
    if padded is None:
        return None
    source, before = padded
    shape = shape_of(source)
    outer = len(places) - len(terms)
    if shape is None or len(data.indices) != len(places) or any(before[:outer]):
        return None
    if any(not data.indices[d].same_as(kernel.loops[places[d]]) for d in range(outer)):
        return None
    windows = [Window(1, 0, 1, 1, 1, 1)] if len(terms) == 1 else []
    for d, term in enumerate(terms, outer):
        window = read_window(kernel, data.indices[d], (places[d], term), (shape[d], before[d]))
        if window is None or window.taps > MOST_TAPS or window.before > window.reach:
            return None
        windows.append(window)
    axis = Axis(tuple(places[:outer]), tuple(kernel.extents[n] for n in places[:outer]))
    return Pooling(source, axis, windows[0], windows[1], tuple(places[outer:]))


class _Writer:
    """A generator of pooling: planes are divided among threads, row by row."""

    def __init__(self, kernel: Fold, found: Pooling, isa: Isa) -> None:
        self.kernel, self.found, self.lanes = kernel, found, isa.lanes
        columns = found.columns
        reads = (columns.places - 1) * columns.stride + columns.reach + 1
        self.padded = columns.before > 0 or not is_number(columns.size) or reads > columns.size
        # Space at the end for the second of two vectors that are separated.
        self.length = larger(reads, columns.before + columns.size) + 2 * self.lanes
        few = found.rows.taps == 1 or (found.rows.taps * columns.taps <= FEW_TAPS and columns.stride <= 2)
        self.in_place = few and not self.padded and self._reads_inside()
        self.work = WORK * found.outer.length * found.rows.places * columns.places * (found.rows.taps + columns.taps)

    def _reads_inside(self) -> bool:
        """Whether all windows' rows are inside the image, and all numbers that vectors load inside its rows."""
        rows, columns = self.found.rows, self.found.columns
        if not (is_number(rows.size) and is_number(rows.places) and is_number(columns.places)):
            return False
        read = columns.places * 2 + columns.reach - columns.reach % 2 if columns.stride == 2 else 0
        return rows.is_inside and read <= columns.size

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        found = self.found
        outer = typical(found.outer.length)
        chunks = 1 if outer >= 16 else smaller(found.rows.places, -(-16 // outer))
        # Adjacent windows are read at the places of the stores.
        overlap = found.columns.before > 0 or found.columns.reach >= found.columns.stride
        lines = min(LINES, typical(-(-found.rows.places // chunks))) if overlap else 1
        with emit.shared_loop(found.outer.length * chunks, self.work) as task:
            plane = tirx.floordiv(task, index(chunks)) if chunks > 1 else task
            chunk = tirx.floormod(task, index(chunks)) if chunks > 1 else index(0)
            row = arguments.flat(found.data) if self.in_place else emit.scratch(self.length * lines)
            if self.padded:
                with emit.loop(self.length * lines) as place:
                    build.buffer_store(row, self._start(), [place])
            first = tirx.floordiv(chunk * index(found.rows.places), index(chunks))
            end = tirx.floordiv((chunk + index(1)) * index(found.rows.places), index(chunks))
            kernel = with_tables(self.kernel, found.columns.places, found.rows.taps * found.columns.taps)
            if self.in_place:
                with build.serial(first, end) as line:
                    source = plane * index(found.rows.size) + line * index(found.rows.stride)
                    self._combine_columns(kernel, arguments, row, source * index(found.columns.size), (plane, line))
                return
            with build.serial(index(0), tirx.floordiv(end - first + index(lines - 1), index(lines))) as block:
                top = first + block * index(lines)
                count = tirx.min(end - top, index(lines))
                with build.serial(index(0), count) as number:
                    self._combine_rows(arguments, row, number * index(self.length), plane, top + number)
                with build.serial(index(0), count) as number:
                    line = number * index(self.length)
                    self._combine_columns(kernel, arguments, row, line, (plane, top + number))

    def _start(self, lanes: int = 1) -> tirx.Expr:
        number = tirx.const(self.kernel.start, "float32")
        return build.broadcast(number, lanes) if lanes > 1 else number

    def _combine_rows(
        self, arguments: Arguments, row: tirx.Buffer, base: tirx.Expr, plane: tirx.Expr, line: tirx.Expr
    ) -> None:
        """Combine the input rows that output row `line` reads, at `base`; those outside the image are left out."""
        rows, columns = self.found.rows, self.found.columns
        flat = arguments.flat(self.found.data)
        top = line * index(rows.stride) - index(rows.before)
        last = (rows.places - 1) * rows.stride + rows.reach - rows.before
        lanes = _filled(self.lanes, columns.size)

        def place_of(tap: tirx.Expr) -> tirx.Expr:
            return (plane * index(rows.size) + top + tap * index(rows.dilation)) * index(columns.size)

        def every(start: tirx.Expr, lanes: int) -> None:
            total = emit.vector(flat, place_of(index(0)) + start, lanes)
            for tap in range(1, rows.taps):
                total = self.kernel.combine(total, emit.vector(flat, place_of(index(tap)) + start, lanes))
            emit.put(row, total, base + index(columns.before) + start, lanes)

        def some(start: tirx.Expr, lanes: int) -> None:
            total = emit.registers(1, lanes)
            emit.put(total, self._start(lanes), index(0), lanes)
            with emit.loop(rows.taps) as tap:
                at = top + tap * index(rows.dilation)
                with build.If(tirx.all(at >= index(0), at < index(rows.size))), build.Then():
                    value = emit.vector(flat, place_of(tap) + start, lanes)
                    emit.put(total, self.kernel.combine(emit.vector(total, index(0), lanes), value), index(0), lanes)
            emit.put(row, emit.vector(total, index(0), lanes), base + index(columns.before) + start, lanes)

        if rows.before == 0 and is_number(rows.size) and last < rows.size:
            in_vectors(columns.size, lanes, every)
        else:
            inside = tirx.all(top >= index(0), top + index(rows.reach) < index(rows.size))
            emit.either(
                inside,
                lambda: in_vectors(columns.size, lanes, every),
                lambda: in_vectors(columns.size, lanes, some, few=True),
            )

    def _combine_columns(
        self,
        kernel: Fold,
        arguments: Arguments,
        row: tirx.Buffer,
        base: tirx.Expr,
        place: tuple[tirx.Expr, tirx.Expr],
    ) -> None:
        plane, line = place
        columns = self.found.columns

        def vector(start: tirx.Expr, lanes: int) -> None:
            kept = {n: emit.registers(1, lanes, dtype_of(s.value)) for n, s in kept_stages(kernel)}
            total = emit.registers(1, lanes)
            values = [self._columns(row, base, start, tap * columns.dilation, lanes) for tap in range(columns.taps)]
            combined = values[0]
            for value in values[1:]:
                combined = kernel.combine(combined, value)
            emit.put(total, combined, index(0), lanes)
            outer = [(Axis((n,), (kernel.extents[n],)), value) for n, value in emit.split(self.found.outer, plane)]
            inner = self.found.loops
            with emit.loop(lanes, "vectorized") as lane:
                values_ = (line, start + lane) if len(inner) == 2 else (start + lane,)
                every = [
                    *outer,
                    *((Axis((n,), (kernel.extents[n],)), v) for n, v in zip(inner, values_, strict=True)),
                ]
                Element(kernel, arguments, total[lane], kept, every, lane).store()

        in_vectors(columns.places, _filled(self.lanes, columns.places), vector)

    def _columns(self, row: tirx.Buffer, line: tirx.Expr, start: tirx.Expr, shift: int, lanes: int) -> tirx.Expr:
        """Every `stride`th number of the combined row from that of output `start`, `shift` further."""
        stride = self.found.columns.stride
        if stride == 1 or lanes == 1:
            return self._combined(row, line + start * index(stride) + index(shift), lanes)
        if stride > 2:
            return row[build.ramp(line + start * index(stride) + index(shift), index(stride), lanes)]
        base = line + start * index(2) + index(shift - shift % 2)
        pair = [self._combined(row, base, lanes), self._combined(row, base + index(lanes), lanes)]
        return tirx.Shuffle(pair, list(range(shift % 2, 2 * lanes, 2)))

    def _combined(self, row: tirx.Buffer, place: tirx.Expr, lanes: int) -> tirx.Expr:
        """A vector of the combined row, which is combined here if windows are read in place."""
        rows, total = self.found.rows, emit.vector(row, place, lanes)
        for tap in range(1, rows.taps if self.in_place else 1):
            below = place + index(tap * rows.dilation * self.found.columns.size)
            total = self.kernel.combine(total, emit.vector(row, below, lanes))
        return total


def _filled(lanes: int, count: int) -> int:
    """The lanes of a vector, halved until `count` numbers fill one; of a count of the run, `in_vectors` halves them."""
    while is_number(count) and lanes > count:
        lanes //= 2
    return lanes

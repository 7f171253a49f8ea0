"""Windows over planes in vectors along a row of outputs: depthwise convolutions, and pooling (`pooling.py`).

Tiles of rows by vectors read inputs where they are. Those of fixed sizes are written for their places at the borders:
they omit taps above and below the plane, and shift the padding into vectors at the ends of its rows (`shifted.py`). Of
maps of any size, few maps and large strides, masks keep vectors at the border inside the map: what they leave out is
the padding (`masked_rows.py`). Of many taps, each of which would have masks of its own, the padded plane is copied.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import NamedTuple

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution import shifted
from heterocc.compiler.lower.cpu.generate.convolution.form import Window
from heterocc.compiler.lower.cpu.generate.convolution.masked_rows import MaskedRows
from heterocc.compiler.lower.cpu.generate.convolution.plane_parts import PlanePart, Start, at_start, tiled
from heterocc.compiler.lower.cpu.generate.cores import Core
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import store_tile
from heterocc.compiler.lower.cpu.generate.fetch import fetch_far
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.masked import can_mask, mask, store_masked
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Place, index
from heterocc.compiler.lower.cpu.generate.read import Fold, Kernel
from heterocc.compiler.lower.cpu.generate.tiles import Run, covering_lanes, runs, vector_runs
from heterocc.compiler.lower.cpu.sizes import is_number, typical

ROWS = 4
"""Rows of outputs of a tile with masks: sums that do not wait for each other, and few for maps of few rows."""

WIDE = 4
"""Vectors of a tile of the only row, which has few sums that do not wait for each other. Of maps that may have several,
tiles of one row have one vector: these are for the maps of at most three rows, and 0.86 to 1.0 of the time."""

WIDE_OF_MANY = 2
"""Vectors of a tile of several rows with taps in a loop, which has no other products in the time that a sum takes.
Others have one: with two, a Zen 4 took 0.95 to 1.14 of the time, and twice as long to compile."""

FIXED_WIDE = 2
"""Vectors of a tile of a map of a fixed size."""

FEW_TAPS = 4
"""The taps of a signal up to which its row is read where it is."""

MOST_WRITTEN = 100
"""The limit on taps that are written out; of more, most rows are in a loop."""

MOST_UNROLLED = 3000
"""The limit on steps of vectors that are written out for places at the borders, which bounds the size of the code."""

MOST_STRIDE = 8
"""The limit on strides along a row: a vector is made of so many."""


class Tasks(NamedTuple):
    """The planes of inputs, and the multiply-adds of all of them."""

    planes: int
    work: int


@dataclass(frozen=True, slots=True)
class Plane:
    """A plane of outputs at a `place`: inputs of its first tap in depth begin at `begin`, and taps `inside` exist."""

    place: Place
    begin: tirx.Expr
    inside: tuple[tirx.Expr, tirx.Expr] | None = None


@dataclass(frozen=True, slots=True)
class Tile:
    """`tall` rows of outputs from `top` on, in vectors from the columns `starts` on, with their sums, by vectors.

    If all that it reads is in the map it is `inside`.
    """

    top: Start
    tall: int
    starts: Sequence[Start]
    sums: Sequence[tirx.Buffer]
    inside: bool


Meets = Sequence[tuple[int, tirx.Expr]]
"""The rows of a tile that a row of inputs adds to, each with the row of taps that does."""

Values = Sequence["tirx.Expr | None"]
"""What a vector of outputs reads of a row of inputs at each tap; None for padding."""


class PlaneWriter(ABC):
    """A generator of windows over planes: parts of planes are tasks; tiles of rows, vectors along these.

    `start` is the neutral element of what combines the taps, which the padding has.
    """

    packings: tuple[Panels, ...] = ()

    rows_first = False
    """Whether rows of inputs are combined before the taps of each are told apart, where all are in the map."""

    def __init__(
        self,
        kernel: Kernel | Fold,
        data: tirx.Buffer,
        rows: Window,
        columns: Window,
        isa: Isa,
        loops: tuple[int | None, int],
        tasks: Tasks,
        start: float = 0.0,
    ) -> None:
        self.far = isa.core.fetched_planes
        self.kernel, self.data, self.down, self.across, self.start = kernel, data, rows, columns, start
        self.loops, self.along = loops, kernel.axis(loops[1:])
        signal = is_number(rows.places) and rows.places == rows.taps == 1
        self.is_long = rows.taps * columns.taps > MOST_WRITTEN
        self.copies = self.is_long or (signal and columns.taps > FEW_TAPS)
        self.tall = ROWS if not self.is_long or rows.stride == rows.dilation == 1 else 1
        self.wide = WIDE_OF_MANY if self.is_long else 1
        self.lanes = covering_lanes(isa, columns.places, self._fits).lanes if columns.stride <= MOST_STRIDE else 1
        self.tasks, self.row_parts, self.column_parts = tasks, tuple[PlanePart, ...](), tuple[PlanePart, ...]()
        few = typical(tasks.work) >= emit.PARALLEL_WORK and typical(tasks.planes) < emit.TASKS
        self.fixed = not few and self._take_tiles(isa.core)
        # AVX2 stores parts of vectors slowly.
        takes_parts = isa.masks or (isa.reads_parts and not is_number(columns.places))
        self.masks = takes_parts and self.lanes > 1 and can_mask(kernel, self.along)

    def _fits(self, lanes: int) -> bool:
        """Whether all that a vector reads is in two rows of a map of a fixed size, and what it stores in two."""
        rows, columns = self.down, self.across
        if columns.stride > 2 or not all(is_number(w.size) and is_number(w.places) for w in (rows, columns)):
            return False
        return lanes * columns.stride <= min(2, rows.size) * columns.size and lanes <= 2 * columns.places

    def _take_tiles(self, core: Core) -> bool:
        """Whether tiles are written for their places: those of a map of a fixed size that have little code."""
        if not self._fits(self.lanes):
            return False
        rows, columns, lanes, stride = self.down, self.across, self.lanes, self.across.stride
        reads = lanes * stride
        beyond = 0 if stride == 1 and reads <= columns.size else -(-reads // columns.size)
        stop = (rows.size - beyond - 1 - rows.reach + rows.before) // rows.stride + 1
        most = rows.places - 1 if columns.places < lanes else rows.places
        down = range(-(-rows.before // rows.stride), min(max(stop, 0), most))
        first = -(-(columns.before + stride - 1) // (stride * lanes))
        stop = min(columns.places, (columns.size + columns.before - columns.reach) // stride) // lanes
        across = range(first, max(stop, 0))
        vectors = -(-columns.places // lanes)
        tall, wide = self.fixed_tile(core, vectors)
        parts = tiled(rows.places, min(rows.places, tall), down), tiled(vectors, wide, across)
        if rows.taps * columns.taps * prod(sum(part.size for part in side) for side in parts) > MOST_UNROLLED:
            return False
        self.row_parts, self.column_parts = parts
        return True

    def fixed_tile(self, core: Core, vectors: int) -> tuple[int, int]:
        """The most rows and vectors of a tile of a map of a fixed size, which has so many vectors in a row."""
        wide = min(FIXED_WIDE, vectors)
        return core.plane_sums // wide, wide

    @property
    def vectors(self) -> float:
        """The vectors of a plane of a typical size."""
        return typical(self.down.places) * -(-typical(self.across.places) // self.lanes)

    @abstractmethod
    def each_plane(self, arguments: Arguments, number: tirx.Expr) -> Iterator[Plane]:
        """Write what outputs of a plane of inputs need, its copy above all, and give each plane of outputs of it."""

    @abstractmethod
    def add(self, tile: Tile, inputs: Sequence[Values], meets: Meets) -> None:
        """Add a row of inputs, given for each vector, to the sums of the rows of outputs that it meets."""

    def joined(self, values: Sequence[tirx.Expr]) -> tirx.Expr:
        """Numbers of several rows combined, where that is done first."""
        return values[0]

    def chains(self, _tall: int, _wide: int) -> int:
        """The sums of each output of a tile, which are added up at its end."""
        return 1

    def kernel_of_task(self) -> Kernel | Fold:
        """The kernel, with what its epilogue needs written for a task."""
        return self.kernel

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        (planes, work), places = self.tasks, self.across.places
        few = not self.fixed and typical(planes) < emit.TASKS
        parts = emit.shares(work, planes, self.down.places // self.tall) if few else 1
        tasks = emit.tasks_of(work, planes * parts)
        with emit.loop(tasks, "parallel" if typical(work) >= emit.PARALLEL_WORK else "serial") as task:
            self.read = MaskedRows(arguments.flat(self.data), self.down, self.across, self.lanes, self.start)
            if self.copies and not self.fixed:
                self.read.allocate()
            self.kernel = self.kernel_of_task()

            def each(*, narrow: bool) -> None:
                with emit.share_loop(task, tasks, planes * parts) as number:
                    plane, part = emit.unpacked(number, (planes, parts))
                    for one in self.each_plane(arguments, plane):
                        if self.fixed:
                            self._fixed_tiles(arguments, one)
                        else:
                            self._any_tiles(arguments, one, emit.Part(part, parts), narrow=narrow)

            if is_number(places):
                each(narrow=places < self.lanes)
                return
            lanes = self.lanes

            def short() -> None:
                self.lanes = self.read.lanes = lanes if self.masks else 1
                each(narrow=self.masks)
                self.lanes = self.read.lanes = lanes

            emit.either(index(places) < index(lanes), short, lambda: each(narrow=False))

    def _fixed_tiles(self, arguments: Arguments, plane: Plane) -> None:
        """The tiles of a plane of a fixed size."""
        for rows in self.row_parts:
            with rows.at() as top:
                self._fetch(arguments, plane, at_start(top), rows.size)
                for columns in self.column_parts:
                    with columns.at() as number:
                        starts = [self._start(number, n) for n in range(columns.size)]
                        self._tile(arguments, plane, top, rows.size, starts, inside=False)

    def _fetch(self, arguments: Arguments, plane: Plane, top: tirx.Expr, tall: int) -> None:
        """Prefetch the rows that only the tiles below read, of planes that are large together."""
        rows, columns = self.down, self.across
        row = (top + index(tall - 1)) * index(rows.stride) + index(rows.reach + 1 - rows.before)
        first, size = plane.begin + row * index(columns.size), 4 * self.tasks.planes * rows.size * columns.size
        if not (self.copies or plane.inside is not None or rows.places == 1):
            fetch_far(arguments.flat(self.data), first, tall * rows.stride * columns.size, size, self.far)

    def _start(self, number: Start, column: int) -> Start:
        """The first column of a vector; a last one that would exceed the row overlaps the one before."""
        places, lanes = self.across.places, self.lanes
        if isinstance(number, int):
            return max(0, min((number + column) * lanes, places - lanes))
        return (number + index(column)) * index(lanes)

    def _any_tiles(self, arguments: Arguments, plane: Plane, part: emit.Part, *, narrow: bool) -> None:
        """The tiles of a part of a plane, whose rows are one vector each if they are `narrow`."""
        for run in runs(self.down.places, self.tall, short=False):
            with emit.share_loop(*part, run.count) as tile:
                first = index(run.start) + tile * index(run.size)
                top = emit.bound(first if run.last is None else tirx.min(first, index(run.last)))
                self._fetch(arguments, plane, top, run.size)
                if narrow:
                    self._tile(arguments, plane, top, run.size, [index(0)], inside=False)
                else:
                    self._across(partial(self._tile, arguments, plane, top, run.size), top, run)

    def _across(self, write: Callable[..., None], top: tirx.Expr, run: Run) -> None:
        """The tiles of some rows, each as the code for its place."""
        rows, columns, lanes = self.down, self.across, self.lanes
        above = top * index(rows.stride) - index(rows.before)
        last = above + index((run.size - 1) * rows.stride + rows.reach)
        inside = emit.bound(tirx.Select(tirx.all(above >= index(0), last < index(rows.size)), index(1), index(0)))
        shifts = (-columns.before, columns.reach - columns.before)
        nearest, farthest = (shift - shift % columns.stride for shift in shifts)
        wide = self.wide if run.size > 1 else WIDE if is_number(rows.places) else 1
        for some in vector_runs(-(-columns.places // lanes), wide):
            with emit.loop(some.count) as block:
                first = (index(some.start) + block * index(some.size)) * index(lanes)
                starts = [emit.bound(self._up_to(first + index(n * lanes))) for n in range(some.size)]
                if self.read.copied is not None:
                    write(starts, inside=True)
                    continue
                begin = starts[0] * index(columns.stride) + index(nearest)
                end = starts[-1] * index(columns.stride) + index(farthest + lanes * columns.stride - 1)
                whole = tirx.all(inside > index(0), begin >= index(0), end < index(columns.size))
                emit.either(whole, partial(write, starts, inside=True), partial(write, starts, inside=False))

    def _up_to(self, start: tirx.Expr) -> tirx.Expr:
        places = self.across.places
        return start if is_number(places) and places % self.lanes == 0 else tirx.min(start, index(places - self.lanes))

    def _tile(
        self, arguments: Arguments, plane: Plane, top: Start, tall: int, starts: Sequence[Start], *, inside: bool
    ) -> None:
        """Write a tile."""
        lanes, chains, places = self.lanes, self.chains(tall, len(starts)), self.across.places
        sums = [emit.registers(tall * chains, lanes) for _ in starts]
        for total in sums:
            with emit.loop(tall * chains, "unroll") as row:
                emit.put(total, self.padding, row * index(lanes), lanes)
        self.write_sums(arguments, plane, Tile(top, tall, starts, sums, inside))
        for total in sums if chains > 1 else ():
            every_sum = [emit.vector(total, index(n * lanes), lanes) for n in range(chains)]
            emit.put(total, (every_sum[0] + every_sum[1]) + (every_sum[2] + every_sum[3]), index(0), lanes)

        def place_of(row: tirx.Expr, column: int, lane: tirx.Expr) -> Place:
            values = zip(self.loops, (at_start(top) + row, at_start(starts[column]) + lane), strict=True)
            return [*plane.place, *self.kernel.place(values)]

        narrow = isinstance(at_start(starts[0]), tirx.IntImm) and not (is_number(places) and places >= lanes)
        if narrow and self.fixed:
            # Vectors reach into the next row, which is stored later; the last one may not reach into the next plane.
            last = isinstance(top, int) and top + tall == self.down.places
            if before := tall - last:
                store_tile(self.kernel, arguments, sums, before, lanes, place_of, lambda _: lanes)
            if last:
                row = emit.registers(1, lanes)
                emit.put(row, emit.vector(sums[0], index(before * lanes), lanes), index(0), lanes)
                below = partial(_moved, place_of, before)
                store_tile(self.kernel, arguments, [row], 1, lanes, below, lambda _: places)
            return
        if narrow and self.masks:
            stored = mask(index(0), lanes, places, may_precede=False)
            one = partial(_of_column, place_of)
            store_masked(self.kernel, arguments, sums[0], (tall, lanes), self.along, one, stored)
            return
        width = places if narrow else lanes
        store_tile(self.kernel, arguments, sums, tall, lanes, place_of, lambda _: width)

    @property
    def padding(self) -> tirx.Expr:
        """A vector of what is outside the map."""
        return emit.broadcast(tirx.const(self.start, "float32"), self.lanes)

    def write_sums(self, arguments: Arguments, plane: Plane, tile: Tile) -> None:
        """Write the sums of a tile."""
        self.add_lines(arguments, tile, plane.begin)

    def add_lines(self, arguments: Arguments, tile: Tile, begin: tirx.Expr) -> None:
        """Add all rows of a plane of inputs, which begins at a place, to the sums of a tile."""
        rows, columns, tall, top = self.down, self.across, tile.tall, tile.top
        if self.fixed:
            source = shifted.Plane(arguments.flat(self.data), begin, rows.size, columns, self.lanes, self.start)
            for aheads, meets in self._groups(tall, columns.size >= self.lanes * columns.stride):
                lines = [top * rows.stride + (ahead - rows.before) for ahead in aheads]
                if there := [line for line in lines if not isinstance(line, int) or 0 <= line < rows.size]:
                    row = source.row(there, self.joined)
                    inputs = [[row.vector(start, tap) for tap in range(columns.taps)] for start in tile.starts]
                    self.add(tile, inputs, [(number, index(tap_row)) for number, tap_row in meets])
            return
        starts = [at_start(start) for start in tile.starts]
        masks = None if tile.inside or self.read.copied is not None else [self.read.masks(s) for s in starts]

        def line_(aheads: Sequence[tirx.Expr], meets: Meets) -> None:
            number, *more = (at_start(top) * index(rows.stride) - index(rows.before) + ahead for ahead in aheads)

            def inputs() -> None:
                read = partial(self.read.line, begin, [number, *more], self.joined)
                self.add(tile, [read(s, None if masks is None else masks[n]) for n, s in enumerate(starts)], meets)

            if masks is None:
                inputs()
            else:
                with build.If(tirx.all(number >= index(0), number < index(rows.size))), build.Then():
                    inputs()

        if self.is_long and tall == 1:
            with emit.loop(rows.taps) as tap:
                line_([tap * index(rows.dilation)], [(0, tap)])
            return
        middle = range(0)
        if self.is_long and tall < rows.taps:
            middle = range(tall - 1, rows.taps)  # those that all rows of the tile meet, in a loop
        for aheads, meeting in self._groups(tall, masks is None):
            ahead = aheads[0]
            if middle and ahead == middle.start:
                with emit.loop(len(middle)) as further:
                    line_([further + index(ahead)], [(row, further + index(ahead - row)) for row in range(tall)])
            elif ahead not in middle:
                line_([index(ahead) for ahead in aheads], [(row, index(tap_row)) for row, tap_row in meeting])

    def _groups(self, tall: int, in_map: bool) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
        """Rows of inputs of a tile that are read together, with the rows of outputs that they meet."""
        rows = self.down
        if self.rows_first and in_map:
            for row in range(tall):
                yield [row * rows.stride + tap * rows.dilation for tap in range(rows.taps)], [(row, 0)]
            return
        for ahead in range((tall - 1) * rows.stride + rows.reach + 1):
            if meets := rows.meeting(ahead, range(tall)):
                yield [ahead], meets


def _moved(
    place_of: Callable[[tirx.Expr, int, tirx.Expr], Place], by: int, row: tirx.Expr, column: int, lane: tirx.Expr
) -> Place:
    return place_of(row + index(by), column, lane)


def _of_column(place_of: Callable[[tirx.Expr, int, tirx.Expr], Place], row: tirx.Expr, lane: tirx.Expr) -> Place:
    return place_of(row, 0, lane)

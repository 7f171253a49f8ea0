"""Windows over planes in vectors along a row of outputs: depthwise convolutions, and pooling (`pooling.py`).

Tiles of rows by vectors read inputs where they are. Masks keep vectors at the border inside the map: what they leave
out is the padding (`masked_rows.py`). Of many taps, each of which would have masks of its own, the padded plane is
copied. Taps in depth are a loop around all of this: those over planes one behind the other, or with the channels last,
where a "plane" is a row of pixels by channels.
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
from heterocc.compiler.lower.cpu.generate.convolution.form import Window
from heterocc.compiler.lower.cpu.generate.convolution.masked_rows import MaskedRows
from heterocc.compiler.lower.cpu.generate.convolution.taps_inside import taps_inside
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import store_tile
from heterocc.compiler.lower.cpu.generate.fetch import fetch_far
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.masked import can_mask, mask, store_masked
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Place, index
from heterocc.compiler.lower.cpu.generate.read import Fold, Kernel
from heterocc.compiler.lower.cpu.generate.tiles import Run, runs, vector_runs
from heterocc.compiler.lower.cpu.sizes import Size, is_number, is_one, typical

ROWS = 6
"""Rows of outputs of a tile: sums that do not wait for each other, and few for maps of few rows."""

WIDE = 4
"""Vectors of a tile of the only row, which has few sums that do not wait for each other. Of maps that may have several,
tiles of one row have one vector: these are for the maps of at most three rows, and 0.86 to 1.0 of the time."""

WIDE_OF_MANY = 2
"""Vectors of a tile of several rows of many taps, which share what is read for a tap: 5x5 and 7x7 take 0.73 to 0.9 of
the time on a Zen 4. Of few taps tiles have one: with two, 3x3 took 0.95 to 1.14, and twice as long to compile."""

FEW_TAPS = 4
"""The taps of a signal up to which its row is read where it is."""

MOST_STRIDE = 8
"""The limit on strides along a row: a vector is made of so many."""


class Tasks(NamedTuple):
    """The maps of inputs, and the multiply-adds of all of them."""

    maps: Size
    work: Size


@dataclass(frozen=True, slots=True)
class Windows:
    """The window over a map of planes of rows, with the numbers of the loops over places; None for one of one place."""

    depth: Window
    down: Window
    across: Window
    loops: tuple[int | None, ...]

    @property
    def sides(self) -> tuple[Window, Window, Window]:
        """The windows."""
        return self.depth, self.down, self.across

    @property
    def size(self) -> Size:
        """The numbers of a map."""
        return prod(window.size for window in self.sides)

    @property
    def taps(self) -> int:
        """The taps of the window."""
        return prod(window.taps for window in self.sides)


@dataclass(frozen=True, slots=True)
class Plane:
    """A plane of outputs at a `place`: inputs of its first tap in depth begin at `begin`, and taps `inside` exist."""

    place: Place
    begin: tirx.Expr
    inside: tuple[tirx.Expr, tirx.Expr] | None = None


@dataclass(frozen=True, slots=True)
class Tile:
    """`tall` rows of outputs from `top` on, in vectors from the columns `starts` on, with their sums, by vectors.

    If all that it reads of a row of the map is in it, it is `inside`.
    """

    top: tirx.Expr
    tall: int
    starts: Sequence[tirx.Expr]
    sums: Sequence[tirx.Buffer]
    inside: bool


Meets = Sequence[tuple[int, tirx.Expr]]
"""The rows of a tile that a row of inputs adds to, each with the row of taps that does."""

Line = tuple[Sequence[Callable[[int], tirx.Expr]], Meets]
"""A row of inputs, given for each vector at each tap, and the rows of outputs that it meets."""


class PlaneWriter(ABC):
    """A generator of windows over planes: parts of planes are tasks; tiles of rows, vectors along these.

    `start` is the neutral element of what combines the taps, which the padding has.
    """

    packings: tuple[Panels, ...] = ()

    most_written = 100
    """The limit on taps that are written out; of more, most rows are in a loop."""

    def __init__(
        self, kernel: Kernel | Fold, data: tirx.Buffer, windows: Windows, isa: Isa, tasks: Tasks, start: float = 0.0
    ) -> None:
        self.kernel, self.data, self.windows, self.isa, self.start = kernel, data, windows, isa, start
        self.depth, self.down, self.across = windows.depth, windows.down, windows.across
        rows, columns, deep = self.down, self.across, windows.loops[0] is not None
        self.tasks, self.along = tasks, kernel.axis([loop for loop in windows.loops[2:] if loop is not None])
        signal = is_number(rows.places) and rows.places == rows.taps == 1
        self.is_long = rows.taps * columns.taps > self.most_written and not deep
        self.copies = not deep and (self.is_long or (signal and columns.taps > FEW_TAPS) or not isa.reads_parts)
        # Each plane is of one task, and its tiles do not overlap.
        planes = typical(tasks.maps * self.depth.places)
        self.in_order = is_number(rows.places) and (typical(tasks.work) < emit.PARALLEL_WORK or planes >= emit.TASKS)
        # Rows of a tile that share few rows of inputs share the weights of a tap.
        self.by_taps = self.is_long and not rows.stride == rows.dilation == 1
        self.tall = ROWS
        self.wide = WIDE_OF_MANY if self.is_long else 1
        self.lanes = isa.narrowed(columns.places).lanes if columns.stride <= MOST_STRIDE else 1
        # AVX2 stores parts of vectors slowly.
        takes_parts = isa.masks or (isa.reads_parts and not is_number(columns.places))
        self.masks = takes_parts and self.lanes > 1 and can_mask(kernel, self.along)

    @property
    def vectors(self) -> float:
        """The vectors of a plane of a typical size."""
        return typical(self.down.places) * -(-typical(self.across.places) // self.lanes)

    @abstractmethod
    def each_plane(self, arguments: Arguments, number: tirx.Expr) -> Iterator[Place]:
        """Write what outputs of a map of inputs need, and give the place of each map of outputs of it."""

    @abstractmethod
    def add(self, tile: Tile, lines: Sequence[Line], deep: tirx.Expr) -> None:
        """Add rows of inputs to the sums of the rows of outputs that they meet; `deep` is the tap in depth."""

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        (maps, work), places, depth = self.tasks, self.across.places, self.depth
        planes = maps * depth.places
        few = typical(planes) < emit.TASKS
        parts = emit.shares(work, planes, self.down.places // self.tall) if few else 1
        tasks = emit.tasks_of(work, planes * parts)
        with emit.shared_loop(tasks, work) as task:
            rows = (self.down, self.across)
            self.read = MaskedRows(arguments.flat(self.data), *rows, self.isa, self.lanes, self.start)
            if self.copies:
                self.read.allocate()

            def each(*, narrow: bool) -> None:
                with emit.share_loop(task, tasks, planes * parts) as number:
                    map_, deep, part = emit.unpacked(number, (maps, depth.places, parts))
                    begin, inside = self._in_depth(map_, deep)
                    self.read.copy(begin)
                    for place in self.each_plane(arguments, map_):
                        plane = Plane([*place, *self.kernel.place([(self.windows.loops[0], deep)])], begin, inside)
                        self._tiles(arguments, plane, emit.Part(part, parts), narrow=narrow)

            if is_number(places):
                each(narrow=places < self.lanes)
                return
            lanes = self.lanes

            def short() -> None:
                self.lanes = self.read.lanes = lanes if self.masks else 1
                each(narrow=self.masks)
                self.lanes = self.read.lanes = lanes

            emit.either(index(places) < index(lanes), short, lambda: each(narrow=False))

    def _in_depth(self, map_: tirx.Expr, deep: tirx.Expr) -> tuple[tirx.Expr, tuple[tirx.Expr, tirx.Expr] | None]:
        """Where the inputs of a plane of outputs begin, at its first tap in depth, and the range of the taps inside."""
        depth, begin = self.depth, map_ * index(self.windows.size)
        if self.windows.loops[0] is None:
            return emit.bound(begin), None
        behind = deep * index(depth.stride) - index(depth.before)
        inside = taps_inside(depth, deep)
        return emit.bound(begin + behind * index(self.down.size * self.across.size)), inside

    def _fetch(self, arguments: Arguments, plane: Plane, top: tirx.Expr, tall: int) -> None:
        """Prefetch the rows that only the tiles below read, of planes that are large together."""
        rows, columns = self.down, self.across
        row = (top + index(tall - 1)) * index(rows.stride) + index(rows.reach + 1 - rows.before)
        first, size = plane.begin + row * index(columns.size), 4 * self.tasks.maps * rows.size * columns.size
        if not (self.copies or plane.inside is not None or is_one(rows.places)):
            numbers = tall * rows.stride * columns.size
            fetch_far(arguments.flat(self.data), first, numbers, size, self.isa.core.fetched_planes)

    def _tiles(self, arguments: Arguments, plane: Plane, part: emit.Part, *, narrow: bool) -> None:
        """The tiles of a part of a plane, whose rows are one vector each if they are `narrow`."""
        for run in runs(self.down.places, self.tall, short=False):
            with emit.share_loop(*part, run.count) as tile:
                first = index(run.start) + tile * index(run.size)
                top = emit.bound(first if run.last is None else tirx.min(first, index(run.last)))
                self._fetch(arguments, plane, top, run.size)
                if narrow:
                    self._tile(arguments, plane, top, run.size, [index(0)])
                else:
                    self._across(partial(self._tile, arguments, plane, top, run.size), top, run)

    def _across(self, write: Callable[..., None], top: tirx.Expr, run: Run) -> None:
        """The tiles of some rows, each as the code for its place."""
        columns, lanes = self.across, self.lanes
        wide = 1 if not is_number(columns.places) else self.wide if run.size > 1 else WIDE
        vectors = -(-columns.places // lanes)

        def vectors_from(first: tirx.Expr, count: int) -> list[tirx.Expr]:
            return [emit.bound(self._up_to((first + index(n)) * index(lanes))) for n in range(count)]

        def tile(starts: list[tirx.Expr]) -> None:
            begin, end = self.read.begin(starts[0]), self.read.end(starts[-1])
            if self.read.copied is not None or isinstance(begin, tirx.IntImm):
                write(starts)
            else:
                inside = tirx.all(begin >= index(0), end <= index(columns.size))
                emit.either(inside, partial(write, starts, inside=True), partial(write, starts))

        if is_number(vectors) and vectors <= 2 * wide:
            for number in range(0, vectors, wide):
                tile(vectors_from(index(number), min(wide, vectors - number)))
            return
        for some in vector_runs(vectors, wide):
            with emit.loop(some.count) as block:
                tile(vectors_from(index(some.start) + block * index(some.size), some.size))

    def _up_to(self, start: tirx.Expr) -> tirx.Expr:
        places = self.across.places
        return start if is_number(places) and places % self.lanes == 0 else tirx.min(start, index(places - self.lanes))

    def _tile(
        self,
        arguments: Arguments,
        plane: Plane,
        top: tirx.Expr,
        tall: int,
        starts: Sequence[tirx.Expr],
        *,
        inside: bool = False,
    ) -> None:
        """Write a tile: all that it reads of a row may be `inside` the map."""
        lanes, places = self.lanes, self.across.places
        sums = [emit.registers(tall, lanes) for _ in starts]
        for total in sums:
            with emit.loop(tall, "unroll") as row:
                emit.put(total, self.padding, row * index(lanes), lanes)
        tile = Tile(top, tall, starts, sums, inside)
        if plane.inside is None:
            self._add_rows(tile, plane.begin, index(0))
        else:
            with build.serial(*plane.inside) as tap:
                further = tap * index(self.depth.dilation * self.down.size * self.across.size)
                self._add_rows(tile, emit.bound(plane.begin + further), tap)

        def place_of(row: tirx.Expr, column: int, lane: tirx.Expr, below: int = 0) -> Place:
            values = zip(self.windows.loops[1:], (top + (row + index(below)), starts[column] + lane), strict=True)
            return [*plane.place, *self.kernel.place(values)]

        narrow = isinstance(starts[0], tirx.IntImm) and not (is_number(places) and places >= lanes)
        if narrow and self.masks:
            stored = mask(index(0), lanes, places)
            store_masked(
                self.kernel,
                arguments,
                sums[0],
                tall,
                lanes,
                self.along,
                lambda row, lane: place_of(row, 0, lane),
                stored,
            )
            return

        def store(first: int, count: int, width: Size) -> None:
            held = [emit.registers(count, lanes) for _ in sums] if first else sums
            for part, total in zip(held, sums, strict=True) if first else ():
                emit.put(part, emit.vector(total, index(first * lanes), lanes), index(0), lanes)
            below = partial(place_of, below=first)
            store_tile(self.kernel, arguments, held, count, lanes, below, lambda _: width)

        def last() -> None:
            store(0, tall - 1, lanes)
            store(tall - 1, 1, places)

        if narrow and self.in_order:
            # Vectors reach into the next row, which is stored later; the last one may not reach into the next plane.
            emit.either(top + index(tall) < index(self.down.places), lambda: store(0, tall, lanes), last)
        else:
            store(0, tall, places if narrow else lanes)

    @property
    def padding(self) -> tirx.Expr:
        """A vector of what is outside the map."""
        return emit.broadcast(tirx.const(self.start, "float32"), self.lanes)

    def _add_rows(self, tile: Tile, begin: tirx.Expr, deep: tirx.Expr) -> None:
        """Add all rows of a plane of inputs, which begins at a place, to the sums of a tile."""
        rows, tall, starts = self.down, tile.tall, tile.starts
        copied = self.read.copied is not None
        masks = None if copied or tile.inside else [self.read.masks(start) for start in starts]

        def read(ahead: tirx.Expr) -> list[Callable[[int], tirx.Expr]]:
            line = partial(self.read.line, begin, tile.top * index(rows.stride) - index(rows.before) + ahead)
            return [line(start, None if masks is None else masks[n]) for n, start in enumerate(starts)]

        if self.by_taps:
            with emit.loop(rows.taps) as tap:
                firsts = [index(row * rows.stride) + tap * index(rows.dilation) for row in range(tall)]
                self.add(tile, [(read(first), [(row, tap)]) for row, first in enumerate(firsts)], deep)
            return

        def add(ahead: tirx.Expr, meets: Meets) -> None:
            number = tile.top * index(rows.stride) - index(rows.before) + ahead
            if copied:
                self.add(tile, [(read(ahead), meets)], deep)
            else:
                with build.If(tirx.all(number >= index(0), number < index(rows.size))), build.Then():
                    self.add(tile, [(read(ahead), meets)], deep)

        # Of many taps, the rows that all of a tile meet are in a loop.
        middle = range(tall - 1, rows.taps) if self.is_long else range(0)
        for ahead in range((tall - 1) * rows.stride + rows.reach + 1):
            if middle and ahead == middle.start:
                with emit.loop(len(middle)) as further:
                    meets = [(row, further + index(ahead - row)) for row in range(tall)]
                    add(further + index(ahead), meets)
            elif ahead not in middle and (met := rows.meeting(ahead, range(tall))):
                add(index(ahead), [(row, index(tap_row)) for row, tap_row in met])

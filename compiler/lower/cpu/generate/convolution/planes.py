"""Generation of depthwise convolutions in NCHW that read their inputs where they are: vectors along a row of outputs.

Tiles of rows by vectors cover a plane. Those at its borders are written separately: they omit taps above and below the
plane, and shift zeros into the vectors at the ends of its rows. No padded copy is made. A vector longer than a row of
outputs stores into the next row as well, which is stored later. In three dimensions, a plane of outputs is the sum over
those planes of inputs that its taps in depth meet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.candidates import Candidate
from heterocc.compiler.lower.cpu.generate.convolution.form import Convolution, Window, find_convolution
from heterocc.compiler.lower.cpu.generate.convolution.shifted import Plane
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import can_store, store_tile
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Place, index
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.tiles import Run, covering_lanes, runs
from heterocc.compiler.lower.cpu.sizes import is_number, typical

MOST_UNROLLED = 3000
"""The limit on the multiply-adds of vectors that are written out, which bounds the size of the code."""

MUCH_UNROLLED = 2000
"""The number of these up to which tiles are preferred: more code is slower to fetch."""

Start: TypeAlias = "tirx.Expr | int"
"""A first row or a first vector: an int if code is written for this one only."""


def propose_planes(kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
    """The kernel as a depthwise convolution that copies nothing."""
    conv = find_convolution(kernel, (3, 4, 5))
    if conv is None or conv.inputs != 1 or conv.groups == 1 or not can_store(kernel):
        return
    rows, columns = conv.rows, conv.columns
    planes = typical(conv.batch * conv.groups * conv.depth.places)
    few = typical(conv.work) >= emit.PARALLEL_WORK and planes < emit.TASKS
    known = all(is_number(w.size) and is_number(w.places) for w in (conv.depth, rows, columns))
    if few or columns.stride > 2 or not known:
        return

    def fits(lanes: int) -> bool:
        """Whether all that a vector reads is in two rows of the map, and what it stores in two of outputs."""
        return lanes * columns.stride <= min(2, rows.size) * columns.size and lanes <= 2 * columns.places

    def writer(isa: Isa) -> _Writer:
        made = _Writer(kernel, conv, covering_lanes(isa, columns.places, fits))
        return _Writer(kernel, conv, isa) if made.unrolled > MOST_UNROLLED and fits(isa.lanes) else made

    judged = writer(isa)
    if fits(judged.isa.lanes) and judged.unrolled <= MOST_UNROLLED:
        yield Candidate("planes", planes * conv.outputs * judged.cycles, writer)


@dataclass(frozen=True, slots=True)
class _Part:
    """`count` tiles of `size` from `start` on; `fixed` if they are written for their places, one by one."""

    start: int
    count: int
    size: int
    fixed: bool

    @contextmanager
    def at(self) -> Iterator[Start]:
        """The start of a tile: in a loop over all, a number for the one that is fixed."""
        if self.fixed:
            yield self.start
            return
        with emit.loop(self.count) as number:
            yield index(self.start) + number * index(self.size)


def _tiled(total: int, most: int, inside: range) -> tuple[_Part, ...]:
    """`total` in tiles of at most `most`, those within `inside` in loops, the others fixed, with little code.

    Tiles of equal sizes, or if this is less code, tiles of `most` in a loop and what is left before and after them.
    """
    equal = _parts(runs(total, most), inside)
    before, after = inside.start, total - inside.stop
    if len(inside) < most or not before + after:
        return equal
    left = before + after + len(inside) % most
    first = min(max(before, -(-left // 2) if after else left), left - after)
    last = total - (left - first)
    ends = runs(first, most) if first else (), runs(total - last, most) if last < total else ()
    apart = (
        *_parts(ends[0], range(0)),
        _Part(first, (last - first) // most, most, False),
        *(replace(part, start=part.start + last) for part in _parts(ends[1], range(0))),
    )
    return min(equal, apart, key=lambda parts: sum(part.size for part in parts))


def _parts(tiles: Sequence[Run], inside: range) -> tuple[_Part, ...]:
    """The tiles in order: those within `inside` in loops, the others fixed."""
    parts: list[_Part] = []
    for run in tiles:
        for number in range(run.count):
            start = run.start + number * run.size
            fixed = not (inside.start <= start and start + run.size <= inside.stop)
            last = parts[-1] if parts else None
            if last is not None and not fixed and not last.fixed and last.size == run.size:
                parts[-1] = _Part(last.start, last.count + 1, run.size, False)
            else:
                parts.append(_Part(start, 1, run.size, fixed))
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class _Met:
    """`count` rows of outputs, every `row_step`th from `row` on, that a row of inputs adds to; the first one with the
    row of taps `tap`, each further one with the `tap_step`th before.
    """

    count: int
    row: int
    row_step: int
    tap: int
    tap_step: int


def _met(rows: Window, line: int, first: int, count: int) -> _Met | None:
    """Those of `count` rows from `first` on, numbered from there, that read row `line` of a tile's inputs."""
    meets = rows.meeting(line, range(first, first + count))
    if not meets:
        return None
    (row, tap), (next_row, next_tap) = meets[0], meets[min(1, len(meets) - 1)]
    return _Met(len(meets), row - first, next_row - row, tap, tap - next_tap)


@dataclass(frozen=True, slots=True)
class _Tile:
    """`tall` rows of outputs from `top` on, and vectors from the columns `starts`: `sums` by groups of rows."""

    groups: Sequence[tuple[int, int]]
    sums: Sequence[Sequence[tirx.Buffer]]
    starts: Sequence[Start]
    top: Start
    tall: int


class _Writer:
    """A generator of a depthwise convolution: planes, tiles of rows, tiles of vectors."""

    packings: tuple[Panels, ...] = ()

    def __init__(self, kernel: Kernel, conv: Convolution, isa: Isa) -> None:
        self.kernel, self.conv, self.isa = kernel, conv, isa
        self.count = -(-conv.columns.places // isa.lanes)
        self.row_parts, self.column_parts = self._chosen()
        self.unrolled = self._unrolled(self.row_parts, self.column_parts)

    def _options(self) -> list[tuple[tuple[_Part, ...], tuple[_Part, ...]]]:
        """The tiles of every size."""
        most = self.isa.core.plane_sums
        tall, wide = self.conv.rows.places, self.count
        sizes = [(t, n) for t in range(1, min(most, tall) + 1) for n in range(1, min(most, wide) + 1) if t * n <= most]
        return [(_tiled(tall, t, self._rows_inside()), _tiled(wide, n, self._vectors_inside())) for t, n in sizes]

    def _chosen(self) -> tuple[tuple[_Part, ...], tuple[_Part, ...]]:
        """The tiles with the least modelled time whose code is not too long."""
        every = self._options()
        within = ([p for p in every if self._unrolled(*p) <= most] for most in (MUCH_UNROLLED, MOST_UNROLLED))
        short = next((options for options in within if options), every)
        return min(short, key=lambda parts: self._cycles(*parts))

    @property
    def cycles(self) -> float:
        """Modelled time of a plane."""
        return self._cycles(self.row_parts, self.column_parts)

    def _unrolled(self, rows: tuple[_Part, ...], columns: tuple[_Part, ...]) -> int:
        """Multiply-adds of vectors that are written out."""
        return self.conv.plane_taps * sum(r.size for r in rows) * sum(c.size for c in columns)

    def _rows_inside(self) -> range:
        """The rows of outputs that read and store inside the plane only, even if a vector exceeds its row."""
        rows, columns = self.conv.rows, self.conv.columns
        reads = self.isa.lanes * columns.stride
        beyond = 0 if columns.stride == 1 and reads <= columns.size else -(-reads // columns.size)
        stop = (rows.size - beyond - 1 - rows.reach + rows.before) // rows.stride + 1
        most = rows.places - 1 if columns.places < self.isa.lanes else rows.places
        return range(-(-rows.before // rows.stride), min(max(stop, 0), most))

    def _vectors_inside(self) -> range:
        """The vectors of outputs that read inputs of their row only, and do not overlap others."""
        columns, lanes, stride = self.conv.columns, self.isa.lanes, self.conv.columns.stride
        first = -(-(columns.before + stride - 1) // (stride * lanes))
        stop = min(columns.places, (columns.size + columns.before - columns.reach) // stride) // lanes
        return range(first, max(stop, 0))

    def _cycles(self, rows: tuple[_Part, ...], columns: tuple[_Part, ...]) -> float:
        """Modelled time of a plane: multiply-adds, loads of vectors that mostly cross a cache line, and latency."""
        conv = self.conv
        load, taps = 1.75 if conv.columns.stride == 1 else 3.5, conv.plane_taps
        total, latency = 0.0, self.isa.core.latency * taps
        for row in rows:
            lines = (row.size - 1) * conv.rows.stride + conv.rows.reach + 1
            for run in columns:
                loads = load * lines * conv.columns.taps * run.size + row.size * taps
                sums = row.size * run.size * taps / 2
                total += row.count * run.count * (max(sums, loads / 2, latency) + row.size * run.size)
        return total

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        conv = self.conv
        with emit.shared_loop(conv.batch * conv.groups * conv.depth.places, conv.work) as number:
            self._plane(arguments, number)

    def _plane(self, arguments: Arguments, number: tirx.Expr) -> None:
        """One plane of outputs."""
        conv, depth = self.conv, self.conv.depth
        size = index(conv.rows.size * conv.columns.size)
        flat = arguments.flat(conv.data)
        if conv.deep is None:
            image, group = emit.unpacked(number, (conv.batch, conv.groups))
            deep, inside, begin = index(0), None, emit.bound(number * size)
        else:
            image, group, deep = emit.unpacked(number, (conv.batch, conv.groups, depth.places))
            behind = deep * index(depth.stride) - index(depth.before)
            apart = index(depth.dilation)
            first = tirx.max(index(0), -tirx.floordiv(behind, apart))
            last = tirx.min(index(depth.taps), tirx.floordiv(index(depth.size - 1) - behind, apart) + index(1))
            inside = (emit.bound(first), emit.bound(last))
            begin = emit.bound(((image * index(conv.groups) + group) * index(depth.size) + behind) * size)
        plane = Plane(flat, begin, conv.rows.size, conv.columns, self.isa.lanes)
        with emit.loop(conv.outputs) as output:
            channel = emit.bound(group * index(conv.outputs) + output)
            where = (image, channel, deep)
            for rows in self.row_parts:
                with rows.at() as row:
                    for columns in self.column_parts:
                        with columns.at() as column:
                            self._tile(arguments, (plane, inside), (rows.size, columns.size), (row, column), where)

    def _tile(
        self,
        arguments: Arguments,
        source: tuple[Plane, tuple[tirx.Expr, tirx.Expr] | None],
        size: tuple[int, int],
        at: tuple[Start, Start],
        where: tuple[tirx.Expr, tirx.Expr, tirx.Expr],
    ) -> None:
        """A tile of outputs: `at` are its first row and its first vector.

        `source` is the plane of inputs of the first tap in depth, and the range of the taps that are inside.
        """
        conv, lanes = self.conv, self.isa.lanes
        rows, columns = conv.rows, conv.columns
        (plane, inside), (tall, wide), (top, number), (image, channel, deep) = source, size, at, where
        starts = [self._start(number, column) for column in range(wide)]
        # The last row of a plane is stored on its own: a vector longer than the row would reach into the next plane.
        last = columns.places < lanes and isinstance(top, int) and top + tall == rows.places
        groups = [(0, tall)] if not last or tall == 1 else [(0, tall - 1), (tall - 1, 1)]
        sums = [[emit.registers(count, lanes) for _ in range(wide)] for _, count in groups]
        for (_, count), buffers in zip(groups, sums, strict=True):
            for buffer in buffers:
                with emit.loop(count, "unroll") as row:
                    emit.put(buffer, emit.zeros(lanes), row * index(lanes), lanes)
        weights = arguments.flat(self.kernel.function.params[conv.weight])
        weight = emit.bound(channel * index(conv.taps))
        tile = _Tile(groups, sums, starts, top, tall)
        if inside is None:
            self._add(tile, plane, weights, weight)
        else:
            with build.serial(*inside) as tap:
                further = tap * index(conv.depth.dilation * rows.size * columns.size)
                there = replace(plane, first=emit.bound(plane.first + further))
                self._add(tile, there, weights, emit.bound(weight + tap * index(conv.plane_taps)))
        loops = (*conv.loops[:2], conv.deep, *conv.loops[2:])

        def place_of(begin: tirx.Expr, row: tirx.Expr, column: int, lane: tirx.Expr) -> Place:
            start = starts[column]
            begins = index(start) if isinstance(start, int) else start
            values = (image, channel, deep, begin + row, begins + lane)
            return self.kernel.place(zip(loops, values, strict=True))

        for (first, count), buffers in zip(groups, sums, strict=True):
            begin = (index(top) if isinstance(top, int) else top) + index(first)
            width = columns.places if last and first + count == tall else lanes

            def lanes_of(_column: int, width: int = width) -> int:
                return width

            store_tile(self.kernel, arguments, buffers, count, lanes, partial(place_of, begin), lanes_of)

    def _add(self, tile: _Tile, plane: Plane, weights: tirx.Buffer, weight: tirx.Expr) -> None:
        """Add the products of one plane of inputs with the weights from `weight` on to a tile."""
        rows, columns, lanes = self.conv.rows, self.conv.columns, self.isa.lanes
        tall, top = tile.tall, tile.top

        for line in range((tall - 1) * rows.stride + rows.reach + 1):
            source: Start
            if isinstance(top, int):
                source = top * rows.stride + line - rows.before
                if not 0 <= source < rows.size:
                    continue
            else:
                source = top * index(rows.stride) + index(line - rows.before)
            meets = [
                (buffers, here)
                for (first, count), buffers in zip(tile.groups, tile.sums, strict=True)
                if (here := _met(rows, line, first, count)) is not None
            ]
            if not meets:
                continue
            inputs = plane.row(source)
            for tap in range(columns.taps):
                loaded = [inputs.vector(start, tap) for start in tile.starts]
                for buffers, met in meets:
                    # A loop, which TVM unrolls in less time than it takes to write its statements one by one.
                    with emit.loop(met.count, "unroll") as number:
                        place = index(met.row * lanes) + number * index(met.row_step * lanes)
                        further = index(met.tap * columns.taps + tap) - number * index(met.tap_step * columns.taps)
                        factor = emit.broadcast(weights[weight + further], lanes)
                        for buffer, inside in zip(buffers, loaded, strict=True):
                            if inside is not None:
                                emit.put(buffer, emit.vector(buffer, place, lanes) + factor * inside, place, lanes)

    def _start(self, number: Start, column: int) -> Start:
        """The first column of a vector; a last one that would exceed the row overlaps the previous one."""
        places, lanes = self.conv.columns.places, self.isa.lanes
        if isinstance(number, int):
            return max(0, min((number + column) * lanes, places - lanes))
        return (number + index(column)) * index(lanes)

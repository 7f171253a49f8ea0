"""Generation of depthwise convolutions in NCHW: vectors along a row of outputs, tiles of rows by vectors.

The padded rows that a tile reads come from a copy in the first-level cache. Each vector of them is loaded once for all
rows of the tile and of the kernel that use it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.candidates import Candidate
from heterocc.compiler.lower.cpu.generate.convolution.form import Convolution, find_convolution
from heterocc.compiler.lower.cpu.generate.convolution.padded import padded_row
from heterocc.compiler.lower.cpu.generate.convolution.row_lanes import covering_lanes
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import can_store, store_tile
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Place, index, overlapping
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.tiles import Run, runs, vector_runs
from heterocc.compiler.lower.cpu.sizes import assume, assumed, at_least, exceeds, is_number, typical
from heterocc.compiler.lower.kernels.choices import close

COPY_ROW_CYCLES = 8.0
"""The time of copying a row, beside that of its vectors."""

TASKS = 64
"""Tasks at most that planes are dealt out to; a task clears what is around its planes once."""

UNROLLED = 512
"""The multiply-adds of vectors of a tile up to which all its taps are written out; rows of more are in a loop."""

MOST_UNROLLED = 3000
"""The limit on the multiply-adds of vectors that are written out for a tile."""


def propose_copied_planes(kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
    """The kernel as a depthwise convolution of copied rows."""
    found = find_convolution(kernel)
    if found is None or found.inputs != 1 or found.groups == 1 or not can_store(kernel):
        return
    if _unrolled(found, (1, 1)) <= MOST_UNROLLED:
        writer = partial(_Writer, kernel, found)
        yield Candidate("copied planes", writer(isa).cycles, writer)


def _segments(found: Convolution, tall: int) -> tuple[tuple[int, int, int], ...]:
    """The rows of inputs that a tile of `tall` rows reads, as (first, count, repeats): `count` rows written out.

    Those that each row of the tile multiplies by a tap repeat with the next row of taps, every `dilation` rows.
    """
    rows = found.rows
    lines = (tall - 1) * rows.stride + rows.reach + 1
    first = (tall - 1) * rows.stride
    repeats = (rows.reach + 1 - first) // rows.dilation
    if repeats < 2:
        return ((0, lines, 1),)
    rest = first + repeats * rows.dilation
    return (0, first, 1), (first, rows.dilation, repeats), (rest, lines - rest, 1)


def _is_looped(found: Convolution, size: tuple[int, int]) -> bool:
    return found.taps * size[0] * size[1] > UNROLLED and len(_segments(found, size[0])) > 1


def _unrolled(found: Convolution, size: tuple[int, int]) -> int:
    """Multiply-adds of vectors that are written out for a tile of rows by vectors."""
    tall, wide = size
    every = found.taps * tall * wide
    if not _is_looped(found, size):
        return every
    (_, (_, _, repeats), _) = _segments(found, tall)
    return every - (repeats - 1) * tall * found.columns.taps * wide


def _equal(places: int, most: int, tall: int) -> int:
    """The rows of a chunk, `most` at most, so that chunks overlap little: those of whole tiles of `tall` rows."""
    chunks = -(-places // most)
    return min(places, -(-places // (chunks * tall)) * tall)


class _Writer:
    """A generator of a depthwise convolution: planes, chunks of their rows, tiles."""

    packings: tuple[Panels, ...] = ()

    def __init__(self, kernel: Kernel, found: Convolution, isa: Isa) -> None:
        self.kernel, self.found = kernel, found
        self.isa = covering_lanes(isa, found.columns.places)
        self.pitch = found.columns.extent
        self.phases = found.columns.phases
        count = -(-found.columns.places // self.isa.lanes)
        tall, wide = self._tile_size(count)
        near = isa.core.first_cache * 3 // 4  # copied rows are to stay there
        lines = max(1, near // (4 * typical(self.pitch) * len(self.phases)))
        rows = max(tall, (lines - found.rows.reach) // found.rows.stride // tall * tall)
        self.rows = _equal(found.rows.places, rows, tall) if is_number(found.rows.places) else tall
        self.chunks = -(-found.rows.places // self.rows)
        self.lines = (self.rows - 1) * found.rows.stride + found.rows.reach + 1
        self.row_runs, self.vector_runs = runs(self.rows, tall), vector_runs(count, wide)
        self.plane = self.lines * self.pitch + self.isa.lanes
        planes = found.batch * found.groups
        self.planes = -(-planes * self.chunks // TASKS) if typical(found.work) >= emit.PARALLEL_WORK else planes
        if not is_number(planes * self.chunks):
            self.planes = 1

    def _tile_size(self, count: int) -> tuple[int, int]:
        """Rows and vectors of a tile with the least modelled time.

        Loads of vectors mostly cross a cache line. LLVM keeps vectors for several taps, which takes the registers that
        more accumulators would need.
        """
        found = self.found
        most = self.isa.core.plane_sums
        places, count = typical(found.rows.places), typical(count)

        sizes = [(t, n) for t in range(1, min(8, places) + 1) for n in range(1, count + 1) if t * n <= most]
        sizes = [size for size in sizes if _unrolled(found, size) <= MOST_UNROLLED]
        costs = sorted((self._plane_cycles(size), -size[1], size) for size in sizes)
        fixed = is_number(found.rows.places) and is_number(found.columns.places)
        return self.isa.choose("tile", close((cost, size) for cost, _, size in costs)) if fixed else costs[0][2]

    def _plane_cycles(self, size: tuple[int, int]) -> float:
        """Modelled time of the sums of a plane in tiles of a size."""
        found = self.found
        total, taps = 0.0, found.taps
        for row in runs(typical(found.rows.places), size[0]):
            lines = (row.size - 1) * found.rows.stride + found.rows.taps
            for run in runs(-(-typical(found.columns.places) // self.isa.lanes), size[1]):
                loads = 1.75 * lines * found.columns.taps * run.size + row.size * taps
                one = max(row.size * run.size * taps / 2, loads / 2, self.isa.core.latency * taps) + row.size * run.size
                total += row.count * run.count * one
        return total

    @property
    def cycles(self) -> float:
        """Modelled time of the convolution: copies, and sums."""
        found, size = self.found, (self.row_runs[0].size, self.vector_runs[0].size)
        copied = typical(self.chunks) * typical(self.lines) * len(self.phases)
        row = COPY_ROW_CYCLES + 2 * typical(self.pitch) / self.isa.lanes
        return typical(found.batch) * found.groups * (copied * row + found.outputs * self._plane_cycles(size))

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        found = self.found
        every = found.batch * found.groups
        blocks = -(-every // self.planes)
        with emit.shared_loop(blocks * self.chunks, found.work) as task:
            block, chunk = emit.unpacked(task, (blocks, self.chunks))
            top = chunk * index(self.rows)
            if exceeds(found.rows.places, self.rows):
                top = tirx.min(top, index(found.rows.places - self.rows))
            if not is_number(found.rows.places):
                assume(at_least(found.rows.places, self.rows))
                top = emit.bound(top)
            copied = emit.scratch(len(self.phases) * self.plane)
            with emit.loop(len(self.phases) * self.plane) as place:
                build.buffer_store(copied, build.float32(0.0), [place])
            first = block * index(self.planes)
            last = exceeds(every, self.planes) and self.planes != 1
            count = tirx.min(index(self.planes), index(every) - first) if last else index(self.planes)
            with build.serial(index(0), count) as number:
                self._plane(arguments, copied, first + number, top)

    def _plane(self, arguments: Arguments, copied: tirx.Buffer, plane: tirx.Expr, top: tirx.Expr) -> None:
        """The outputs of one plane from row `top`."""
        found = self.found
        image, group = emit.unpacked(plane, (found.batch, found.groups))
        self._copy(arguments, copied, plane, top)
        with emit.loop(found.outputs) as output:
            channel = group * index(found.outputs) + output
            for rows in self.row_runs:
                with emit.loop(rows.count) as tall:
                    for vectors in self.vector_runs:
                        with emit.loop(vectors.count) as wide:
                            first = index(rows.start) + tall * index(rows.size)
                            number = index(vectors.start) + wide * index(vectors.size)
                            self._tile(arguments, copied, (rows, vectors), (first, number), (image, channel, top))

    def _copy(self, arguments: Arguments, copied: tirx.Buffer, plane: tirx.Expr, top: tirx.Expr) -> None:
        """Copy the rows that the outputs from row `top` read."""
        rows, columns = self.found.rows, self.found.columns
        last = (rows.places - self.rows) * rows.stride + self.lines - 1 - rows.before
        always = rows.before == 0 and is_number(rows.size) and last < rows.size
        with emit.loop(self.lines) as line:
            row = top * index(rows.stride) + line - index(rows.before)
            source = (plane * index(rows.size) + row) * index(columns.size)
            padded_row(
                arguments.flat(self.found.data),
                source,
                copied,
                line * index(self.pitch),
                (columns, self.pitch, self.plane),
                (rows, row, always),
                self.isa.lanes,
                cleared=True,
            )

    def _tile(
        self,
        arguments: Arguments,
        copied: tirx.Buffer,
        runs_: tuple[Run, Run],
        at: tuple[tirx.Expr, tirx.Expr],
        where: tuple[tirx.Expr, tirx.Expr, tirx.Expr],
    ) -> None:
        """A tile of outputs: `at` are its first row in the chunk and its first vector."""
        found, lanes = self.found, self.isa.lanes
        rows, columns = found.rows, found.columns
        (tall, wide), (first, number), (image, channel, top) = runs_, at, where
        starts = [self._start((number + index(v)) * index(lanes)) for v in range(wide.size)]
        sums = [emit.registers(tall.size, lanes) for _ in range(wide.size)]
        weights = arguments.flat(self.kernel.function.params[found.weight])
        for buffer in sums:
            with emit.loop(tall.size, "unroll") as row:
                emit.put(buffer, emit.zeros(lanes), row * index(lanes), lanes)
        begin = first * index(rows.stride * self.pitch)
        weight = channel * index(found.taps)
        looped = _is_looped(found, (tall.size, wide.size))
        whole = ((0, (tall.size - 1) * rows.stride + rows.reach + 1, 1),)
        for segment in _segments(found, tall.size) if looped else whole:
            with self._lines_inside(top + first, segment) if looped else emit.loop(1) as repeat:
                further = begin + repeat * index(rows.dilation * self.pitch)
                taps = weight + repeat * index(columns.taps)
                for line in range(segment[0], segment[0] + segment[1]):
                    self._add(sums, (tall.size, starts), (copied, further, line), (weights, taps))

        def place_of(row: tirx.Expr, column: int, lane: tirx.Expr) -> Place:
            values = (image, channel, top + first + row, starts[column] + lane)
            return self.kernel.place(zip(found.loops, values, strict=True))

        length = lanes if assumed(at_least(columns.places, lanes)) else columns.places
        store_tile(self.kernel, arguments, sums, tall.size, lanes, place_of, lambda _: length)

    def _lines_inside(self, row: tirx.Expr, segment: tuple[int, int, int]) -> AbstractContextManager[tirx.Expr]:
        """The loop over the repeats of a segment for a tile from `row`, without those wholly in the padding."""
        rows, (first, count, repeats) = self.found.rows, segment
        last = (rows.places - 1) * rows.stride + rows.reach
        if rows.before == 0 and is_number(rows.size) and last < rows.size:
            return emit.loop(repeats)
        line = row * index(rows.stride) + index(first - rows.before)
        low, high = (tirx.floordiv(end - line, index(count)) for end in (index(0), index(rows.size + count - 1)))
        start = emit.bound(tirx.max(index(0), tirx.min(low, index(repeats))))
        return build.serial(start, emit.bound(tirx.max(start, tirx.min(high, index(repeats)))))  # type: ignore[no-any-return]

    def _add(
        self,
        sums: Sequence[tirx.Buffer],
        tile: tuple[int, Sequence[tirx.Expr]],
        source: tuple[tirx.Buffer, tirx.Expr, int],
        weights: tuple[tirx.Buffer, tirx.Expr],
    ) -> None:
        """Add the products of a row of inputs: `source` is a copy, the place of the tile's first row, and the row."""
        (tall, starts), (copied, first, line), (factors, taps) = tile, source, weights
        rows, columns, lanes = self.found.rows, self.found.columns, self.isa.lanes
        meets = rows.meeting(line, range(tall))
        for tap in range(columns.taps if meets else 0):
            across = tap * columns.dilation
            plane = self.phases.index(across % columns.stride) * self.plane
            begin = first + index(line * self.pitch + plane + across // columns.stride)
            for buffer, start in zip(sums, starts, strict=True):
                loaded = emit.vector(copied, begin + start, lanes)
                for row, tap_row in meets:
                    weight = factors[taps + index(tap_row * columns.taps + tap)]
                    place = index(row * lanes)
                    total = emit.vector(buffer, place, lanes) + emit.broadcast(weight, lanes) * loaded
                    emit.put(buffer, total, place, lanes)

    def _start(self, column: tirx.Expr) -> tirx.Expr:
        """The start of a vector; a last one that would exceed the row overlaps the previous one."""
        places = self.found.columns.places
        start = overlapping(column, places, self.isa.lanes)
        return start if is_number(places) else emit.bound(start)

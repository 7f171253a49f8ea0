"""Tiles of the pixels of rows, with vectors along output channels, that read rows in place or copies of them.

In place, a row of outputs is divided where the taps that lie inside the input change. Within a part all outputs have
the same taps, so that no padding is needed, and taps in the padding take no time: this suits dilated kernels. Otherwise
rows are copied with padding, as for vectors along pixels, which rows of few pixels fill badly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.candidates import Candidate
from heterocc.compiler.lower.cpu.generate.convolution.copied_rows import MOST_UNROLLED, far_time
from heterocc.compiler.lower.cpu.generate.convolution.dense_rows import DenseRows
from heterocc.compiler.lower.cpu.generate.convolution.form import Convolution, find_planes
from heterocc.compiler.lower.cpu.generate.convolution.pixel_tiles import (
    STORE_CYCLES,
    Factor,
    PixelTiles,
    Term,
    Walk,
    suits_tiles,
)
from heterocc.compiler.lower.cpu.generate.convolution.taps_inside import (
    Part,
    loop_inside,
    parts_of,
    range_inside,
    taps_of,
)
from heterocc.compiler.lower.cpu.generate.emit import Arguments, Step
from heterocc.compiler.lower.cpu.generate.epilogue import can_store
from heterocc.compiler.lower.cpu.generate.fetch import FETCHED_BYTES, LINE
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.tiles import MOST_ROWS, runs
from heterocc.compiler.lower.cpu.sizes import is_number

LOOP_CYCLES = 1.5
"""The time in cycles that the loops over taps inside the input add to a step."""

COPIED_LOOP_CYCLES = 0.3
"""The time in cycles that loops over one tap after the other of copied rows add to a step."""

LINES_BYTES = 85
"""The bytes of the cache lines with the pixels of a tile, in the mean of their places."""

TILE_BYTES = 48 << 10
FAR_POINTS = 1.3
"""What a tile of 1x1 reads with 16 registers, if it does not stay in a first-level cache until the next one, and the
time of such tiles over the modelled one: no other tap reads the lines of an input channel again."""

HELD = 2
"""The number of 32 registers that such loops need besides sums and weights: no step has an input of another."""


def propose_rows(kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
    """The kernel as a convolution of fixed sizes with vectors along the channels of pixels of rows."""
    found = find_planes(kernel) if all(map(is_number, kernel.extents)) else None
    if found is not None and can_store(kernel) and suits_tiles(found, isa):
        yield from candidates(kernel, found, isa)


def candidates(kernel: Kernel, found: Convolution, isa: Isa) -> Iterator[Candidate]:
    """All forms: in place, and with copied rows in tiles of one row or of several, of maps with narrow rows."""
    if not found.is_flattened:
        in_place = partial(InPlaceWriter, kernel, found)
        yield Candidate("rows in place", in_place(isa).cycles, in_place)
    deepest = max(1, min(MOST_ROWS, isa.registers // 2 - 2) // found.columns.places)
    for deep in range(1, deepest + 1):
        for together, unrolled in product((False, True), (True, False)[found.columns.taps > MOST_UNROLLED :]):
            rows = DenseRows(kernel, found, isa, together)
            if rows.fits and deep <= rows.rows:
                copied = partial(CopiedWriter, kernel, found, rows=rows, deep=deep, unrolled=unrolled)
                writer = copied(isa)
                yield Candidate("copied rows", writer.cycles, copied, str(writer))


class _RowTiles(PixelTiles):
    """A generator that computes row after row."""

    def _far(self, row_bytes: int) -> float:
        """The factor of the time of sums if a row of outputs reads so many bytes of inputs."""
        if self.found.taps == 1 and self.isa.registers <= 16:
            read = self.found.inputs * (LINES_BYTES + 4 * self._widest)
            return FAR_POINTS if read > TILE_BYTES else 1.0
        return far_time(row_bytes, 4 * self._widest * self.packing.terms, self.isa)


class InPlaceWriter(_RowTiles):
    """A generator that reads the input in place, and only taps inside it."""

    together = False

    def __init__(self, kernel: Kernel, found: Convolution, isa: Isa) -> None:
        super().__init__(kernel, found, isa, parts_of(found.columns), LOOP_CYCLES)

    @property
    def cycles(self) -> float:
        """Modelled time of the convolution."""
        found = self.found
        taps = sum((p.end - p.start) * (p.last - p.first) for p in parts_of(found.rows))
        stored = found.rows.places * found.columns.places * found.outputs * STORE_CYCLES
        read = 4 * found.inputs * found.rows.taps * found.columns.size
        sums = taps * found.inputs * self.row_cycles * self._far(read)
        return found.batch * found.groups * (sums + stored)

    def _tasks(self, tiles: int) -> int:
        return self.found.batch * self.found.groups * tiles * self.found.rows.places

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        found = self.found
        tiles = sum(r.count for r in self.vector_runs)
        images = found.batch * found.groups
        # Tiles of channels first: a task then reads fewer weights.
        parts = emit.shares(found.work, images, tiles)
        chunks = emit.shares(found.work, images * parts, found.rows.places)
        with emit.shared_loop(images * chunks * parts, found.work) as task:
            image, group, chunk, part = emit.unpacked(task, (found.batch, found.groups, chunks, parts))
            buffers = self._buffers()
            with emit.share_loop(part, parts, tiles) as tile, emit.share_loop(chunk, chunks, found.rows.places) as row:

                def source(start: tirx.Expr) -> tuple[Walk, Factor]:
                    return self._source(arguments, (image, group, row), start)

                emit.either_run(
                    self.vector_runs,
                    tile,
                    lambda run: self._row(arguments, buffers, run, tile, (image, group, row), source),
                )

    def _source(
        self, arguments: Arguments, where: tuple[tirx.Expr, tirx.Expr, tirx.Expr], start: tirx.Expr
    ) -> tuple[Walk, Factor]:
        """The walk over the terms of pixels from `start` of a row, and their inputs."""
        found = self.found
        rows, columns = found.rows, found.columns
        image, group, row = where
        flat = arguments.flat(found.data)
        channel = (image * index(found.groups) + group) * index(found.inputs)
        top = row * index(rows.stride) - index(rows.before)
        left = start * index(columns.stride) - index(columns.before)
        down, across = range_inside(rows, top), range_inside(columns, left)

        def place(term: Term) -> tirx.Expr:
            input_, tap_row, tap, _ = term
            line = (channel + input_) * index(rows.size) + top + tap_row * index(rows.dilation)
            return line * index(columns.size) + left + tap * index(columns.dilation)

        def fetching_next_row(step: Step) -> Step:
            """A step that prefetches what the same pixels of the next row of outputs read."""
            read = columns.stride * max(r.size for _, r in self.tiles)
            next_ = index(rows.stride * columns.size)

            def ahead(term: Term, number: int) -> None:
                for line in range(0, read, LINE):
                    emit.prefetch(flat, place(term) + next_ + index(line))
                step(term, number)

            return ahead

        def walk(step: Step) -> None:
            if found.taps == 1 and 4 * found.inputs * rows.size * columns.size >= FETCHED_BYTES:
                step = fetching_next_row(step)
            with self._blocks() as start, loop_inside(rows, down) as tap_row, loop_inside(columns, across) as tap:
                self._block_of_inputs(step, start, tap_row, tap)

        def factor(pixel: tirx.Expr, term: Term) -> tirx.Expr:
            return flat[place(term) + pixel * index(columns.stride)]

        return walk, factor


class CopiedWriter(_RowTiles):
    """A generator that copies rows with padding for some rows of outputs, of which a tile covers `deep`."""

    def __init__(
        self, kernel: Kernel, found: Convolution, isa: Isa, rows: DenseRows, deep: int = 1, unrolled: bool = True
    ) -> None:
        """The taps of a row may be `unrolled`. A chunk of the copied `rows` has no fewer than `deep`."""
        whole = (Part(0, deep * found.columns.places, 0, found.columns.taps),)
        self._rows, self.taps_inside = rows, unrolled
        super().__init__(kernel, found, isa, whole, 0.0 if unrolled else COPIED_LOOP_CYCLES, deep)

    def __str__(self) -> str:
        taps = "unrolled" if self.taps_inside else "loops over taps"
        return f"{self.deep}{' together' if self.together else ''}, {taps}"

    @property
    def together(self) -> bool:
        """Whether threads copy rows together."""
        return self._rows.together

    def _held(self, tall: int) -> int:
        """Registers for inputs: LLVM keeps those that several taps of a row read, and computes with what is left."""
        columns = self.found.columns
        if not self.taps_inside and self.isa.registers > 16:
            return HELD
        return tall + 1 if columns.taps > 1 and columns.stride <= columns.reach else super()._held(tall)

    @property
    def _turns(self) -> int:
        """The number of times that a tile computes `deep` rows of a chunk; the last of them may overlap others."""
        return -(-self._rows.rows // self.deep)

    @property
    def cycles(self) -> float:
        """Modelled time of the convolution."""
        found, tiles = self.found, sum(r.count for r in self.vector_runs)
        rows = self._rows.chunks * self._turns
        stored = rows * self._pixels * found.outputs * STORE_CYCLES
        sums = self._rows.chunks * self._tap_rows * found.inputs * self.row_cycles
        shared = emit.sharing(found.work, self._tasks(tiles))
        sums *= self._far(self._rows.row_bytes)
        return found.batch * found.groups * (sums + stored) * shared + self._rows.copying(tiles)

    @property
    def _tap_rows(self) -> float:
        """The number of rows of taps that a chunk computes, in the mean: none that is in the padding for all of a tile.

        Taps inside an input channel are all computed.
        """
        window = self.found.rows
        if self.taps_inside:
            return self._turns * window.taps
        last = window.places - self.deep
        tops = [min(top, last) for top in range(0, window.places, self.deep)]
        inside = [taps_of(window, top)[1] - taps_of(window, top + self.deep - 1)[0] for top in tops]
        return self._turns * sum(inside) / len(inside)

    def _row_cycles(self, tall: int, wide: int) -> float:
        if self.taps_inside or tall < self._pixels or self.found.columns.taps > MOST_UNROLLED:
            return super()._row_cycles(tall, wide)
        inside = [sum(map(len, self._with_tap(tap))) for tap in range(self.found.columns.taps)]
        tiles = runs(self._vectors, wide)
        return sum(v.count * self._step_cycles(pixels, v.size) for v in tiles for pixels in inside if pixels)

    def _tasks(self, tiles: int) -> int:
        return self._rows.tasks_of(tiles, self._turns)

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        tiles = sum(r.count for r in self.vector_runs)
        self._rows.write_blocks(arguments, tiles, self._turns, lambda *block: self._block(arguments, tiles, *block))

    def _block(
        self,
        arguments: Arguments,
        tiles: int,
        copied: tirx.Buffer,
        where: tuple[tirx.Expr, tirx.Expr, tirx.Expr],
        part: tuple[tirx.Expr, int],
        step: tuple[tirx.Expr, int],
    ) -> None:
        image, group, top = where
        buffers = self._buffers()
        with emit.share_loop(*part, tiles) as tile, emit.share_loop(*step, self._turns) as turn:
            line = turn * index(self.deep)
            if self._rows.rows % self.deep:
                line = emit.bound(tirx.min(line, index(self._rows.rows - self.deep)))

            def source(start: tirx.Expr) -> tuple[Walk, Factor]:
                return self._source(copied, where, line, start)

            emit.either_run(
                self.vector_runs,
                tile,
                lambda run: self._row(arguments, buffers, run, tile, (image, group, top + line), source),
            )

    def _source(
        self, copied: tirx.Buffer, where: tuple[tirx.Expr, tirx.Expr, tirx.Expr], line: tirx.Expr, start: tirx.Expr
    ) -> tuple[Walk, Factor]:
        """The walk over the terms of pixels from `start` of a line of the chunk, and their copied inputs."""
        found, rows = self.found, self._rows
        image, group, top = where
        first = (top + line) * index(found.rows.stride) - index(found.rows.before)

        def walk(step: Step) -> None:
            if self.taps_inside:
                with emit.loop(found.inputs) as input_, emit.loop(found.rows.taps) as tap_row:
                    for number in range(found.columns.taps):
                        step((input_, tap_row, index(number), input_), 0)
                return
            down = range_inside(found.rows, first, self.deep)
            with self._blocks() as begin, loop_inside(found.rows, down) as tap_row:
                self._walk_row(begin, tap_row, step)

        def factor(pixel: tirx.Expr, term: Term) -> tirx.Expr:
            begin = rows.pixel((image, group), line, term)
            if self.deep == 1:
                return copied[begin + rows.beside(start + pixel)]
            down, across = (f(pixel, index(found.columns.places)) for f in (tirx.floordiv, tirx.floormod))
            return copied[begin + down * index(rows.pitch) + rows.beside(across)]

        return walk, factor

    def _walk_row(self, start: tirx.Expr, tap_row: tirx.Expr, step: Step) -> None:
        """The terms of a row of taps and a block of inputs: one tap after the other, of pixels that have it inside."""
        found = self.found
        if len(self.tiles) > 1 or self.tiles[0][1].count > 1 or found.columns.taps > MOST_UNROLLED:
            with emit.loop(found.columns.taps) as tap:
                self._block_of_inputs(step, start, tap_row, tap)
            return
        for number in range(found.columns.taps):
            if self._with_tap(number):
                self._block_of_inputs(step, start, tap_row, index(number))

    def _pixels_with(self, term: Term) -> Sequence[range]:
        """The pixels of a tile of whole rows whose tap of this number is not in the padding at the sides."""
        all_ = self.taps_inside or self.found.columns.taps > MOST_UNROLLED
        return (range(self._pixels),) if all_ else self._with_tap(int(term[2]))

    def _with_tap(self, tap: int) -> list[range]:
        window = self.found.columns
        inside = [place for place in range(window.places) if tap in range(*taps_of(window, place))]
        if len(inside) == window.places:
            return [range(self._pixels)]
        starts = [row * window.places for row in range(self.deep)] if inside else []
        return [range(start + inside[0], start + inside[-1] + 1) for start in starts]

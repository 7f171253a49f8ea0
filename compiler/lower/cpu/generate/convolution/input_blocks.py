"""Convolution in NCHW with vectors along output channels, one block of input channels after the other.

A tile of pixels times vectors of channels walks over all its terms. With many input channels, what it reads of the map
and of the weights does not stay in a first-level cache until the next tile reads it again. Here the terms are divided
into blocks, the sums of all tiles of a chunk of rows are kept in memory from block to block, and what a tile reads of
one block stays in the cache: Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (2008).

The inputs of a block are read in place if that is possible (1×1 without strides), else copied: the pixels that 1×1
convolutions with strides read, side by side, and otherwise rows with padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.candidates import Candidate
from heterocc.compiler.lower.cpu.generate.convolution.dense_rows import DenseRows
from heterocc.compiler.lower.cpu.generate.convolution.form import Convolution, Window, find_planes
from heterocc.compiler.lower.cpu.generate.convolution.pixel_tiles import (
    STORE_CYCLES,
    Factor,
    PixelTiles,
    Term,
    Walk,
    suits_tiles,
)
from heterocc.compiler.lower.cpu.generate.convolution.taps_inside import Part, loop_inside, range_inside, share_inside
from heterocc.compiler.lower.cpu.generate.emit import Arguments, Step
from heterocc.compiler.lower.cpu.generate.epilogue import can_store
from heterocc.compiler.lower.cpu.generate.fetch import FETCHED_BYTES, LINE
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, index
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.tiles import Run, step_cycles
from heterocc.compiler.lower.cpu.sizes import is_number

NEAR_BYTES = 34 << 10
"""The limit on what all tiles read of a block of a small map: a first-level cache of 32 KiB holds most of it."""

TILE_BYTES = 20 << 10
"""The limit on what one tile reads of a block of a larger map; the next tile finds most of it in that cache."""

LINES_BYTES = 85
"""The bytes of the cache lines with the pixels of a tile, in the mean of their places."""

WEIGHT_BYTES = 18 << 10
WEIGHT_BYTES_WIDE = 40 << 10
"""The share of the weights of several taps, whose inputs are few enough to come from a second-level cache; also with 32
registers, for which more terms pay (measured on a Zen 4)."""

UNROLLED_BYTES = 128 << 10
"""The limit on weights of a block for which its inputs become a multiple of the terms that are unrolled: with two of
128 taps, tiles took 1.2 times as long as with one or four."""

SUM_BYTES = 160 << 10
SUM_BYTES_WIDE = 256 << 10
"""The limit on sums that are kept from block to block: they are to stay in a second-level cache. CPUs with 32 registers
have larger ones."""

PIXELS = 224
"""The limit on pixels of a chunk of rows, if there are several rows."""

FEWEST_OF_A_ROW = 48
"""The smallest number of pixels of a row that a map is divided into: few would be left over in each."""

USUAL_VECTORS = 2
"""The vectors of most tiles."""

FEWEST_TERMS = 48
"""The smallest number of terms of a block: the sums of fewer would mostly be loaded and stored."""

KEPT_CYCLES = 1.5
"""The time of loading a vector of sums and of storing it."""

COPY_CYCLES = 1.2
"""The time of copying a number."""

ROW_CYCLES = 6.0
"""The time of copying a row, beside that of its vectors."""

FEWEST_PIXELS = 8
"""The smallest number of pixels of a row that has tiles of its own, with 32 registers: pixels of several rows in a tile
are at places that are looked up, one by one, and with more of them than a CPU has registers for addresses."""

LOOKED_UP = 0.8
"""The share of pixels of several rows whose places are loaded for each term."""

INSIDE = 0.9
"""The share of taps inside the input up to which those outside are left out, for tiles of a row."""

MOST_REGISTERS = 16
"""The registers of instruction sets whose caches are those of a Zen 3."""


def propose_blocks(kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
    """The kernel as a convolution of fixed sizes in blocks of input channels, or of 1x1 in one block of all."""
    found = find_planes(kernel) if all(map(is_number, kernel.extents)) else None
    if found is not None and can_store(kernel) and suits_tiles(found, isa):
        writer = partial(InputBlocks, kernel, found)
        judged = writer(isa)
        yield Candidate("pixels" if judged.pointwise else "blocks of inputs", judged.cycles, writer)


def _in_rows(found: Convolution, isa: Isa) -> Convolution | None:
    """The 1x1 convolution of a map whose pixels are in other rows, each a chunk: as many as give threads enough tasks.

    None with 16 registers, or if no number of rows divides the pixels so.
    """
    pixels = found.rows.places * found.columns.places
    tiles = found.batch * found.groups * -(-found.outputs // (USUAL_VECTORS * isa.lanes))
    counts = [n for n in range(-(-pixels // PIXELS), pixels // FEWEST_OF_A_ROW + 1) if pixels % n == 0]
    if isa.registers <= MOST_REGISTERS or not counts or found.rows.places < found.rows.size:
        return None
    wanted = emit.TASKS if found.work >= emit.PARALLEL_WORK else 1
    rows = next((n for n in counts if n * tiles >= wanted), counts[-1])
    places = pixels // rows
    return replace(found, rows=Window(rows, 0, 1, 1, 1, rows), columns=Window(places, 0, 1, 1, 1, places))


class InputBlocks(PixelTiles):
    """A generator of a convolution of fixed sizes in blocks of input channels.

    A chunk of rows is `lines` lines of pixels, whose tiles have pixels of one line only: its rows if tiles are
    `by_row`, else one line of all pixels.
    """

    def __init__(self, kernel: Kernel, found: Convolution, isa: Isa) -> None:
        rows, columns = found.rows, found.columns
        self.pointwise = found.taps == 1 and rows.is_inside and columns.is_inside and not found.is_flattened
        self.in_place = self.pointwise and rows.stride == columns.stride == 1 and columns.places == columns.size
        rearranged = _in_rows(found, isa) if self.in_place else None
        if rearranged is not None:
            found, rows, columns = rearranged, rearranged.rows, rearranged.columns
        tall = 1 if rearranged is not None else max(1, min(rows.places, PIXELS // columns.places))
        self.chunks = -(-rows.places // tall)
        self.rows = -(-rows.places // self.chunks)
        wide = isa.registers > MOST_REGISTERS and columns.places >= FEWEST_PIXELS
        self.by_row = not self.pointwise and (wide or rows.places == 1)
        self.lines, width = (self.rows, columns.places) if self.by_row else (1, self.rows * columns.places)
        super().__init__(kernel, found, isa, (Part(0, width, 0, columns.taps),), 0.0)
        self.block = self.together = self._inputs_of_block()
        self.blocks = found.inputs // self.together
        taps = (rows.taps, columns.taps)
        self.packing = Panels(
            found.weight,
            (found.groups, found.outputs, self.blocks, self.together, *taps),
            (0, 2, 4, 5, 3, 1),
            found.groups * self.blocks,
            self.together * found.taps,
            found.outputs,
            isa.lanes,
            self.vector_runs,
        )
        self.copied = None if self.pointwise else _Rows(kernel, found, isa, self.rows, self.together)
        # No more taps are outside than the first and the last outputs have within their reach.
        inside = columns.reach <= (1 - INSIDE) * columns.stride * columns.places
        self._inside = share_inside(columns, self._tallest) if self.by_row and not inside else 1.0
        self.leaves_out = self._inside <= INSIDE
        self.parts = self._parts()

    def _inputs_of_block(self) -> int:
        """The largest number of input channels of a block with which tiles read from the first-level cache.

        Of 1x1 convolutions all, with 32 registers: a Zen 4 takes 1.01 to 1.04 times as long in blocks of them.
        """
        found = self.found
        if self.pointwise and self.isa.registers > MOST_REGISTERS:
            return found.inputs
        wide = max(r.size for r in self.vector_runs)
        weights = found.taps * wide * self.isa.lanes * 4
        most = (WEIGHT_BYTES if self.isa.registers <= MOST_REGISTERS else WEIGHT_BYTES_WIDE) // weights
        if self.pointwise:
            near = NEAR_BYTES // (weights + 4 * self._pixels)
            most = near if near >= FEWEST_TERMS else TILE_BYTES // (weights + LINES_BYTES)
        divisors = [n for n in range(1, found.inputs + 1) if found.inputs % n == 0 and n * found.taps >= FEWEST_TERMS]
        block = max((n for n in divisors if n <= most), default=min(divisors, default=found.inputs))
        if self.pointwise or block % emit.UNROLL == 0:
            return block
        unrolled = min((n for n in divisors if n % emit.UNROLL == 0 and n > block), default=block)
        return unrolled if unrolled * weights <= UNROLLED_BYTES else block

    def _tasks(self, tiles: int) -> int:
        return self.found.batch * self.found.groups * self.chunks * tiles

    def _step_cycles(self, tall: int, wide: int) -> float:
        looked_up = 0.0 if self.by_row or self.pointwise else LOOKED_UP * tall
        return max(step_cycles(tall, wide), (tall + looked_up + wide) / 2)

    @property
    def _tallest(self) -> int:
        """The number of pixels of the largest tile."""
        return max(r.size for _, r in self.tiles)

    @property
    def _chunk(self) -> int:
        """The number of pixels of a chunk."""
        return self.lines * self._pixels

    @property
    def _copy_cycles(self) -> float:
        """Modelled time of copying what a chunk reads of all input channels."""
        if self.in_place:
            return 0.0
        if self.copied is None:
            return self.found.inputs * self._chunk * COPY_CYCLES
        rows = self.found.inputs * self.copied.lines * len(self.found.rows.phases)
        return rows * (ROW_CYCLES + 2 * self.copied.pitch / self.isa.lanes)

    @property
    def _sum_cycles(self) -> float:
        """Modelled time of the sums of a chunk."""
        found = self.found
        kept = (self.blocks - 1) * self._chunk * self._vectors * KEPT_CYCLES
        # The time of a row is that of all taps side by side, for one channel and one row of taps.
        computed = self._inside if self.leaves_out else 1.0
        return computed * found.inputs * found.rows.taps * self.lines * self.row_cycles + kept

    def _parts(self) -> int:
        """The number of parts of the output channels, which threads share: each copies the inputs by itself."""
        found, tiles = self.found, sum(r.count for r in self.vector_runs)
        shares = emit.shares(found.work, found.batch * found.groups * self.chunks, tiles)
        most = SUM_BYTES if self.isa.registers <= MOST_REGISTERS else SUM_BYTES_WIDE
        held = min(tiles, -(-4 * self._chunk * found.outputs // most))
        return min(range(held, max(held, shares) + 1), key=self._cycles_in)

    def _cycles_in(self, parts: int) -> float:
        """Modelled time of the convolution in so many parts of the output channels."""
        found = self.found
        chunk = self._sum_cycles + self.lines * self._across * found.outputs * STORE_CYCLES + parts * self._copy_cycles
        chunks = found.batch * found.groups * self.chunks
        return chunks * chunk * emit.sharing(found.work, chunks * parts)

    @property
    def cycles(self) -> float:
        """Modelled time of the convolution."""
        return self._cycles_in(self.parts)

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        found = self.found
        tiles = sum(r.count for r in self.vector_runs)
        extents = (found.batch, found.groups, self.chunks, self.parts)
        most = -(-tiles // self.parts) * self._widest
        with emit.shared_loop(found.batch * found.groups * self.chunks * self.parts, found.work) as task:
            image, group, chunk, part = emit.unpacked(task, extents)
            top = tirx.min(chunk * index(self.rows), index(found.rows.places - self.rows))
            where = (image, group, emit.bound(top) if self.chunks > 1 else index(0))
            sums = emit.scratch(most * self.lines * self._across)
            turned = emit.scratch(self._widest * self._across)
            copied = self._copied_block()
            first, _ = emit.share(part, self.parts, tiles) if self.parts > 1 else (index(0), None)
            # The first block has code of its own, which adds its products to zeros.
            for before, count in ((0, 1), (1, self.blocks - 1)) if self.blocks > 1 else ((0, 1),):
                with emit.loop(count) as number:
                    block = number + index(before)
                    self._copy(arguments, copied, where, block)
                    with emit.share_loop(part, self.parts, tiles) as tile:
                        self._block(arguments, (sums, copied), (tile, first), where, block, before > 0)
            with emit.share_loop(part, self.parts, tiles) as tile:
                emit.either_run(
                    self.vector_runs,
                    tile,
                    lambda run: self._store(arguments, (sums, turned), run, (tile, first), where),
                )

    def _store(
        self,
        arguments: Arguments,
        buffers: tuple[tirx.Buffer, tirx.Buffer],
        run: Run,
        tiles: tuple[tirx.Expr, tirx.Expr],
        where: tuple[tirx.Expr, tirx.Expr, tirx.Expr],
    ) -> None:
        """Store the sums of a tile of channels; `tiles` are this one and its part's first."""
        (sums, turned), (tile, first), (image, group, top) = buffers, tiles, where
        with emit.loop(self.lines) as line:
            kept = self._kept(tile, first) + line * index(self._widest * self._across)
            self._store_row(arguments, (sums, kept), turned, run, tile, (image, group, top + line))

    def _kept(self, tile: tirx.Expr, first: tirx.Expr) -> tirx.Expr:
        """The place of the sums of a tile of channels among those of a part, whose first one is `first`."""
        return (tile - first) * index(self.lines * self._widest * self._across)

    def _copied_block(self) -> tirx.Buffer | None:
        """Memory for the copied inputs of a block."""
        if self.in_place:
            return None
        if self.copied is not None:
            return self.copied.scratch(len(self.found.rows.phases) * self.copied.plane, self.copied.overrun)
        return emit.scratch(self.together * self._chunk)

    def _copy(
        self,
        arguments: Arguments,
        copied: tirx.Buffer | None,
        where: tuple[tirx.Expr, tirx.Expr, tirx.Expr],
        block: tirx.Expr,
    ) -> None:
        """Copy what the outputs of a chunk read of a block of input channels."""
        if copied is None:
            return
        found = self.found
        image, group, top = where
        flat = arguments.flat(found.data)
        channel = (image * index(found.groups) + group) * index(found.inputs) + block * index(self.together)
        with emit.loop(self.together) as input_:
            if self.copied is not None:
                self.copied.copy_channel(flat, channel + input_, (copied, input_), top)
                return
            rows, columns = found.rows, found.columns
            with emit.loop(self.rows) as row, emit.loop(columns.places) as column:
                line = (channel + input_) * index(rows.size) + (top + row) * index(rows.stride)
                to = input_ * index(self._chunk) + row * index(columns.places) + column
                build.buffer_store(copied, flat[line * index(columns.size) + column * index(columns.stride)], [to])

    def _block(
        self,
        arguments: Arguments,
        buffers: tuple[tirx.Buffer, tirx.Buffer | None],
        tiles: tuple[tirx.Expr, tirx.Expr],
        where: tuple[tirx.Expr, tirx.Expr, tirx.Expr],
        block: tirx.Expr,
        continued: bool,
    ) -> None:
        """Add the products of a block to the sums of a tile of channels; `tiles` are this one and its part's first."""
        (sums, copied), (tile, first) = buffers, tiles

        def add(run: Run) -> None:
            width = index(run.size * self.isa.lanes)
            group = where[1] * index(self.blocks) + block
            with emit.loop(self.lines) as line:
                kept = self._kept(tile, first) + line * index(self._widest * self._across)
                source = partial(self._source, arguments, copied, where, block, line)
                places = (sums, lambda pixel: kept + pixel * width)
                self._sums_of_row(arguments, places, run, tile, group, source, continued)

        emit.either_run(self.vector_runs, tile, add)

    def _source(
        self,
        arguments: Arguments,
        copied: tirx.Buffer | None,
        where: tuple[tirx.Expr, tirx.Expr, tirx.Expr],
        block: tirx.Expr,
        line: tirx.Expr,
        start: tirx.Expr,
    ) -> tuple[Walk, Factor]:
        """The walk over the terms of a block, and the inputs of pixels from `start` of a line of a chunk."""
        found = self.found
        rows, columns = found.rows, found.columns
        image, group, top = where

        across = None
        if self.leaves_out:
            left = start * index(columns.stride) - index(columns.before)
            across = range_inside(columns, left, self._tallest)

        def walk(step: Step) -> None:
            with emit.loop(rows.taps) as tap_row, loop_inside(columns, across) as tap:
                emit.in_turn(self.together, lambda input_, number: step((input_, tap_row, tap, index(0)), number))

        if copied is None:
            flat = arguments.flat(found.data)
            channel = (image * index(found.groups) + group) * index(found.inputs) + block * index(self.together)
            begin = channel * index(rows.size * columns.size) + top * index(columns.size) + start

            def place(pixel: tirx.Expr, term: Term) -> tirx.Expr:
                return begin + term[0] * index(rows.size * columns.size) + pixel

            def fetching_next_pixels(step: Step) -> None:
                # The rows of a map are so far apart that hardware takes none of the next pixels for the next of a
                # stream, and another thread may have written them.
                def ahead(term: Term, number: int) -> None:
                    for line in range(self._tallest, 2 * self._tallest, LINE):
                        emit.prefetch(flat, place(index(min(line + LINE, 2 * self._tallest) - 1), term))
                    step(term, number)

                walk(ahead)

            far = self.blocks == 1 and 4 * found.inputs * rows.size * columns.size >= FETCHED_BYTES
            return fetching_next_pixels if far else walk, lambda pixel, term: flat[place(pixel, term)]
        if self.copied is None:
            return walk, lambda pixel, term: copied[term[0] * index(self._chunk) + start + pixel]
        return walk, self._factor_of_rows(copied, line, start)

    def _factor_of_rows(self, copied: tirx.Buffer, line: tirx.Expr, start: tirx.Expr) -> Factor:
        """The copied inputs of pixels from `start`, which may be in several rows."""
        rows, columns = self.copied, index(self.found.columns.places)
        assert rows is not None
        if self.by_row:
            return lambda pixel, term: copied[rows.pixel((index(0), index(0)), line, term) + rows.beside(start + pixel)]
        tall = self._tallest
        apart = build.alloc_buffer((tall,), "int64", scope="global")
        with emit.loop(tall, "unroll") as pixel:
            down, across = (f(start + pixel, columns) for f in (tirx.floordiv, tirx.floormod))
            build.buffer_store(apart, down * index(rows.pitch) + rows.beside(across), [pixel])

        def factor(pixel: tirx.Expr, term: Term) -> tirx.Expr:
            return copied[rows.pixel((index(0), index(0)), index(0), term) + apart[pixel]]

        return factor

    def _place(self, image: tirx.Expr, channel: tirx.Expr, row: tirx.Expr, column: tirx.Expr) -> Place:
        """The place in the output of a pixel of the chunk that starts with `row`, or of that row."""
        if self.by_row:
            return super()._place(image, channel, row, column)
        extents, (_, out, down, across) = self.kernel.extents, self.found.loops
        found: list[tuple[tuple[int, ...], tirx.Expr]] = [((n,), value) for n, value in self.found.image_loops(image)]
        found.append(((out,), channel))
        pixels = (across,) if down is None else (down, across)
        found.append((pixels, row * index(self.found.columns.places) + column))
        return [(Axis(loops, tuple(extents[n] for n in loops)), value) for loops, value in found]


class _Rows(DenseRows):
    """Copies of the rows that `tall` rows of outputs read of some input channels."""

    def __init__(self, kernel: Kernel, found: Convolution, isa: Isa, tall: int, inputs: int) -> None:
        self._tall, self._inputs = tall, inputs
        super().__init__(kernel, found, isa)

    @property
    def inputs(self) -> int:
        """The number of channels that are copied at a time."""
        return self._inputs

    def _best_rows(self, most: int) -> int:
        return self._tall

    @property
    def overrun(self) -> int:
        """The numbers after the copies that may be written or read."""
        return self._overrun() + self.isa.lanes

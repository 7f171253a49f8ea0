"""Convolutions with vectors along output channels: the code of `channel_tiling.py`.

Sums of a row of pixels are put in memory, by pixels, then turned in registers to rows of pixels of each channel, and
stored with the epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.candidates import Candidate
from heterocc.compiler.lower.cpu.generate.convolution.channel_tiling import Tiling, in_long_rows
from heterocc.compiler.lower.cpu.generate.convolution.form import find_planes
from heterocc.compiler.lower.cpu.generate.convolution.input_rows import Chunk
from heterocc.compiler.lower.cpu.generate.convolution.taps_inside import loop_inside
from heterocc.compiler.lower.cpu.generate.emit import Arguments, Step
from heterocc.compiler.lower.cpu.generate.epilogue import can_store, store_vectors
from heterocc.compiler.lower.cpu.generate.fetch import fetching_shares, lines_after
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.maps.transposes import transposed
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, index
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.tiles import Run
from heterocc.compiler.lower.cpu.sizes import Size, as_number, is_number, same

FEWEST_LANES = 8
"""Vectors of fewer lanes are nearly filled by pixels."""

FEWEST_PIXELS = 2
"""The smallest number of pixels: a single one is a product with a vector."""


def propose_channels(kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
    """The kernel as a convolution of images of a fixed size, whose number may be any, with vectors along channels.

    Channels fill a vector, and there are several pixels, to each of which a weight that is read serves.
    """
    if not all(is_number(extent) for loop, extent in enumerate(kernel.extents) if loop not in kernel.places[:1]):
        return
    conv = find_planes(kernel)
    if conv is None or not can_store(kernel) or isa.lanes < FEWEST_LANES or conv.outputs < isa.lanes:
        return
    if as_number(conv.rows.places * conv.columns.places) >= FEWEST_PIXELS:
        writer = partial(ChannelTiles, kernel, in_long_rows(conv, isa))
        tiling = writer(isa)
        yield Candidate("channels", tiling.cycles, writer, "in place" if tiling.input_rows.in_place else "of copies")


@dataclass(frozen=True, slots=True)
class _Term:
    """A term of a sum: an input channel, a row of taps, a tap of it.

    `first` is the first input channel of those that come one after the other for a tap.
    """

    input: tirx.Expr
    row: tirx.Expr
    tap: tirx.Expr
    first: tirx.Expr


@dataclass(frozen=True, slots=True)
class _Line:
    """A row of outputs of an image's group: row number `down` of a chunk that begins at row `top`.

    `kept` is the place of its sums.
    """

    image: tirx.Expr
    group: tirx.Expr
    top: tirx.Expr
    down: tirx.Expr
    kept: tirx.Expr

    @property
    def row(self) -> tirx.Expr:
        """The number of the row."""
        return self.top + self.down


@dataclass(frozen=True, slots=True)
class _Memory:
    """Memory of a task: for sums by pixels, for those of a row by channels, and for inputs."""

    sums: tirx.Buffer
    turned: tirx.Buffer
    inputs: tirx.Buffer


class ChannelTiles(Tiling):
    """A generator of a convolution of fixed sizes in tiles of pixels times vectors of channels."""

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        tiles = sum(r.count for r in self.vector_runs)

        def write_chunk(chunk: Chunk, part: emit.Part) -> None:
            held = self.widest * self.across
            sums = emit.scratch(held * (self.rows if self.blocks > 1 else 1))
            memory = _Memory(sums, emit.scratch(held), chunk.inputs)

            def of_run(run: Run) -> None:
                channel = emit.start_of(run, tile) * index(self.isa.lanes)

                def lines() -> Iterator[_Line]:
                    """A loop over rows: they change fastest, so that weights are read again from a near cache."""
                    with emit.loop(self.rows) as down:
                        kept = down * index(held) if self.blocks > 1 else index(0)
                        yield _Line(chunk.image, chunk.group, chunk.top, down, kept)

                # The first block has code of its own, which adds its products to zeros.
                for before, count in ((0, 1), (1, self.blocks - 1))[: min(self.blocks, 2)]:
                    with emit.loop(count) as number:
                        for line in lines():
                            self._products(arguments, memory, run, channel, line, number + index(before), before > 0)
                            if self.blocks == 1:
                                self._store(arguments, memory, run, channel, line)
                if self.blocks > 1:
                    for line in lines():
                        self._store(arguments, memory, run, channel, line)

            with emit.share_loop(*part, tiles) as tile:
                emit.either_run(self.vector_runs, tile, of_run)

        self.input_rows.write_chunks(arguments, self.parts, write_chunk)

    def _products(
        self,
        arguments: Arguments,
        memory: _Memory,
        run: Run,
        channel: tirx.Expr,
        line: _Line,
        block: tirx.Expr,
        continued: bool,
    ) -> None:
        """Add the products of a block to the sums of a row in memory if they are `continued`, else put them there.

        `channel` is the first one of the tile.
        """
        lanes = self.isa.lanes
        weights = arguments.flat(self.kernel.function.params[self.conv.weight])
        base = line.group * index(self.packing.block) + channel * index(self.packing.terms)
        width, tiles = run.size * lanes, sum(r.count for r in self.pixel_runs)

        def loaded(column: int, term: _Term) -> tirx.Expr:
            tap = term.row * index(self.conv.columns.taps) + term.tap
            place = term.first * index(self.conv.taps) + tap * index(self.in_turn) + (term.input - term.first)
            return emit.vector(weights, base + place * index(width) + index(column * lanes), lanes)

        for pixels in self.pixel_runs:
            with emit.loop(pixels.count) as number:
                start = emit.bound(index(pixels.start) + number * index(pixels.size))

                def at(pixel: tirx.Expr, column: int, start: tirx.Expr = start) -> tirx.Expr:
                    return line.kept + (start + pixel) * index(width) + index(column * lanes)

                def begin(pixel: tirx.Expr, column: int, at: Callable[..., tirx.Expr] = at) -> tirx.Expr:
                    return emit.vector(memory.sums, at(pixel, column), lanes)

                def walk(
                    _: Size,
                    step: Step,
                    number: tirx.Expr = number,
                    first: Size = pixels.first,
                    start: tirx.Expr = start,
                ) -> None:
                    if self.conv.taps == 1 and 4 * self.packing.size > self.isa.core.fetched_weights:
                        size, count = width * self.packing.terms, tiles * self.blocks
                        tile = block * index(tiles) + number + index(first)
                        step = fetching_shares(
                            step,
                            self.inputs,
                            *lines_after(weights, base, size),
                            lambda term: term.input - term.first,
                            emit.Part(tile, count),
                        )
                    self._walk(line.row, start, block * index(self.inputs), step)

                factor = self._factor(memory.inputs, line, start)
                terms = self.inputs * self.conv.taps
                sums = emit.product_tile(
                    pixels.size, run.size, terms, self.isa, factor, loaded, walk, begin=begin if continued else None
                )
                with emit.loop(pixels.size, "unroll") as pixel:
                    for column, buffer in enumerate(sums):
                        value = emit.vector(buffer, pixel * index(lanes), lanes)
                        emit.put(memory.sums, value, at(pixel, column), lanes)

    def _factor(self, inputs: tirx.Buffer, line: _Line, start: tirx.Expr) -> Callable[[tirx.Expr, _Term], tirx.Expr]:
        """The number that a pixel of a tile from `start` has for a term."""
        columns, begin = self.conv.columns, self.input_rows.place

        def factor(pixel: tirx.Expr, term: _Term) -> tirx.Expr:
            across = (start + pixel) * index(columns.stride) + term.tap * index(columns.dilation)
            return inputs[begin(term.input, term.row, index(0), line.down) + across]

        return factor

    def _walk(self, row: tirx.Expr, column: tirx.Expr, begin: tirx.Expr, step: Step) -> None:
        """Call `step` for the terms of a block of inputs in a tile at a row and column, but for taps in the padding."""
        together, columns = min(self.in_turn, self.inputs), self.conv.columns
        with emit.loop(self.inputs // together) as several, loop_inside(self.conv.rows, row) as down:
            first = begin + several * index(together)
            with loop_inside(columns, column, self.tallest) if self.leaves_out else emit.loop(columns.taps) as tap:
                emit.in_turn(together, lambda i, number: step(_Term(first + i, down, tap, first), number))

    def _store(self, arguments: Arguments, memory: _Memory, run: Run, first: tirx.Expr, line: _Line) -> None:
        """Store the sums of a row, turned to rows of pixels by channels."""
        conv, lanes, places = self.conv, self.isa.lanes, self.places
        across, wide = self.across, run.size * lanes
        with emit.loop(across // lanes) as block, emit.loop(run.size) as vector:
            held = [emit.registers(1, lanes) for _ in range(lanes)]
            for i, register in enumerate(held):
                pixel = block * index(lanes) + index(i)
                if i >= places % lanes > 0:  # there is none in the last block
                    pixel = tirx.min(pixel, index(places - 1))
                begin = line.kept + pixel * index(wide) + vector * index(lanes)
                emit.put(register, emit.vector(memory.sums, begin, lanes), index(0), lanes)
            for i, register in enumerate(transposed(held, lanes)):
                to = (vector * index(lanes) + index(i)) * index(across) + block * index(lanes)
                emit.put(memory.turned, emit.vector(register, index(0), lanes), to, lanes)
        with emit.loop(wide) as channel:
            output = first + channel
            if conv.outputs % lanes:
                begin = first + tirx.floordiv(channel, index(lanes)) * index(lanes)
                last = tirx.min(begin, index(conv.outputs - lanes))
                output = emit.bound(last + tirx.floormod(channel, index(lanes)))
            output = line.group * index(conv.outputs) + output
            store_vectors(
                self.kernel,
                arguments,
                lambda column: memory.turned[channel * index(across) + column],
                lambda column: self._place(line.image, output, line.row, column),
                places,
                lanes,
            )

    def _place(self, image: tirx.Expr, channel: tirx.Expr, row: tirx.Expr, column: tirx.Expr) -> Place:
        """A place in the output: of a map whose rows may be others than those of the convolution."""
        extents, (_, out, down, across) = self.kernel.extents, self.conv.loops
        places: list[tuple[tuple[int, ...], tirx.Expr]] = [((n,), value) for n, value in self.conv.image_loops(image)]
        places.append(((out,), channel))
        if down is not None and same(self.conv.rows.places, extents[down]):
            places += [((down,), row), ((across,), column)]
        else:
            line = row * index(self.places) + column
            places.append(((across,) if down is None else (down, across), line))
        return [(Axis(loops, tuple(extents[n] for n in loops)), value) for loops, value in places]

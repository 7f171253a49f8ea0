"""Convolutions with vectors along output channels: the code of all schedules of `channel_tiling.py`.

Sums of a line of pixels are put in memory, by pixels, then turned in registers to rows of pixels of each channel, and
stored with the epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.channel_tiling import Tiling
from heterocc.compiler.lower.cpu.generate.convolution.taps_inside import Term, loop_inside, range_inside
from heterocc.compiler.lower.cpu.generate.emit import Arguments, Step
from heterocc.compiler.lower.cpu.generate.epilogue import store_vectors
from heterocc.compiler.lower.cpu.generate.fetch import LINE, Shared, fetching_next
from heterocc.compiler.lower.cpu.generate.maps.transposes import transposed
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, index
from heterocc.compiler.lower.cpu.generate.tiles import Run
from heterocc.compiler.lower.cpu.sizes import divisor

Walk = Callable[[Step], None]
Factor = Callable[[tirx.Expr, Term], tirx.Expr]
"""The number that a pixel of a tile has for a term."""


@dataclass(frozen=True, slots=True)
class _Line:
    """Lines of a chunk: of an image's group, `top` is the first row of the chunk, `down` that of the line in it."""

    image: tirx.Expr
    group: tirx.Expr
    top: tirx.Expr
    down: tirx.Expr

    @property
    def row(self) -> tirx.Expr:
        """The first row of outputs of the line."""
        return self.top + self.down


@dataclass(frozen=True, slots=True)
class _Memory:
    """Memory of a task: for sums by pixels, for those of a line by channels, and for copied inputs."""

    sums: tirx.Buffer
    turned: tirx.Buffer
    copied: tirx.Buffer | None


@dataclass(frozen=True, slots=True)
class _Channels:
    """A tile of channels: its number `tile` of `run`, and the place of its sums, which each line has after another."""

    run: Run
    tile: tirx.Expr
    kept: tirx.Expr

    def first(self, lanes: int) -> tirx.Expr:
        """The first channel."""
        return emit.start_of(self.run, self.tile) * index(lanes)


class ChannelTiles(Tiling):
    """A generator of a convolution of fixed sizes in tiles of pixels times vectors of channels."""

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        conv = self.conv
        tiles = sum(r.count for r in self.vector_runs)
        tasks = (conv.batch, conv.groups, self.chunks, self.parts)
        with emit.shared_loop(conv.batch * conv.groups * self.chunks * self.parts, conv.work) as task:
            image, group, chunk, part = emit.unpacked(task, tasks)
            top = emit.bound(self._up_to(chunk, self.schedule.rows, conv.rows.places)) if self.chunks > 1 else index(0)
            held = self.lines * -(-tiles // self.parts) if self.blocks > 1 else 1
            sums = emit.scratch(held * self.widest * self.across)
            memory = _Memory(sums, emit.scratch(self.widest * self.across), self._memory_of_block())
            chunk_ = _Line(image, group, top, index(0))

            def each(body: Callable[[_Channels, _Line], None]) -> None:
                with emit.share_loop(part, self.parts, tiles) as tile:
                    emit.either_run(self.vector_runs, tile, lambda run: lines(run, tile, body))

            def lines(run: Run, tile: tirx.Expr, body: Callable[[_Channels, _Line], None]) -> None:
                first = emit.share(part, self.parts, tiles)[0] if self.parts > 1 else index(0)
                # Lines change fastest, so that the weights of a tile of channels are read again from a near cache.
                with emit.loop(self.lines) as line:
                    number = (tile - first) * index(self.lines) + line if self.blocks > 1 else index(0)
                    channels = _Channels(run, tile, number * index(self.widest * self.across))
                    down = self._up_to(line, self.schedule.deep, self.schedule.rows)
                    body(channels, _Line(image, group, top, down))

            # The first block has code of its own, which adds its products to zeros.
            for before, count in ((0, 1), (1, self.blocks - 1))[: min(self.blocks, 2)]:
                with emit.loop(count) as number:
                    block = number + index(before)
                    self._copy(arguments, memory.copied, chunk_, block)
                    each(partial(self._products, arguments, memory, block, before > 0))
            if self.blocks > 1:
                each(partial(self._store, arguments, memory))

    @staticmethod
    def _up_to(number: tirx.Expr, each: int, total: int) -> tirx.Expr:
        """The start of one of several ranges of `each`, of which the last one may overlap the one before."""
        start = number * index(each)
        return emit.bound(tirx.min(start, index(total - each))) if total % each else start

    def _memory_of_block(self) -> tirx.Buffer | None:
        """Memory for the copied inputs of a block."""
        if self.copied is not None:
            return self.copied.memory(self.inputs)
        return emit.scratch(self.inputs * self.pixels) if self.schedule.source == "pixels" else None

    def _copy(self, arguments: Arguments, copied: tirx.Buffer | None, chunk: _Line, block: tirx.Expr) -> None:
        """Copy what the outputs of a chunk read of a block of input channels."""
        if copied is None:
            return
        rows, columns, flat = self.conv.rows, self.conv.columns, arguments.flat(self.conv.data)
        first = self._first_channel(chunk, block)
        with emit.loop(self.inputs) as input_:
            if self.copied is not None:
                self.copied.copy_channel(flat, first + input_, (copied, input_), chunk.top)
                return
            with emit.loop(self.schedule.rows) as row, emit.loop(columns.places) as column:
                line = (first + input_) * index(rows.size) + (chunk.top + row) * index(rows.stride)
                to = input_ * index(self.pixels) + row * index(columns.places) + column
                build.buffer_store(copied, flat[line * index(columns.size) + column * index(columns.stride)], [to])

    def _first_channel(self, line: _Line, block: tirx.Expr) -> tirx.Expr:
        """The number of the first input channel of a block, through all images."""
        group = line.image * index(self.conv.groups) + line.group
        return group * index(self.conv.inputs) + block * index(self.inputs)

    def _products(
        self,
        arguments: Arguments,
        memory: _Memory,
        block: tirx.Expr,
        continued: bool,
        channels: _Channels,
        line: _Line,
    ) -> None:
        """Add the products of a block to the sums of a line if they are `continued`, and store them if none follow."""
        lanes, before = self.isa.lanes, 0
        for size in sorted({r.size for _, r in self.tiles}):
            starts = [(p.start + r.start, r.count) for p, r in self.tiles if r.size == size]
            with emit.loop(sum(count for _, count in starts)) as number:
                start = emit.bound(_start(starts, size, number))

                def at(pixel: tirx.Expr, column: int, start: tirx.Expr = start) -> tirx.Expr:
                    width = index(channels.run.size * lanes)
                    return channels.kept + (start + pixel) * width + index(column * lanes)

                def begin(pixel: tirx.Expr, column: int, at: Callable[..., tirx.Expr] = at) -> tirx.Expr:
                    return emit.vector(memory.sums, at(pixel, column), lanes)

                sums = self._sums(
                    arguments,
                    memory.copied,
                    (channels, block, line),
                    (size, start, number + index(before)),
                    begin if continued else None,
                )
                with emit.loop(size, "unroll") as pixel:
                    for column, buffer in enumerate(sums):
                        value = emit.vector(buffer, pixel * index(lanes), lanes)
                        emit.put(memory.sums, value, at(pixel, column), lanes)
            before += sum(count for _, count in starts)
        if self.blocks == 1:
            self._store(arguments, memory, channels, line)

    def _sums(
        self,
        arguments: Arguments,
        copied: tirx.Buffer | None,
        where: tuple[_Channels, tirx.Expr, _Line],
        pixels: tuple[int, tirx.Expr, tirx.Expr],
        begin: Callable[[tirx.Expr, int], tirx.Expr] | None,
    ) -> Sequence[tirx.Buffer]:
        """The sums of a tile: `where` are its channels, the block of inputs and the line.

        `pixels` are their number, the first one, and the number of the tile in the line. `begin` gives the sums that
        products are added to.
        """
        conv, lanes = self.conv, self.isa.lanes
        (channels, block, line), (size, start, number) = where, pixels
        weights = arguments.flat(self.kernel.function.params[conv.weight])
        outer = line.group * index(self.blocks) + block
        base = outer * index(self.packing.block) + channels.first(lanes) * index(self.packing.terms)
        width = channels.run.size * lanes

        def loaded(column: int, term: Term) -> tirx.Expr:
            tap = term.row * index(conv.columns.taps) + term.tap
            place = term.first * index(conv.taps) + tap * index(self.in_turn) + (term.input - term.first)
            return emit.vector(weights, base + place * index(width) + index(column * lanes), lanes)

        walk, factor = self._source(arguments, copied, block, line, start)

        def fetched(_terms: int, step: Step) -> None:
            if conv.taps == 1 and 4 * self.packing.size > self.isa.core.fetched_weights:
                terms, tiles = self.packing.terms, sum(r.count for _, r in self.tiles)
                shared = Shared(weights, base, width * terms, terms, tiles, number)
                step = fetching_next(step, shared, lambda term: term.input)
            walk(step)

        among = (lambda term: self.with_tap(int(term.tap))) if self.by_tap else None
        return emit.product_tile(
            size, channels.run.size, 1, self.isa, factor, loaded, fetched, among=among, begin=begin
        )

    def _source(
        self, arguments: Arguments, copied: tirx.Buffer | None, block: tirx.Expr, line: _Line, start: tirx.Expr
    ) -> tuple[Walk, Factor]:
        """The walk over the terms of the pixels of a line from `start`, and their inputs."""
        rows, columns, deep = self.conv.rows, self.conv.columns, self.schedule.deep
        top = line.row * index(rows.stride) - index(rows.before)
        left = start * index(columns.stride) - index(columns.before)
        down = range_inside(rows, top, deep) if self.skips_rows else None
        across = None
        if self.apart or self.leaves_out:
            across = range_inside(columns, left, 1 if self.apart else self.tallest)
        walk: Walk = partial(self._walk, (down, across))
        if copied is not None:
            return walk, self._copied_factor(copied, line, start)
        flat, first = arguments.flat(self.conv.data), self._first_channel(line, block)

        def place(term: Term) -> tirx.Expr:
            row = (first + term.input) * index(rows.size) + top + term.row * index(rows.dilation)
            return row * index(columns.size) + left + term.tap * index(columns.dilation)

        def ahead(step: Step) -> None:
            def fetching(term: Term, number: int) -> None:
                for distance in self._distances_ahead:
                    emit.prefetch(flat, place(term) + index(distance))
                step(term, number)

            walk(fetching)

        far = self.conv.taps == 1 and self.blocks == 1
        far = far and 4 * self.conv.inputs * rows.size * columns.size >= self.isa.core.fetched_bytes
        return ahead if far else walk, lambda pixel, term: flat[place(term) + pixel * index(columns.stride)]

    @property
    def _distances_ahead(self) -> list[int]:
        """The distances from a pixel that a tile of 1x1 reads to what is fetched: the next pixels.

        The rows of a map are so far apart that hardware takes none of the next pixels for the next of a stream, and
        another thread may have written them. With strides, they are those of the next row of outputs.
        """
        rows, columns = self.conv.rows, self.conv.columns
        if columns.stride == 1:
            return [min(n + LINE, 2 * self.tallest) - 1 for n in range(self.tallest, 2 * self.tallest, LINE)]
        return [rows.stride * columns.size + n for n in range(0, columns.stride * self.tallest, LINE)]

    def _copied_factor(self, copied: tirx.Buffer, line: _Line, start: tirx.Expr) -> Factor:
        """The copied inputs of pixels from `start` of a line, which may be in several rows."""
        conv, rows = self.conv, self.copied
        if rows is None:
            return lambda pixel, term: copied[term.input * index(self.pixels) + start + pixel]
        stride = index(conv.columns.stride)

        def first(term: Term) -> tirx.Expr:
            return rows.start(term.input, line.down, term)

        if self.schedule.deep == 1:
            return lambda pixel, term: copied[first(term) + (start + pixel) * stride]

        def apart(pixel: tirx.Expr) -> tirx.Expr:
            down, across = (f(pixel, divisor(conv.columns.places)) for f in (tirx.floordiv, tirx.floormod))
            return down * index(rows.pitch) + across * stride

        if self.in_one_tile:
            return lambda pixel, term: copied[first(term) + apart(pixel)]
        places = build.alloc_buffer((self.tallest,), "int64", scope="global")
        with emit.loop(self.tallest, "unroll") as pixel:
            build.buffer_store(places, apart(start + pixel), [pixel])
        return lambda pixel, term: copied[first(term) + places[pixel]]

    def _walk(
        self, inside: tuple[tuple[tirx.Expr, tirx.Expr] | None, tuple[tirx.Expr, tirx.Expr] | None], step: Step
    ) -> None:
        """Call `step` for all terms, of the rows and columns of taps that are `inside`."""
        rows, columns = self.conv.rows, self.conv.columns
        with self._inputs_in_turn() as first, loop_inside(rows, inside[0]) as row:

            def of_tap(tap: tirx.Expr) -> None:
                emit.in_turn(self.in_turn, lambda i, number: step(Term(first + i, row, tap, first), number))

            if not self.by_tap:
                with loop_inside(columns, inside[1]) as tap:
                    of_tap(tap)
                return
            for number in range(columns.taps):
                if self.with_tap(number):
                    of_tap(index(number))

    @contextmanager
    def _inputs_in_turn(self) -> Iterator[tirx.Expr]:
        """A loop over the input channels of a block, those in turn at a time: the first of each."""
        with emit.loop(self.inputs // self.in_turn) as number:
            yield number * index(self.in_turn)

    def _store(self, arguments: Arguments, memory: _Memory, channels: _Channels, line: _Line) -> None:
        """Store the sums of a line, turned to rows of pixels by channels."""
        conv, lanes = self.conv, self.isa.lanes
        wide, across = channels.run.size * lanes, self.across
        with emit.loop(across // lanes) as block, emit.loop(channels.run.size) as vector:
            held = [emit.registers(1, lanes) for _ in range(lanes)]
            for i, register in enumerate(held):
                pixel = block * index(lanes) + index(i)
                if i >= self.pixels % lanes > 0:  # there is none in the last block
                    pixel = tirx.min(pixel, index(self.pixels - 1))
                begin = channels.kept + pixel * index(wide) + vector * index(lanes)
                emit.put(register, emit.vector(memory.sums, begin, lanes), index(0), lanes)
            for i, register in enumerate(transposed(held, lanes)):
                to = (vector * index(lanes) + index(i)) * index(across) + block * index(lanes)
                emit.put(memory.turned, emit.vector(register, index(0), lanes), to, lanes)
        first = channels.first(lanes)
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
                self.pixels,
                lanes,
            )

    def _place(self, image: tirx.Expr, channel: tirx.Expr, row: tirx.Expr, column: tirx.Expr) -> Place:
        """A place in the output: a pixel of a line that starts with a row."""
        extents, (_, out, down, across) = self.kernel.extents, self.conv.loops
        places: list[tuple[tuple[int, ...], tirx.Expr]] = [((n,), value) for n, value in self.conv.image_loops(image)]
        places.append(((out,), channel))
        flat = self.schedule.deep > 1 or (down is not None and self.conv.rows.places != extents[down])
        if down is None:
            places.append(((across,), row * index(self.conv.columns.places) + column))
        elif flat:
            places.append(((down, across), row * index(self.conv.columns.places) + column))
        else:
            places += [((down,), row), ((across,), column)]
        return [(Axis(loops, tuple(extents[n] for n in loops)), value) for loops, value in places]


def _start(starts: Sequence[tuple[int, int]], size: int, number: tirx.Expr) -> tirx.Expr:
    """The start of the tile of a number among runs of tiles of one size, given as starts and counts."""
    before = 0
    chosen: tirx.Expr | None = None
    for start, count in starts:
        here = (number - index(before)) * index(size) + index(start)
        chosen = here if chosen is None else tirx.Select(number >= index(before), here, chosen)
        before += count
    assert chosen is not None
    return chosen

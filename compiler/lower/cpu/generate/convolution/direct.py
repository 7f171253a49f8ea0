"""Direct convolution in NCHW: vectors along output pixels, broadcast weights in [tile][term][channel] order.

The inputs are copied rows (see input_rows.py): the outputs of several rows form one line of vectors. Results between
rows are dropped when sums are stored from a buffer to the output, with the epilogue; rows of whole vectors need none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.candidates import Candidate
from heterocc.compiler.lower.cpu.generate.convolution.form import Convolution, find_planes
from heterocc.compiler.lower.cpu.generate.convolution.input_rows import (
    MOST_IN_ROW,
    Chunk,
    InputRows,
    is_one_chunk,
    unrolled_taps,
)
from heterocc.compiler.lower.cpu.generate.convolution.taps_inside import taps_inside
from heterocc.compiler.lower.cpu.generate.emit import Arguments, Step, Walk
from heterocc.compiler.lower.cpu.generate.epilogue import can_store, store_tile, store_vectors
from heterocc.compiler.lower.cpu.generate.fetch import Weight, fetching, written_forms
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, at, index
from heterocc.compiler.lower.cpu.generate.products.few_columns import few_sums, put_few
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.terms import FLOATS
from heterocc.compiler.lower.cpu.generate.tiles import (
    Run,
    pick_tile,
    runs,
    tile_cycles,
    vector_runs,
)
from heterocc.compiler.lower.cpu.sizes import Size, as_number, at_least, is_number, is_one, proved, typical

FEW_PLACES = 2, 4, 8
"""The places of a line, whose number is known only at run time, up to which vectors lie along channels: each of these
numbers has code. More are nearly as fast in vectors of places."""

SUMS = 16
"""The sums of few places that are computed at once, of several tiles: of more than one vector of weights, so that
multiply-adds wait neither for the numbers that are loaded nor for each other."""

POINT_TIME = 1.06
"""The time of 1x1 over the modelled one, because sums are stored through a line: of 64 to 256 channels at 56x56 on a
Zen 4, where products store them from registers."""

PHASES_TIME = 1.3
"""The time of strides above MOST_IN_ROW over the modelled one: each tap reads another plane, of which no line is near.
Of one input channel with strides of 64 to 160, 256 to 512 taps, on a Zen 4: 1.33 to 1.5 times that of a product."""


def propose_direct(kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
    """The kernel as a direct convolution."""
    conv = find_planes(kernel)
    if conv is not None and can_store(kernel):
        writer = partial(DirectWriter, kernel, conv)
        yield Candidate("direct", writer(isa).cycles, writer)


_Term = tuple[tirx.Expr, tirx.Expr, tirx.Expr]
"""An input channel, a row of taps, and a tap of it."""

PlaceOf = Callable[[tirx.Expr, tirx.Expr, tirx.Expr], Place]


@dataclass(frozen=True, slots=True)
class _Tile:
    """A tile of output channels of a chunk of rows, by its run and number; `start` is the first one of its thread.

    Sums go through a `line`, unless rows are whole vectors. Those of few places are `held`, if they have code.
    """

    chunk: Chunk
    run: Run
    number: tirx.Expr
    start: tirx.Expr
    line: tirx.Buffer | None
    held: tirx.Buffer | None

    @property
    def first(self) -> tirx.Expr:
        """The first channel."""
        return emit.start_of(self.run, self.number)


class DirectWriter(InputRows):
    """A generator of a convolution: for each chunk of output rows, all tiles of output channels."""

    def __init__(self, kernel: Kernel, conv: Convolution, isa: Isa) -> None:
        super().__init__(kernel, conv, isa)
        spared = replace(self.isa, registers=self.isa.registers - self.isa.core.spare)
        tall, wide = pick_tile(conv.outputs, self.vectors, spared)
        # Two threads get as many tiles each, if they share one chunk.
        multiple = 2 if is_one_chunk(conv, self.usual_rows) and typical(conv.work) >= emit.PARALLEL_WORK else 1
        self.channel_runs, self._wide = runs(conv.outputs, tall, multiple), wide
        taps = (conv.rows.taps, conv.columns.taps)
        self.packing = Panels(
            conv.weight,
            (conv.groups, conv.outputs, conv.inputs, *taps),
            (0, 2, 3, 4, 1),
            conv.groups,
            conv.inputs * conv.taps,
            conv.outputs,
            1,
            self.channel_runs,
        )
        self.packings = (self.packing,)

    @property
    def cycles(self) -> float:
        """Modelled time of the convolution, with what its tiles take more than one multiply-add after the other."""
        stride = self.conv.columns.stride
        lines = POINT_TIME if self.conv.taps == stride == 1 else PHASES_TIME if stride > MOST_IN_ROW else 1.0
        return super().cycles * lines * 2 * tile_cycles(self.conv.outputs, typical(self.vectors), self.isa)

    @property
    def vector_runs(self) -> tuple[Run, ...]:
        """The vectors of a chunk's line, or of a row, in tiles."""
        return vector_runs(self.vectors, self._wide)

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        tiles = sum(r.count for r in self.channel_runs)
        most = max(r.size for r in self.channel_runs) * self.vectors  # of any chunk

        def write_chunk(chunk: Chunk, part: emit.Part) -> None:
            size = most * self.isa.lanes + self.isa.lanes
            line = None if self._is_whole else emit.scratch(size, self.kind.sums)
            first = index(0) if is_one(part.parts) else emit.share(*part, tiles)[0]
            held = emit.scratch(SUMS * self.isa.lanes) if self._has_few else None
            with emit.share_loop(*part, tiles) as tile:
                emit.either_run(
                    self.channel_runs,
                    tile,
                    lambda run: self._tile(arguments, _Tile(chunk, run, tile, first, line, held)),
                )

        self.write_chunks(arguments, self.parts_of(tiles), write_chunk)

    @property
    def _has_few(self) -> bool:
        """Whether a line of a few places, whose number is known only at run time, has code of its own."""
        fits = all(run.size <= self.isa.lanes for run in self.channel_runs)
        return not is_number(self.vectors) and self.isa.masks and fits and self.kind is FLOATS

    def _tile(self, arguments: Arguments, tile: _Tile) -> None:
        """Compute some output channels of a chunk of rows, and store them: from registers, or through a line."""
        conv, chunk, first = self.conv, tile.chunk, tile.first

        def place(row: tirx.Expr, line: tirx.Expr, column: tirx.Expr) -> Place:
            places = chunk.group * index(conv.outputs) + first + row, chunk.top + line, self.piece_start + column
            return self.kernel.place([*conv.image_loops(chunk.image), *zip(conv.loops[1:], places, strict=True)])

        written = partial(self._compute, arguments, tile, place)
        if tile.held is not None and tile.line is not None:
            length = (self.rows - 1) * self.pitch + conv.columns.places
            few = partial(self._few, arguments, tile, tile.held, tile.line)
            for most in reversed(FEW_PLACES):
                written = partial(emit.either, index(length) <= index(most), partial(few, most), written)
        written()
        if tile.line is not None:
            self._store(arguments, tile.run, tile.line, place)

    def _few(self, arguments: Arguments, tile: _Tile, held: tirx.Buffer, line: tirx.Buffer, count: int) -> None:
        """Put the sums of `count` places, of each a vector along the channels of a tile, into a line.

        The first of several tiles, or of a thread's, computes the sums of all.
        """
        run, chunk, isa = tile.run, tile.chunk, self.isa
        several = min(as_number(run.count), SUMS // count)
        place = tirx.floormod(tile.number - index(run.first), index(several))
        with build.If(tirx.any(place == index(0), tile.number == tile.start)), build.Then():
            last = index(run.first + run.count - 1)
            firsts = (emit.start_of(run, tirx.min(tile.number - place + index(n), last)) for n in range(several))
            few_sums(
                run.size,
                count,
                self.conv.inputs * self.conv.taps,
                isa,
                lambda place, term: chunk.inputs[self.place(term[0], term[1], term[2], index(0)) + place],
                [self._weights(arguments, run, chunk.group, emit.bound(first)) for first in firsts],
                partial(self._walk_inside, chunk.top),
                held,
            )
        first = emit.bound(place * index(count * isa.narrowed(run.size).lanes))
        put_few(held, first, run.size, count, line, self.vectors * isa.lanes, isa.lanes)

    def _fetch(
        self, arguments: Arguments, rows: int, place: PlaceOf, line: tirx.Expr, start: tirx.Expr, count: int
    ) -> None:
        """Prefetch the outputs of a tile while its sums are computed: `count` vectors of a line from a column on.

        Columns that exceed the line are those of the next lines; what lies between rows in a buffer is disregarded.
        """
        conv = self.conv
        size = 4 * typical(conv.outputs) * typical(conv.rows.places) * typical(conv.columns.places)
        if size < self.isa.core.fetched_bytes or typical(conv.work) < emit.PARALLEL_WORK:
            return
        columns = Axis((conv.loops[-1],), (conv.columns.places,))
        for buffer, form in written_forms(self.kernel):
            if not is_one(columns.step(form)):
                continue
            with emit.loop(rows, "unroll") as row:
                first = at(form, place(row, line, index(0)))
                if first is not None:
                    for vector in range(count):
                        where = first + start + index(vector * self.isa.lanes)
                        emit.prefetch(arguments.flat(buffer), where, to_write=True)

    @property
    def _is_whole(self) -> bool:
        """Whether rows are whole vectors, several of them or with gaps between: they are stored from registers."""
        places, lanes = self.conv.columns.places, self.isa.lanes
        return is_number(places) and places % lanes == 0 and as_number(self.pitch) > lanes

    def _compute(
        self,
        arguments: Arguments,
        tile: _Tile,
        place: PlaceOf,
    ) -> None:
        """Put the sums of all rows of a chunk into one line; without one, store rows of whole vectors."""
        lanes, chunk, run, line = self.isa.lanes, tile.chunk, tile.run, tile.line
        weight = self._weights(arguments, run, chunk.group, tile.first)
        terms, tiles = self.conv.inputs * self.conv.taps, sum(r.count for r in self.channel_runs)
        rows: Size = self.rows if line is None else 1
        columns = vector_runs(self.conv.columns.places // lanes, self._wide) if line is None else self.vector_runs

        def broadcast(row: tirx.Expr, term: _Term) -> tirx.Expr:
            weights, begin = weight(term)
            return weights[begin + row]

        with emit.loop(rows) as down:
            for vectors in columns:
                with emit.loop(vectors.count) as block:
                    start = (index(vectors.start) + block * index(vectors.size)) * index(lanes)
                    begin = down * index(self.pitch) + start

                    def loaded(column: int, term: _Term, begin: tirx.Expr = begin) -> tirx.Expr:
                        there = self.place(*term, index(0)) + begin + index(column * lanes)
                        return emit.vector(chunk.inputs, there, lanes)

                    def at_place(row: tirx.Expr, column: int, lane: tirx.Expr, start: tirx.Expr = start) -> Place:
                        return place(row, down, start + index(column * lanes) + lane)

                    self._fetch(arguments, run.size, place, down, start, vectors.size)
                    fetch = self.next_inputs(arguments, chunk, emit.Part(tile.number, tiles), begin, vectors.size)
                    size, walk = (run.size, vectors.size), self._walk(run, weight, fetch)
                    sums = emit.product_tile(*size, terms, self.isa, broadcast, loaded, walk, kind=self.kind)
                    if line is None:
                        store_tile(self.kernel, arguments, sums, run.size, lanes, at_place, lambda _: lanes)
                        continue
                    with emit.loop(run.size, "unroll") as row:
                        for column, buffer in enumerate(sums):
                            to = row * index(self.vectors * lanes) + start + index(column * lanes)
                            emit.put(line, emit.vector(buffer, row * index(lanes), lanes), to, lanes)

    def _store(self, arguments: Arguments, run: Run, line_: tirx.Buffer, place: PlaceOf) -> None:
        """Store the rows of a line."""
        pitch, places = self.vectors * self.isa.lanes, self.conv.columns.places
        with emit.loop(run.size) as row, emit.loop(self.rows) as line:

            def total(column: tirx.Expr) -> tirx.Expr:
                return line_[row * index(pitch) + line * index(self.pitch) + column]

            store_vectors(self.kernel, arguments, total, lambda n: place(row, line, n), places, self.isa.lanes)

    def _weights(self, arguments: Arguments, run: Run, group: tirx.Expr, first: tirx.Expr) -> Weight:
        """The weights, and the place of the first one of a term for the channels of `run` from the first of a group."""
        conv, weights = self.conv, arguments.flat(self.kernel.function.params[self.conv.weight])
        base = group * index(self.packing.block) + first * index(self.packing.steps)

        def of_term(term: _Term) -> tuple[tirx.Buffer, tirx.Expr]:
            input_, tap_row, tap = term
            number = (input_ * index(conv.rows.taps) + tap_row) * index(conv.columns.taps) + tap
            return weights, base + number * index(run.size)

        return of_term

    def _walk_inside(self, top: tirx.Expr, _terms: Size, step: Step) -> None:
        """Call a step for the terms of few places in loops, but for taps that are in the padding for all of them."""
        rows, columns = self.conv.rows, self.conv.columns
        places, padded = (index(0), columns.places), proved(at_least(self.given.columns.before, 1))
        across = taps_inside(columns, *places) if padded else (index(0), index(columns.taps))
        down = taps_inside(rows, top, self.rows) if proved(at_least(rows.before, 1)) else (index(0), index(rows.taps))
        with emit.loop(self.conv.inputs) as input_, emit.serial(*down) as row, emit.serial(*across) as tap:
            step((input_, row, tap), 0)

    def _walk(
        self,
        run: Run,
        weight: Weight,
        fetch: Callable[[tirx.Expr], None],
    ) -> Walk:
        """Calls a step for all terms, and `fetch` for each input channel of several taps."""
        conv = self.conv

        def walk(_terms: Size, step: Step) -> None:
            if 4 * self.packing.size > self.isa.core.far_bytes and not is_number(self.vectors):
                step = fetching(step, run.size, weight)
            if conv.taps == 1:
                emit.in_turn(self.conv.inputs, lambda input_, number: step((input_, index(0), index(0)), number))
                return
            with emit.loop(self.conv.inputs) as input_:
                fetch(input_)
                if conv.columns.taps == 1:
                    emit.in_turn(
                        conv.rows.taps, lambda row, number: step((input_, row, index(0)), number), unroll=MOST_IN_ROW
                    )
                    return
                with emit.loop(conv.rows.taps) as row:
                    emit.in_turn(
                        conv.columns.taps,
                        lambda tap, number: step((input_, row, tap), number),
                        unroll=unrolled_taps(conv.columns),
                    )

        return walk

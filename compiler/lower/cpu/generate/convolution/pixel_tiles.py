"""Tiles of pixels times vectors of channels: sums of a row of outputs, turned in registers before they are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tvm import tirx

from heterocc.compiler.lower.choices import close
from heterocc.compiler.lower.cpu.blocks import divisor_up_to
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.form import Convolution
from heterocc.compiler.lower.cpu.generate.convolution.taps_inside import Part
from heterocc.compiler.lower.cpu.generate.emit import Arguments, Step
from heterocc.compiler.lower.cpu.generate.epilogue import store_vectors
from heterocc.compiler.lower.cpu.generate.fetch import FETCHED_NUMBERS, Shared, fetching_next
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, index
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.tiles import MOST_ROWS, Run, registers_of, runs, step_cycles
from heterocc.compiler.lower.cpu.generate.transposes import transposed

SPARE = 3
"""The number of 32 registers that a tile leaves free."""

STORE_CYCLES = 0.5
"""The time in cycles in which a sum is turned and stored."""

FAR_CYCLES = ((768 << 10, 4.0), (32 << 10, 2.0))
"""The time in cycles in which a vector of weights comes from a farther cache, if those of a tile exceed these bytes:
what a second-level and a first-level cache hold."""

Term = tuple[tirx.Expr, tirx.Expr, tirx.Expr, tirx.Expr]
"""An input channel, a row of taps, a tap of it, and the first input channel of the block that the first one is in."""

MOST_TOGETHER = 64
"""The limit on input channels of a block: what a tile reads of them at all taps is to stay in a first-level cache."""

FEWEST_TOGETHER = 16
"""The smallest number of them: smaller blocks would leave little between two loops."""

Walk = Callable[[Step], None]
Factor = Callable[[tirx.Expr, Term], tirx.Expr]
Source = Callable[[tirx.Expr], tuple[Walk, Factor]]
"""From the first pixel of a tile to the walk over its terms, and the number that a pixel has for one."""


def inputs_together(inputs: int) -> int:
    """The number of input channels of a block: all, if no number within the limits divides them."""
    block = divisor_up_to(inputs, MOST_TOGETHER)
    return block if block >= FEWEST_TOGETHER else inputs


FEWEST_LANES = 8
"""Vectors of fewer lanes are nearly filled by pixels."""

FEWEST_PIXELS = 2
"""The smallest number of pixels: a single one is a product with a vector."""


def suits_tiles(found: Convolution, isa: Isa) -> bool:
    """Whether channels fill a vector, and there are several pixels, to each of which a weight that is read serves."""
    pixels = found.rows.places * found.columns.places
    return isa.lanes >= FEWEST_LANES and found.outputs >= isa.lanes and pixels >= FEWEST_PIXELS


class PixelTiles:
    """A generator of a convolution of fixed sizes whose outputs in a group fill a vector, or more.

    A last vector that would exceed them starts earlier, and computes outputs of the one before again.

    `columns` are the parts of a row of outputs, `loop_cycles` what the loops over taps add to the time of a step.
    Of narrow maps, `deep` rows may be one row of pixels, all of which are in one tile. Sums go over the taps of an
    input channel before the next if `taps_inside`, else over a block of input channels for one tap after the other.
    """

    taps_inside = False

    def __init__(
        self,
        kernel: Kernel,
        found: Convolution,
        isa: Isa,
        columns: tuple[Part, ...],
        loop_cycles: float,
        deep: int = 1,
    ) -> None:
        self.kernel, self.found, self.isa = kernel, found, isa
        self.columns, self._loop_cycles, self.deep = columns, loop_cycles, deep
        self._vectors = -(-found.outputs // isa.lanes)
        tall, wide = self._choose()
        self.vector_runs = runs(self._vectors, wide)
        self.tiles = [(p, r) for p in self.columns for r in runs(p.end - p.start, tall)]
        self.row_cycles = self._row_cycles(tall, wide)
        self.block = 1 if self.taps_inside else inputs_together(found.inputs)
        taps = (found.rows.taps, found.columns.taps)
        self.packing = Panels(
            found.weight,
            (found.groups, found.outputs, found.inputs // self.block, self.block, *taps),
            (0, 2, 4, 5, 3, 1),
            found.groups,
            found.inputs * found.taps,
            found.outputs,
            isa.lanes,
            self.vector_runs,
        )

    @property
    def packings(self) -> tuple[Panels, ...]:
        """The layout of the weights."""
        return (self.packing,)

    def _choose(self) -> tuple[int, int]:
        """Pixels and vectors of a tile with the least modelled time."""
        longest = min(MOST_ROWS, self._pixels)
        sizes = [
            (tall, wide)
            for wide in range(1, self._vectors + 1)
            for tall in range(longest if self.deep > 1 else 1, longest + 1)
            if tall * wide + wide + self._held(tall) <= self.isa.registers
            and registers_of(tall, wide, self.isa) <= self.isa.registers
        ]
        costs = sorted((self._row_cycles(*size) * self._sharing(size[1]), -size[0], size) for size in sizes)
        return self.isa.choose("tile", close((cost, size) for cost, _, size in costs))

    def _sharing(self, wide: int) -> float:
        """The factor of the time for tasks that threads lack, with tiles of `wide` vectors."""
        return emit.sharing(self.found.work, self._tasks(-(-self._vectors // wide)))

    def _tasks(self, tiles: int) -> int:
        """The number of tasks that threads share, with so many tiles of channels."""
        raise NotImplementedError

    def _held(self, tall: int) -> int:
        """Registers for the inputs of `tall` pixels, and spare ones."""
        return 1 + (SPARE if self.isa.registers > 16 else 0)

    def _row_cycles(self, tall: int, wide: int) -> float:
        """Modelled time of a row of outputs for one input channel and one row of taps."""
        return sum(
            r.count * v.count * (p.last - p.first) * self._step_cycles(r.size, v.size)
            for p in self.columns
            for r in runs(p.end - p.start, tall)
            for v in runs(self._vectors, wide)
        )

    def _step_cycles(self, tall: int, wide: int) -> float:
        """Modelled time of one term in a tile; few pixels wait for weights that a first-level cache does not hold."""
        found = self.found
        weights = 4 * found.inputs * found.taps * wide * self.isa.lanes
        far = next((cycles for size, cycles in FAR_CYCLES if weights > size), 0.0)
        return max(step_cycles(tall, wide) + self._loop_cycles, far * wide)

    @property
    def _pixels(self) -> int:
        """The number of pixels in a row, or in the rows that are one."""
        return max(p.end for p in self.columns)

    @property
    def _widest(self) -> int:
        return max(r.size for r in self.vector_runs) * self.isa.lanes

    @property
    def _across(self) -> int:
        """The length of a row of turned sums."""
        return -(-self._pixels // self.isa.lanes) * self.isa.lanes

    def _buffers(self) -> tuple[tirx.Buffer, tirx.Buffer]:
        """Memory for the sums of a row, by pixels and by channels."""
        return emit.scratch(self._across * self._widest), emit.scratch(self._widest * self._across)

    def _row(
        self,
        arguments: Arguments,
        buffers: tuple[tirx.Buffer, tirx.Buffer],
        run: Run,
        tile: tirx.Expr,
        where: tuple[tirx.Expr, tirx.Expr, tirx.Expr],
        source: Source,
    ) -> None:
        """Compute a row of outputs for the channels of a tile of `run`; `source` reads the inputs of pixels."""
        sums, turned = buffers
        width = index(run.size * self.isa.lanes)
        self._sums_of_row(arguments, (sums, lambda pixel: pixel * width), run, tile, where[1], source)
        self._store_row(arguments, (sums, index(0)), turned, run, tile, where)

    def _sums_of_row(
        self,
        arguments: Arguments,
        sums: tuple[tirx.Buffer, Callable[[tirx.Expr], tirx.Expr]],
        run: Run,
        tile: tirx.Expr,
        group: tirx.Expr,
        source: Source,
        continued: bool = False,
    ) -> None:
        """Compute the sums of all pixels, to the places of a buffer that `sums` has for each.

        Products are added to the sums that are there if they are `continued`.
        """
        lanes = self.isa.lanes
        buffer_, place = sums
        first = emit.start_of(run, tile) * index(lanes)
        before = 0
        for size in sorted({r.size for _, r in self.tiles}):
            starts = [(p.start + r.start, r.count) for p, r in self.tiles if r.size == size]
            with emit.loop(sum(count for _, count in starts)) as number:
                start = emit.bound(_start(starts, size, number))

                def at(pixel: tirx.Expr, column: int, start: tirx.Expr = start) -> tirx.Expr:
                    return place(start + pixel) + index(column * lanes)

                tile_sums = self._sums(
                    arguments,
                    run,
                    (group, first),
                    source(start),
                    (size, at),
                    number + index(before),
                    buffer_ if continued else None,
                )
                with emit.loop(size, "unroll") as pixel:
                    for column, buffer in enumerate(tile_sums):
                        emit.put(buffer_, emit.vector(buffer, pixel * index(lanes), lanes), at(pixel, column), lanes)
            before += sum(count for _, count in starts)

    def _store_row(
        self,
        arguments: Arguments,
        sums: tuple[tirx.Buffer, tirx.Expr],
        turned: tirx.Buffer,
        run: Run,
        tile: tirx.Expr,
        where: tuple[tirx.Expr, tirx.Expr, tirx.Expr],
    ) -> None:
        """Store the sums of all pixels, from a place of a buffer, turned to rows of pixels by channels."""
        found, lanes = self.found, self.isa.lanes
        image, group, row = where
        wide, across = run.size * lanes, self._across
        first = emit.start_of(run, tile) * index(lanes)
        with emit.loop(across // lanes) as block, emit.loop(run.size) as vector:
            held = [emit.registers(1, lanes) for _ in range(lanes)]
            for i, register in enumerate(held):
                pixel = block * index(lanes) + index(i)
                if i >= self._pixels % lanes > 0:  # there is none in the last block
                    pixel = tirx.min(pixel, index(self._pixels - 1))
                begin = sums[1] + pixel * index(wide) + vector * index(lanes)
                emit.put(register, emit.vector(sums[0], begin, lanes), index(0), lanes)
            for i, register in enumerate(transposed(held, lanes)):
                to = (vector * index(lanes) + index(i)) * index(across) + block * index(lanes)
                emit.put(turned, emit.vector(register, index(0), lanes), to, lanes)
        with emit.loop(wide) as channel:
            output = first + channel
            if found.outputs % lanes:
                begin = first + tirx.floordiv(channel, index(lanes)) * index(lanes)
                last = tirx.min(begin, index(found.outputs - lanes))
                output = emit.bound(last + tirx.floormod(channel, index(lanes)))
            store_vectors(
                self.kernel,
                arguments,
                lambda column: turned[channel * index(across) + column],
                lambda column: self._place(image, group * index(found.outputs) + output, row, column),
                self._pixels,
                lanes,
            )

    def _place(self, image: tirx.Expr, channel: tirx.Expr, row: tirx.Expr, column: tirx.Expr) -> Place:
        """A place in the output: a pixel of a row, or of several from this one on."""
        extents, (_, out, down, across) = self.kernel.extents, self.found.loops
        found: list[tuple[tuple[int, ...], tirx.Expr]] = [((n,), value) for n, value in self.found.image_loops(image)]
        found.append(((out,), channel))
        if self.deep > 1 and down is not None:
            found.append(((down, across), row * index(self.found.columns.places) + column))
        else:
            found += [((n,), value) for n, value in ((down, row), (across, column)) if n is not None]
        return [(Axis(loops, tuple(extents[n] for n in loops)), value) for loops, value in found]

    def _sums(
        self,
        arguments: Arguments,
        run: Run,
        channel: tuple[tirx.Expr, tirx.Expr],
        source: tuple[Walk, Factor],
        pixels: tuple[int, Callable[[tirx.Expr, int], tirx.Expr]],
        number: tirx.Expr,
        kept: tirx.Buffer | None,
    ) -> Sequence[tirx.Buffer]:
        """The sums of some pixels of a row, for the channels of `run` from that in `channel`, of a group.

        `pixels` are their number and the places of their sums, which continue those in `kept` if it is given. `number`
        is that of the tile of pixels.
        """
        found, lanes = self.found, self.isa.lanes
        group, first = channel
        walk, factor = source
        size, place_of = pixels
        weights = arguments.flat(self.kernel.function.params[found.weight])
        base = group * index(self.packing.block) + first * index(self.packing.terms)

        def loaded(column: int, term: Term) -> tirx.Expr:
            input_, tap_row, tap, start = term
            number = tap_row * index(found.columns.taps) + tap
            place = start * index(found.taps) + number * index(self.block) + (input_ - start)
            return emit.vector(weights, base + place * index(run.size * lanes) + index(column * lanes), lanes)

        def fetched(_terms: int, step: Step) -> None:
            if found.taps == 1 and self.packing.size > FETCHED_NUMBERS:
                terms, tiles = self.packing.terms, sum(r.count for _, r in self.tiles)
                shared = Shared(weights, base, run.size * lanes * terms, terms, tiles, number)
                step = fetching_next(step, shared, lambda term: term[0])
            walk(step)

        def begin(pixel: tirx.Expr, column: int) -> tirx.Expr:
            return emit.vector(kept, place_of(pixel, column), lanes)

        among = None if len(self.tiles) > 1 or self.tiles[0][1].count > 1 else self._pixels_with
        before = None if kept is None else begin
        return emit.product_tile(size, run.size, 1, self.isa, factor, loaded, fetched, among=among, begin=before)

    @contextmanager
    def _blocks(self) -> Iterator[tirx.Expr]:
        """A loop over the blocks of input channels: the first channel of each."""
        with emit.loop(self.found.inputs // self.block) as number:
            yield number * index(self.block)

    def _block_of_inputs(self, step: Step, start: tirx.Expr, tap_row: tirx.Expr, tap: tirx.Expr) -> None:
        """The terms of a tap and the block of input channels from `start`."""
        emit.in_turn(self.block, lambda input_, number: step((start + input_, tap_row, tap, start), number))

    def _pixels_with(self, term: Term) -> Sequence[range]:
        """The pixels of a row, all of which are in one tile, that have a term."""
        return (range(self._pixels),)


def _start(starts: Sequence[tuple[int, int]], size: int, number: tirx.Expr) -> tirx.Expr:
    """The start of the tile of a number among runs of tiles of one size, given as starts and counts."""
    before = 0
    found: tirx.Expr | None = None
    for start, count in starts:
        here = (number - index(before)) * index(size) + index(start)
        found = here if found is None else tirx.Select(number >= index(before), here, found)
        before += count
    assert found is not None
    return found

"""Convolutions of maps of any size in a run with few pixels: vectors lie along a tile's channels.

Of few pixels the last vector would be mostly empty, and so would be vectors of rows with gaps between them. The inputs
are copied without gaps: for each tap of a row one copy, in which the pixels of all rows follow each other. A step of a
tile multiplies some of them, one by one, by the weights of a term, which are read as they are packed for other sizes:
the numbers of a term follow each other for all channels of a tile. Rows and columns of taps that are in the padding
for all pixels are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.form import Convolution, Window
from heterocc.compiler.lower.cpu.generate.convolution.padded import every, takes_vectors
from heterocc.compiler.lower.cpu.generate.emit import Arguments, Step
from heterocc.compiler.lower.cpu.generate.fetch import fetching
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.maps.transposes import transposed
from heterocc.compiler.lower.cpu.generate.masked import can_mask, held_mask, kept_by, masked_vector, store_row
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, index
from heterocc.compiler.lower.cpu.generate.products.few_columns import weight_vector
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.tiles import Run
from heterocc.compiler.lower.cpu.sizes import Dim, is_number, typical

PIXELS = 64
"""The most pixels of a map that is computed so: four vectors of 16, of which the last is empty in the mean by half."""

LARGE = 8 * PIXELS
"""Typical pixels from which on there is no such code if it would take a few microseconds at most. It is as much code as
that for more pixels."""

EMPTY = 10
"""Without a stride, more than one in so many pixels' lanes is empty: full vectors of pixels take 0.94 of the time."""

TILES = (12, 8, 4, 1)
"""The pixels of tiles: as many of 12 as leave at most two places empty, and one at most of each of the others."""

USUAL_VECTORS = 2
"""The vectors of channels of a tile, if few of their channels would be computed twice."""

LINE = PIXELS + TILES[0]
"""The pixels for which sums have memory: the last tile may have some too many."""

UNROLLED = 4
"""The pixels of a tile up to which products of several input channels follow each other: fewer sums than the latency of
a multiply-add has steps wait for it, and are kept several times."""

MOST_WRITTEN = 9
"""The limit on taps that are written out for such a tile, so that weights are read one after the other."""

MOST_ACROSS = 16
"""The limit on taps of a row, each of which has a copy."""

CHANNELS_A_PART = 128
"""The output channels for which the inputs are copied again by another thread."""


PANEL = 8
"""The channels of panels that fill vectors."""


def filling(outputs: int, isa: Isa) -> Isa:
    """The registers with tiles whose panels fill vectors if `outputs` channels allow it: the code for more pixels then
    takes them, too, and is as fast.
    """
    fills = isa.tall is None and isa.has_masks and outputs % PANEL == 0 and isa.lanes % PANEL == 0
    return replace(isa, tall=PANEL) if fills else isa


@dataclass(frozen=True, slots=True)
class _Term:
    """A term of a sum: its number among the weights, and the place of the first pixel's input in the copy."""

    number: tirx.Expr
    place: tirx.Expr


Walk = Callable[[int, Step], None]


class FewPixels:
    """A generator of the code for few pixels, with the weights of a direct convolution in `packing`."""

    def __init__(self, kernel: Kernel, conv: Convolution, isa: Isa, packing: Panels) -> None:
        self.kernel, self.conv, self.isa, self.packing = kernel, conv, isa, packing
        rows, columns = conv.rows, conv.columns
        self.pixels = rows.places * columns.places
        self.lines = rows.places + rows.reach // rows.stride
        self.plane = self.lines * columns.places
        self.channel = len(rows.phases) * columns.taps * self.plane + isa.lanes

    @property
    def _copied(self) -> int:
        """The length of the copies, and of what the last tile reads beyond them."""
        lanes = self.isa.lanes
        return (self.conv.inputs * self.channel // lanes + 2) * lanes

    @staticmethod
    def fits(kernel: Kernel, conv: Convolution, isa: Isa, runs: tuple[Run, ...]) -> bool:
        """Whether a kernel has such code: one of any size, for an instruction set with masks.

        The first layer of a network has maps of few pixels only if its input is smaller than those that it is made for.
        """
        little = conv.groups * conv.outputs * conv.inputs * conv.taps * PIXELS < emit.PARALLEL_WORK
        if little and typical(conv.rows.places * conv.columns.places) >= LARGE:
            return False
        sized = not (is_number(conv.rows.places) and is_number(conv.columns.places))
        copied = takes_vectors(conv.columns.stride, isa.lanes) and conv.columns.taps <= MOST_ACROSS
        tiles = all(run.size <= isa.lanes for run in runs)
        return sized and isa.has_masks and copied and tiles and can_mask(kernel, _line(kernel, conv))

    def pays(self, vectors: int) -> tirx.Expr:
        """Whether a map of the run has few pixels, which without a stride leave some of the `vectors` empty.

        `vectors` are those of the code for more pixels.
        """
        few = index(self.pixels) <= index(PIXELS)
        if self.conv.columns.stride > 1:
            return few
        return tirx.all(few, index(vectors * self.isa.lanes - self.pixels) * index(EMPTY) > index(self.pixels))

    def write(self, arguments: Arguments) -> None:
        """Write the loop over images, groups and parts of the channels."""
        conv, lanes = self.conv, self.isa.lanes
        runs = self._together()
        tiles = sum(run.count for run, _ in runs)
        shared = typical(conv.work) >= emit.PARALLEL_WORK
        parts = min(tiles, max(1, conv.outputs // CHANNELS_A_PART)) if shared else 1
        with emit.shared_loop(conv.batch * conv.groups * parts, conv.work) as task:
            image, group, part = emit.unpacked(task, (conv.batch, conv.groups, parts))
            copied = emit.scratch(self._copied)
            sums, turned = (emit.scratch(USUAL_VECTORS * LINE * lanes) for _ in range(2))
            inside = [_inside(window) for window in (conv.rows, conv.columns)]
            self._copy(arguments, copied, image * index(conv.groups) + group, inside[1])
            with emit.share_loop(part, parts, tiles) as tile:

                def channels(number: int) -> None:
                    run, panels = runs[number]
                    firsts = [
                        _first(panels, (tile - index(run.first)) * index(run.size) + index(n)) for n in range(run.size)
                    ]
                    self._products(arguments, (copied, sums), panels.size, (group, firsts), inside)
                    channels = [group * index(conv.outputs) + first for first in firsts]
                    self._store(arguments, (sums, turned), panels.size, (image, channels))

                emit.either_run([run for run, _ in runs], tile, lambda run: channels([r for r, _ in runs].index(run)))

    def _together(self) -> list[tuple[Run, Run]]:
        """Tiles of as many panels as fill a vector, each with the run of these."""
        tiles, first = [], 0
        for run in self.packing.runs:
            several = self.isa.lanes // self.isa.narrowed(run.size).lanes
            wide = several * USUAL_VECTORS
            several = wide if 8 * (-run.count % wide) <= run.count else several
            tiles.append((Run(first, 0, -(-run.count // several), several), run))
            first += tiles[-1][0].count
        return tiles

    def _copy(
        self,
        arguments: Arguments,
        copied: tirx.Buffer,
        group: tirx.Expr,
        taps: tuple[tirx.Expr, tirx.Expr],
    ) -> None:
        """Copy the inputs of a group's channels: for each tap of a row inside the pixels that it reads, row by row.

        The last vector of a row writes zeros beyond its end, where other rows follow that are written later: last
        vectors come before the others.
        """
        conv, lanes, flat = self.conv, self.isa.lanes, arguments.flat(self.conv.data)
        rows, columns = conv.rows, conv.columns
        with emit.loop(self._copied // lanes) as number:
            emit.put(copied, emit.zeros(lanes), number * index(lanes), lanes)
        vectors = -(-columns.places // lanes)
        for number, phase in enumerate(rows.phases):
            first = index(phase - rows.before)
            inside = _lines_inside(rows, phase, self.lines)
            with _loop(columns, taps) as tap, emit.loop(vectors) as vector:
                start = emit.bound((index(vectors - 1) - vector) * index(lanes))
                shift = tap * index(columns.dilation) - index(columns.before)
                column = emit.bound(start * index(columns.stride) + shift)
                end = emit.bound(tirx.min(index(columns.size), shift + index(columns.places * columns.stride)))
                plane = emit.bound((index(number * columns.taps) + tap) * index(self.plane) + start)
                count = Dim(typical(columns.size), end)
                kept = [held_mask(column + index(n * lanes), lanes, count) for n in range(columns.stride)]
                with emit.loop(conv.inputs) as input_:
                    channel = emit.bound((group * index(conv.inputs) + input_) * index(rows.size) + first)
                    to = emit.bound(input_ * index(self.channel) + plane)
                    with emit.serial(*inside) as line:
                        source = (channel + line * index(rows.stride)) * index(columns.size) + column
                        parts = [
                            build.bind(masked_vector(flat, source + index(n * lanes), lanes, kept_by(held, lanes)))
                            for n, held in enumerate(kept)
                        ]
                        value = every(parts, columns.stride, 0, lanes)
                        emit.put(copied, value, to + line * index(columns.places), lanes)

    def _products(
        self,
        arguments: Arguments,
        buffers: tuple[tirx.Buffer, tirx.Buffer],
        rows: int,
        channels: tuple[tirx.Expr, list[tirx.Expr]],
        inside: list[tuple[tirx.Expr, tirx.Expr]],
    ) -> None:
        """The sums of all pixels for panels of `rows` channels, all together in a vector, to memory.

        `channels` are the group and the first channel of each panel.
        """
        (copied, sums), (group, firsts), isa = buffers, channels, self.isa
        weights = arguments.flat(self.kernel.function.params[self.conv.weight])
        outer = group * index(self.packing.block)
        each = isa.lanes // isa.narrowed(rows).lanes
        wide = len(firsts) // each
        bases = [emit.bound(outer + first * index(self.packing.terms)) for first in firsts]

        def weight_place(base: tirx.Expr, term: _Term) -> tirx.Expr:
            return base + term.number * index(rows)

        start: tirx.Expr = index(0)
        for size, count in _counts(self.pixels):
            with emit.loop(count) as number:
                begin = emit.bound(start + number * index(size))

                def factor(pixel: tirx.Expr, term: _Term, begin: tirx.Expr = begin) -> tirx.Expr:
                    return copied[term.place + begin + pixel]

                def loaded(column: int, term: _Term) -> tirx.Expr:
                    mine = bases[column * each : (column + 1) * each]
                    parts = [weight_vector(weights, weight_place(base, term), rows, isa) for base in mine]
                    return parts[0] if len(parts) == 1 else tirx.Shuffle(parts, list(range(isa.lanes)))

                def walk(_terms: int, step: Step, size: int = size) -> None:
                    if 4 * self.packing.size > isa.core.far_bytes:
                        for base in bases:
                            step = fetching(step, weights, rows, partial(weight_place, base))
                    self._walk(inside, step, in_turn=size <= UNROLLED)

                terms = self.conv.inputs * self.conv.taps
                totals = emit.product_tile(size, wide, terms, isa, factor, loaded, walk)
                with emit.loop(size, "unroll") as pixel:
                    for column, buffer in enumerate(totals):
                        value = emit.vector(buffer, pixel * index(isa.lanes), isa.lanes)
                        to = index(column * LINE) + begin + pixel
                        emit.put(sums, value, to * index(isa.lanes), isa.lanes)
            start = emit.bound(start + index(count * size))

    def _walk(self, inside: list[tuple[tirx.Expr, tirx.Expr]], step: Step, *, in_turn: bool) -> None:
        """Call `step` for all terms of the taps `inside`: tap by tap for all inputs if they follow each other."""
        conv = self.conv
        rows, columns = conv.rows, conv.columns

        def term(input_: tirx.Expr, row: tirx.Expr, tap: tirx.Expr) -> _Term:
            down = row * index(rows.dilation)
            phase = tirx.floormod(down, index(rows.stride))
            number = rows.phase_number(phase)
            plane = input_ * index(self.channel) + (number * index(columns.taps) + tap) * index(self.plane)
            place = plane + tirx.floordiv(down, index(rows.stride)) * index(columns.places)
            weight = (input_ * index(rows.taps) + row) * index(columns.taps) + tap
            return _Term(weight, place)

        if not in_turn:
            with emit.loop(conv.inputs) as input_, _loop(rows, inside[0]) as row, _loop(columns, inside[1]) as tap:
                one = term(input_, row, tap)
                step(_Term(one.number, emit.bound(one.place)), 0)
            return

        def some() -> None:
            with _loop(rows, inside[0]) as row, _loop(columns, inside[1]) as tap:
                emit.in_turn(conv.inputs, lambda input_, number: step(term(input_, row, tap), number))

        def every_tap() -> None:
            with emit.loop(conv.inputs) as input_:
                for number in range(conv.taps):
                    step(term(input_, index(number // columns.taps), index(number % columns.taps)), number)

        if 1 < conv.taps <= MOST_WRITTEN:
            ends = [(first, end, window) for (first, end), window in zip(inside, (rows, columns), strict=True)]
            whole = [all_ for first, end, w in ends for all_ in (first <= index(0), end >= index(w.taps))]
            emit.either(tirx.all(*whole), every_tap, some)
        else:
            some()

    def _store(
        self,
        arguments: Arguments,
        buffers: tuple[tirx.Buffer, tirx.Buffer],
        rows: int,
        where: tuple[tirx.Expr, list[tirx.Expr]],
    ) -> None:
        """Store the sums of panels of `rows` channels, turned to lines of pixels: `where` are image and channels."""
        (sums, turned), (image, channels), lanes = buffers, where, self.isa.lanes
        each = lanes // self.isa.narrowed(rows).lanes
        with emit.loop(len(channels) // each) as column, emit.loop(-(-self.pixels // lanes)) as block:
            held = [emit.registers(1, lanes) for _ in range(lanes)]
            for number, register in enumerate(held):
                begin = (column * index(LINE) + block * index(lanes) + index(number)) * index(lanes)
                emit.put(register, emit.vector(sums, begin, lanes), index(0), lanes)
            for number, register in enumerate(transposed(held, lanes)):
                to = (column * index(lanes) + index(number)) * index(LINE) + block * index(lanes)
                emit.put(turned, emit.vector(register, index(0), lanes), to, lanes)
        line, loops = _line(self.kernel, self.conv), self.conv.loops
        out = self.kernel.axis(loops[1:2])
        images = self.kernel.place(self.conv.image_loops(image))
        for number, channel in enumerate(channels):
            with emit.loop(rows) as row:

                def place(pixel: tirx.Expr, channel: tirx.Expr = channel, row: tirx.Expr = row) -> Place:
                    return [*images, (out, channel + row), (line, pixel)]

                begin = emit.bound((row + index(number * lanes // each)) * index(LINE))
                store_row(self.kernel, arguments, (turned, begin), line, place, (self.pixels, lanes))


def _first(panels: Run, number: tirx.Expr) -> tirx.Expr:
    """The first channel of a panel; those after the last one are the last one again."""
    return emit.bound(index(panels.start) + tirx.min(number, index(panels.count - 1)) * index(panels.size))


def _line(kernel: Kernel, conv: Convolution) -> Axis:
    """The axis of the pixels of an image, row by row."""
    return kernel.axis([n for n in conv.loops[2:] if n is not None])


def _counts(pixels: int) -> list[tuple[int, int]]:
    """The numbers of tiles of each size that cover so many pixels."""
    wide, middle, few, one = TILES
    many = (pixels + few // 2) // wide

    def either(condition: tirx.Expr) -> int:
        return Dim(0, emit.bound(tirx.Select(condition, index(1), index(0))))

    rest = emit.bound(index(pixels) - index(many * wide))
    eight = either(rest > index(few + 1))
    left = emit.bound(rest - index(eight * middle))
    ones = either(tirx.Or(left == index(one), left == index(few + one)))
    return [(wide, many), (middle, eight), (few, either(left > index(one))), (one, ones)]


def _inside(window: Window) -> tuple[tirx.Expr, tirx.Expr]:
    """The first tap that some place of the window has inside the input, and the one after the last."""
    last = index((window.places - 1) * window.stride - window.before)
    apart = index(window.dilation)
    first = tirx.max(index(0), -tirx.floordiv(last, apart))
    end = tirx.floordiv(index(window.size - 1 + window.before), apart) + index(1)
    return emit.bound(first), emit.bound(tirx.min(index(window.taps), end))


def _lines_inside(window: Window, phase: int, lines: int) -> tuple[tirx.Expr, tirx.Expr]:
    """The rows of a phase's copy, of so many, that are not padding."""
    first = phase - window.before
    begin = max(0, -(first // window.stride))
    end = tirx.floordiv(index(window.size - 1 - first), index(window.stride)) + index(1)
    start = emit.bound(tirx.min(index(begin), index(lines)))
    return start, emit.bound(tirx.max(start, tirx.min(end, index(lines))))


def _loop(window: Window, inside: tuple[tirx.Expr, tirx.Expr]) -> AbstractContextManager[tirx.Expr]:
    return emit.loop(1) if window.taps == 1 else build.serial(*inside)

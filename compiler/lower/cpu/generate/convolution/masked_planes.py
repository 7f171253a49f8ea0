"""Generation of depthwise convolutions in masked vectors, which read inputs where they are: any sizes, large strides.

A vector lies along a row of outputs, as far as the row goes. Masks keep those at the border inside the map: what they
leave out are the zeros of the padding. So two forms of code serve all sizes, and nothing is copied. Of many taps,
each of which would have masks of its own at the border, the padded plane is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.candidates import Candidate
from heterocc.compiler.lower.cpu.generate.convolution.form import Convolution, find_convolution
from heterocc.compiler.lower.cpu.generate.convolution.padded import every
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.masked import can_mask, held_mask, kept_by, mask, masked_vector, store_masked
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, index
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.tiles import Run, runs, vector_runs
from heterocc.compiler.lower.cpu.sizes import is_number, typical

ROWS = 4
"""Rows of outputs of a tile: sums that do not wait for each other, and few for maps of few rows."""

WIDE = 4
"""Vectors of a tile of one row, which has few sums that do not wait for each other."""

WIDE_OF_MANY = 2
"""Vectors of a tile of several rows with taps in a loop, which has no other products in the time that a sum takes."""

MOST_HELD = 9
"""The limit on taps whose weights are held in registers, beside sums and inputs."""

FEW_TAPS = 4
"""The taps of a signal up to which its row is read where it is."""

MOST_WRITTEN = 100
"""The limit on taps that are written out; of more, most rows are in a loop."""

MOST_ACROSS = 49
"""The limit on taps of a row."""

FEWEST_LANES = 8
"""Vectors of x86 with so many lanes can be read and stored in part, with AVX2 and AVX-512."""

MOST_NARROW = 25
"""The limit on taps of code of its own for rows of at most a vector."""

CHAINS = 4
"""The sums of a tile of one vector, which are added up at the end: products of one sum would wait for each other."""

MOST_STRIDE = 8
"""The limit on strides along a row: a vector is made of so many."""


def propose_masked_planes(kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
    """The kernel as a depthwise convolution of maps of any size, of few maps, or by many taps or a large stride."""
    conv = find_convolution(kernel)
    if conv is None or conv.inputs != 1 or conv.groups == 1 or isa.lanes < FEWEST_LANES:
        return
    columns, sized = conv.columns, not (is_number(conv.rows.places) and is_number(conv.columns.places))
    few = typical(conv.work) >= emit.PARALLEL_WORK and typical(conv.batch) * conv.groups < emit.TASKS
    fits = columns.taps <= MOST_ACROSS and columns.stride <= MOST_STRIDE and can_mask(kernel, _along(kernel, conv))
    many = conv.taps > MOST_WRITTEN
    if many and not conv.rows.stride == conv.rows.dilation == 1:
        return
    if fits and (sized or few or many or columns.stride > 2):
        writer = partial(_Writer, kernel, conv)
        yield Candidate("masked planes", writer(isa).cycles, writer)


def _along(kernel: Kernel, conv: Convolution) -> Axis:
    """The axis of a row of outputs."""
    return kernel.axis(conv.loops[-1:])


Masks = dict[tuple[tirx.Expr, int], tirx.Buffer]
"""The lanes inside the map, by a vector's first output and the distance of its inputs from there."""


class _Writer:
    """A generator of a depthwise convolution: planes, vectors along their rows, tiles of rows."""

    packings: tuple[Panels, ...] = ()

    def __init__(self, kernel: Kernel, conv: Convolution, isa: Isa) -> None:
        self.kernel, self.conv, self.lanes = kernel, conv, isa.lanes
        self.copied: tirx.Buffer | None = None
        self.pitch = self.lines = 0

    @property
    def cycles(self) -> float:
        """Modelled time of the convolution: a load for each vector and tap, nothing copied."""
        vectors = typical(self.conv.rows.places) * -(-typical(self.conv.columns.places) // self.lanes)
        return typical(self.conv.batch) * self.conv.groups * self.conv.outputs * self.conv.taps * vectors

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        conv = self.conv
        planes, places = conv.batch * conv.groups, conv.columns.places
        self.parts = emit.shares(conv.work, planes, conv.rows.places // ROWS) if typical(planes) < emit.TASKS else 1
        shared = typical(conv.work) >= emit.PARALLEL_WORK
        tasks = emit.tasks_of(conv.work, planes * self.parts)
        with emit.loop(tasks, "parallel" if shared else "serial") as task, self._memory_for_copies() as copied:
            self.copied = copied
            each = partial(self._planes, arguments, emit.Part(task, tasks), planes)
            if copied is None and not is_number(places) and conv.taps <= MOST_NARROW:
                narrow = index(places) <= index(self.lanes)
                emit.either(narrow, lambda: each(narrow=True), lambda: each(narrow=False))
            else:
                each(narrow=False)

    def _planes(self, arguments: Arguments, task: emit.Part, planes: int, *, narrow: bool) -> None:
        """The parts of planes of a task, whose rows of outputs are one vector each if they are `narrow`."""
        conv = self.conv
        with emit.share_loop(*task, planes * self.parts) as number:
            plane, part = emit.unpacked(number, (planes, self.parts))
            image, group = emit.unpacked(plane, (conv.batch, conv.groups))
            begin = emit.bound(plane * index(conv.rows.size * conv.columns.size))
            if self.copied is not None:
                self._copy(arguments, self.copied, begin)
            with emit.loop(conv.outputs) as output:
                channel = emit.bound(group * index(conv.outputs) + output)
                self.factors = self._factors(arguments, channel)
                for run in runs(conv.rows.places, ROWS, short=False):
                    self._down(partial(_Tile, self, arguments, (image, channel), begin), run, part, narrow=narrow)

    @contextmanager
    def _memory_for_copies(self) -> Iterator[tirx.Buffer | None]:
        """Memory for a padded plane, as far as vectors read it; None if rows are read where they are."""
        rows, columns = self.conv.rows, self.conv.columns
        signal = is_number(rows.places) and rows.places == rows.taps == 1
        if self.conv.taps <= MOST_WRITTEN and not (signal and columns.taps > FEW_TAPS):
            yield None
            return
        whole = -(-columns.places // self.lanes) * self.lanes * columns.stride + columns.reach
        self.pitch = (whole // self.lanes + 1) * self.lanes
        self.lines = (rows.places - 1) * rows.stride + rows.reach + 1
        yield emit.scratch(self.lines * self.pitch)

    def _copy(self, arguments: Arguments, copied: tirx.Buffer, plane: tirx.Expr) -> None:
        """Copy a plane with its padding."""
        flat, rows, columns, lanes = arguments.flat(self.conv.data), self.conv.rows, self.conv.columns, self.lanes
        with emit.loop(self.lines) as line:
            row = emit.bound(line - index(rows.before))
            source = emit.bound(plane + row * index(columns.size))

            def put(value: Callable[[tirx.Expr], tirx.Expr], line: tirx.Expr = line) -> None:
                with emit.loop(self.pitch // lanes) as vector:
                    to = line * index(self.pitch) + vector * index(lanes)
                    emit.put(copied, value(emit.bound(vector * index(lanes) - index(columns.before))), to, lanes)

            def read(column: tirx.Expr, source: tirx.Expr = source) -> tirx.Expr:
                return masked_vector(flat, source + column, lanes, mask(column, lanes, columns.size))

            inside = tirx.all(row >= index(0), row < index(rows.size))
            emit.either(inside, partial(put, read), partial(put, lambda _: emit.zeros(lanes)))

    def _factors(self, arguments: Arguments, channel: tirx.Expr) -> Callable[[tirx.Expr], tirx.Expr]:
        """The vector of the weight of a tap: few taps have a register each, which the tiles of a plane share."""
        weights, first = (
            arguments.flat(self.kernel.function.params[self.conv.weight]),
            channel * index(self.conv.taps),
        )
        if self.conv.taps > MOST_HELD:
            return lambda tap: emit.broadcast(weights[first + tap], self.lanes)
        held = emit.registers(self.conv.taps, self.lanes)
        for tap in range(self.conv.taps):
            emit.put(held, emit.broadcast(weights[first + index(tap)], self.lanes), index(tap * self.lanes), self.lanes)
        return lambda tap: emit.vector(held, tap * index(self.lanes), self.lanes)

    def _down(self, tile: Callable[[tirx.Expr, int, int], _Tile], run: Run, part: tirx.Expr, *, narrow: bool) -> None:
        """A part of the tiles of one size, row by row; the masks of `narrow` rows are the same for all."""
        rows, lanes = self.conv.rows, self.lanes
        with emit.share_loop(part, self.parts, run.count) as number:
            first = index(run.start) + number * index(run.size)
            top = emit.bound(first if run.last is None else tirx.min(first, index(run.last)))
            if narrow:
                tile(top, run.size, 1).write(index(0), inside=False)
                return
            above = top * index(rows.stride) - index(rows.before)
            last = above + index((run.size - 1) * rows.stride + rows.reach)
            inside = emit.bound(tirx.Select(tirx.all(above >= index(0), last < index(rows.size)), index(1), index(0)))
            vectors = -(-self.conv.columns.places // lanes)
            wide = WIDE if run.size == 1 else WIDE_OF_MANY if self.conv.taps > MOST_WRITTEN else 1
            for columns in vector_runs(vectors, wide):
                with emit.loop(columns.count) as block:
                    place = index(columns.start) + block * index(columns.size)
                    self._at(partial(tile, top, run.size, columns.size), emit.bound(place * index(lanes)), inside)

    def _at(self, tile: Callable[[], _Tile], start: tirx.Expr, inside: tirx.Expr) -> None:
        """A tile, as the code for its place; `inside` is positive if its rows are inside the map."""
        exist = start + index(tile().wide * self.lanes) <= index(self.conv.columns.places)
        whole = [exist] if self.copied is not None else [inside > index(0), *self._within(start, tile().wide), exist]
        emit.either(
            tirx.all(*whole),
            lambda: tile().write(start, inside=True),
            lambda: tile().write(start, inside=False),
        )

    def _within(self, start: tirx.Expr, wide: int) -> list[tirx.Expr]:
        """Whether all that vectors of a row read is in the row of the map."""
        columns, count = self.conv.columns, wide * self.lanes
        first = start * index(columns.stride) - index(columns.before)
        last = first + index(columns.reach + count * columns.stride - 1)
        return [first >= index(0), last < index(columns.size)]


class _Tile:
    """A tile of `tall` rows of outputs from row `top` by `wide` vectors, of the channel given."""

    def __init__(
        self,
        writer: _Writer,
        arguments: Arguments,
        place: tuple[tirx.Expr, tirx.Expr],
        plane: tirx.Expr,
        top: tirx.Expr,
        tall: int,
        wide: int,
    ) -> None:
        self.kernel, self.conv, self.lanes = writer.kernel, writer.conv, writer.lanes
        self.arguments, self.place, self.plane, self.factors = arguments, place, plane, writer.factors
        self.copied, self.pitch = writer.copied, writer.pitch
        self.top, self.tall, self.wide = top, tall, wide

    def write(self, start: tirx.Expr, *, inside: bool) -> None:
        """Write the tile from a column; all that it reads is in the map and all outputs exist if it is `inside`."""
        conv, lanes, tall, wide = self.conv, self.lanes, self.tall, self.wide
        rows, taps = conv.rows, conv.columns.taps
        starts = [emit.bound(start + index(vector * lanes)) for vector in range(wide)]
        chains = CHAINS if tall * wide == 1 and conv.taps > CHAINS else 1
        sums = [emit.registers(tall * chains, lanes) for _ in starts]
        for total in sums:
            with emit.loop(tall * chains, "unroll") as row:
                emit.put(total, emit.zeros(lanes), row * index(lanes), lanes)
        whole = inside or self.copied is not None
        masks = None if whole else {place: held for begin in starts for place, held in self._mask(begin).items()}

        def add(ahead: tirx.Expr, meets: Sequence[tuple[int, tirx.Expr]]) -> None:
            """Add the products of a row of inputs for the rows of outputs that it meets, each with a row of taps."""
            number = self.top * index(rows.stride) - index(rows.before) + ahead

            def products() -> None:
                inputs = [self._line(number, begin, masks) for begin in starts]
                for tap in range(taps):
                    for row, tap_row in meets:
                        factor = self.factors(tap_row * index(taps) + index(tap))
                        for total, values in zip(sums, inputs, strict=True):
                            place = index((row if chains == 1 else tap % chains) * lanes)
                            emit.put(total, emit.vector(total, place, lanes) + factor * values[tap], place, lanes)

            if whole:
                products()
            else:
                with build.If(tirx.all(number >= index(0), number < index(rows.size))), build.Then():
                    products()

        lines, middle = (tall - 1) * rows.stride + rows.reach + 1, range(0)
        if conv.taps > MOST_WRITTEN and tall < rows.taps:
            middle = range(tall - 1, rows.taps)  # those that all rows of the tile meet, in a loop
        for ahead in range(lines):
            if middle and ahead == middle.start:
                with emit.loop(len(middle)) as further:
                    add(further + index(ahead), [(row, further + index(ahead - row)) for row in range(tall)])
            elif ahead not in middle and (meets := rows.meeting(ahead, range(tall))):
                add(index(ahead), [(row, index(tap_row)) for row, tap_row in meets])
        if chains > 1:
            every_sum = [emit.vector(sums[0], index(n * lanes), lanes) for n in range(chains)]
            emit.put(sums[0], (every_sum[0] + every_sum[1]) + (every_sum[2] + every_sum[3]), index(0), lanes)
        for begin, total in zip(starts, sums, strict=True):
            stored = None if inside else mask(begin, lanes, conv.columns.places, may_precede=False)

            def place_of(row: tirx.Expr, lane: tirx.Expr, begin: tirx.Expr = begin) -> Place:
                values = (*self.place, self.top + row, begin + lane)
                return self.kernel.place(zip(conv.loops, values, strict=True))

            along = _along(self.kernel, conv)
            store_masked(self.kernel, self.arguments, total, (tall, lanes), along, place_of, stored)

    def _shifts(self) -> list[int]:
        """The columns of inputs, from that of a vector's first output on, at which vectors are read."""
        columns, lanes = self.conv.columns, self.lanes
        conv: list[int] = []
        for tap in range(columns.taps):
            shift = tap * columns.dilation - columns.before
            first = shift - shift % columns.stride
            conv += [first + number * lanes for number in range(columns.stride)]
        return list(dict.fromkeys(conv))

    def _mask(self, start: tirx.Expr) -> Masks:
        """The lanes of what a vector of outputs reads that are in the map, the same in all rows."""
        columns = self.conv.columns
        places = [(shift, start * index(columns.stride) + index(shift)) for shift in self._shifts()]
        return {(start, shift): held_mask(place, self.lanes, columns.size) for shift, place in places}

    def _line(self, number: tirx.Expr, start: tirx.Expr, masks: Masks | None) -> list[tirx.Expr]:
        """What a vector of outputs reads of a row of inputs at each tap; without masks, all is in the map."""
        lanes, stride = self.lanes, self.conv.columns.stride
        flat, columns = self.arguments.flat(self.conv.data), self.conv.columns
        if self.copied is None:
            row = emit.bound(self.plane + number * index(columns.size))
        else:
            row = emit.bound((number + index(self.conv.rows.before)) * index(self.pitch) + index(columns.before))
            flat = self.copied
        known: dict[int, tirx.Expr] = {}

        def loaded(shift: int) -> tirx.Expr:
            if shift not in known:
                place = row + start * index(stride) + index(shift)
                if masks is None:
                    value = emit.vector(flat, place, lanes)
                else:
                    value = masked_vector(flat, place, lanes, kept_by(masks[start, shift], lanes))
                known[shift] = build.bind(value)
            return known[shift]

        def at(tap: int) -> tirx.Expr:
            shift = tap * columns.dilation - columns.before
            if stride == 1:
                return loaded(shift)
            phase = shift % stride
            parts = [loaded(shift - phase + number * lanes) for number in range(stride)]
            return build.bind(every(parts, stride, phase, lanes))

        return [at(tap) for tap in range(columns.taps)]

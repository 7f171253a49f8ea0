"""Generation of depthwise convolutions of maps of any size that read their inputs where they are, in masked vectors.

A vector lies along a row of outputs, as far as the row goes. Masks keep it inside the row and, in tiles at the first
and the last rows of a map, inside the map: what they leave out are the zeros of the padding. So one form of code
serves all sizes, and nothing is copied.
"""

from __future__ import annotations

from functools import partial

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.form import Convolution, find_convolution
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.masked import can_mask, mask, masked_vector, store_masked
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Axis, index
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.tiles import Run, runs
from heterocc.compiler.lower.cpu.sizes import is_number

ROWS = 4
"""Rows of outputs of a tile: sums that do not wait for each other, and few for maps of few rows."""

MOST_TAPS = 49
"""The limit on taps, all of which are written out."""


def generate_sized_planes(kernel: Kernel, isa: Isa) -> tuple[tirx.PrimFunc, tuple[Panels, ...]] | None:
    """The kernel written as a depthwise convolution of maps of any size; None if it is another or not suitable."""
    found = find_convolution(kernel)
    if found is None or found.inputs != 1 or found.groups == 1 or not isa.masks:
        return None
    sized = not (is_number(found.rows.places) and is_number(found.columns.places))
    if not sized or found.columns.stride > 2 or found.taps > MOST_TAPS or not can_mask(kernel, _along(kernel, found)):
        return None
    return emit.written(kernel, {}, _Writer(kernel, found, isa).write), ()


def _along(kernel: Kernel, found: Convolution) -> Axis:
    """The axis of a row of outputs."""
    return Axis((found.loops[-1],), (kernel.extents[found.loops[-1]],))


class _Writer:
    """A generator of a depthwise convolution: planes, vectors along their rows, tiles of rows."""

    def __init__(self, kernel: Kernel, found: Convolution, isa: Isa) -> None:
        self.kernel, self.found, self.lanes = kernel, found, isa.lanes

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        found, lanes = self.found, self.lanes
        size = index(found.rows.size * found.columns.size)
        with emit.shared_loop(found.batch * found.groups, found.work) as number:
            image, group = emit.unpacked(number, (found.batch, found.groups))
            plane = emit.bound(number * size)
            with emit.loop(found.outputs) as output:
                channel = emit.bound(group * index(found.outputs) + output)
                with emit.loop(-(-found.columns.places // lanes)) as vector:
                    start = emit.bound(vector * index(lanes))
                    for run in runs(found.rows.places, ROWS, short=False):
                        self._down(_Tile(self, arguments, (image, channel), (plane, start), run.size), run)

    def _down(self, tile: _Tile, run: Run) -> None:
        """The tiles of one size of a vector of columns."""
        rows = self.found.rows
        with emit.loop(run.count) as number:
            first = index(run.start) + number * index(run.size)
            top = emit.bound(first if run.last is None else tirx.min(first, index(run.last)))
            above = top * index(rows.stride) - index(rows.before)
            last = above + index((run.size - 1) * rows.stride + rows.reach)
            inside = tirx.all(above >= index(0), last < index(rows.size))
            if run.size == 1:
                tile.write(top, inside=False)
            else:
                emit.either(inside, partial(tile.write, top, inside=True), partial(tile.write, top, inside=False))


class _Tile:
    """A tile of `tall` rows of outputs by one vector, of the channel and from the column given."""

    def __init__(
        self,
        writer: _Writer,
        arguments: Arguments,
        place: tuple[tirx.Expr, tirx.Expr],
        at: tuple[tirx.Expr, tirx.Expr],
        tall: int,
    ) -> None:
        self.kernel, self.found, self.lanes = writer.kernel, writer.found, writer.lanes
        self.arguments, self.place, self.tall = arguments, place, tall
        self.plane, self.start = at

    def write(self, top: tirx.Expr, *, inside: bool) -> None:
        """Write the tile from row `top`; all that it reads is in rows of the map if it is `inside`."""
        found, lanes, tall = self.found, self.lanes, self.tall
        rows, taps = found.rows, found.columns.taps
        sums = emit.registers(tall, lanes)
        with emit.loop(tall, "unroll") as row:
            emit.put(sums, emit.zeros(lanes), row * index(lanes), lanes)
        weights = self.arguments.flat(self.kernel.function.params[found.weight])
        weight = self.place[1] * index(found.taps)
        for line in range((tall - 1) * rows.stride + rows.reach + 1):
            meets = [
                (row, (line - row * rows.stride) // rows.dilation)
                for row in range(tall)
                if 0 <= line - row * rows.stride <= rows.reach and (line - row * rows.stride) % rows.dilation == 0
            ]
            if not meets:
                continue
            inputs = self._line(top * index(rows.stride) + index(line - rows.before), inside)
            for tap in range(taps):
                for row, tap_row in meets:
                    factor = emit.broadcast(weights[weight + index(tap_row * taps + tap)], lanes)
                    total = emit.vector(sums, index(row * lanes), lanes) + factor * inputs[tap]
                    emit.put(sums, total, index(row * lanes), lanes)
        stored = mask(self.start, lanes, found.columns.places, may_precede=False)
        axes = [None if n is None else Axis((n,), (self.kernel.extents[n],)) for n in found.loops]

        def place_of(row: tirx.Expr, lane: tirx.Expr) -> list[tuple[Axis, tirx.Expr]]:
            values = (*self.place, top + row, self.start + lane)
            return [(axis, value) for axis, value in zip(axes, values, strict=True) if axis is not None]

        store_masked(self.kernel, self.arguments, sums, (tall, lanes), _along(self.kernel, found), place_of, stored)

    def _line(self, number: tirx.Expr, inside: bool) -> list[tirx.Expr]:
        """What the outputs read of a row of inputs at each tap."""
        found, lanes, stride = self.found, self.lanes, self.found.columns.stride
        flat, columns = self.arguments.flat(found.data), found.columns
        row = emit.bound(self.plane + number * index(columns.size))
        exists = None if inside else tirx.all(number >= index(0), number < index(found.rows.size))
        known: dict[int, tirx.Expr] = {}

        def loaded(shift: int) -> tirx.Expr:
            if shift not in known:
                column = self.start * index(stride) + index(shift)
                kept = mask(column, lanes, columns.size)
                if exists is not None:
                    kept = tirx.And(kept, build.broadcast(exists, lanes))
                known[shift] = build.bind(masked_vector(flat, row + column, lanes, kept))
            return known[shift]

        def at(tap: int) -> tirx.Expr:
            shift = tap * columns.dilation - columns.before
            if stride == 1:
                return loaded(shift)
            phase = shift % stride
            pair = [loaded(shift - phase), loaded(shift - phase + lanes)]
            return build.bind(tirx.Shuffle(pair, list(range(phase, 2 * lanes, 2))))

        return [at(tap) for tap in range(columns.taps)]

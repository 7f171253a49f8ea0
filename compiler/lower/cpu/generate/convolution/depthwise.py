"""Generation of depthwise convolutions as windows over planes, in three dimensions over planes one behind the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.candidates import Candidate
from heterocc.compiler.lower.cpu.generate.convolution.form import Convolution, find_convolution
from heterocc.compiler.lower.cpu.generate.convolution.planes import (
    MOST_STRIDE,
    WIDE_OF_MANY,
    Line,
    PlaneWriter,
    Tasks,
    Tile,
    Windows,
)
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import can_store
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.places import Place, index
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.sizes import is_number, typical

MOST_HELD = 9
"""The limit on taps whose weights are held in registers, beside sums and inputs."""

MOST_ACROSS = 49
"""The limit on taps of a row."""


def propose_planes(kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
    """The kernel as a depthwise convolution that copies nothing but planes of many taps."""
    conv = find_convolution(kernel)
    if conv is None or conv.inputs != 1 or conv.groups == 1 or not can_store(kernel):
        return
    if conv.columns.taps > MOST_ACROSS or conv.columns.stride > MOST_STRIDE:
        return
    writer = partial(_Writer, kernel, conv)
    judged = writer(isa)
    if conv.deep is None or all(map(is_number, kernel.extents)):
        yield Candidate("planes", judged.cycles, writer)


class _Writer(PlaneWriter):
    """A generator of a depthwise convolution."""

    most_written = 64

    def __init__(self, kernel: Kernel, conv: Convolution, isa: Isa) -> None:
        windows = Windows(conv.depth, conv.rows, conv.columns, (conv.deep, *conv.loops[2:]))
        super().__init__(kernel, conv.data, windows, isa, Tasks(conv.batch * conv.groups, conv.work))
        self.conv = conv
        if conv.taps > MOST_HELD:
            self.wide = WIDE_OF_MANY  # share the weights, which are loaded for each tile
            several = not self.by_taps and typical(conv.columns.places) > self.lanes
            if several and (conv.rows.stride > 1 or not isa.core.few_registers):
                self.tall += 1  # there are registers, or rows of inputs add to few rows

    @property
    def cycles(self) -> float:
        """Modelled time of the convolution: a load for each vector and tap, nothing copied."""
        planes = typical(self.conv.batch) * self.conv.groups * self.conv.outputs * typical(self.conv.depth.places)
        return planes * self.conv.taps * self.vectors

    def each_plane(self, arguments: Arguments, number: tirx.Expr) -> Iterator[Place]:
        """The maps of outputs of a map of inputs, each with its weights in registers if they are few."""
        conv = self.conv
        image, group = emit.unpacked(number, (conv.batch, conv.groups))
        with emit.loop(conv.outputs) as output:
            channel = emit.bound(group * index(conv.outputs) + output)
            self.factors = self._factors(arguments, channel)
            yield self.kernel.place(zip(conv.loops[:2], (image, channel), strict=True))

    def _factors(self, arguments: Arguments, channel: tirx.Expr) -> Callable[[tirx.Expr], tirx.Expr]:
        """The vector of the weight of a tap: few taps have a register each, which the tiles of a plane share."""
        weights, first = arguments.flat(self.kernel.function.params[self.conv.weight]), channel * index(self.conv.taps)
        if self.conv.taps > MOST_HELD:
            return lambda tap: emit.broadcast(weights[first + tap], self.lanes)
        held = emit.registers(self.conv.taps, self.lanes)
        for tap in range(self.conv.taps):
            emit.put(held, emit.broadcast(weights[first + index(tap)], self.lanes), index(tap * self.lanes), self.lanes)
        return lambda tap: emit.vector(held, tap * index(self.lanes), self.lanes)

    def add(self, tile: Tile, lines: Sequence[Line], deep: tirx.Expr) -> None:
        """Add the products of rows of inputs with the weights of each row of taps."""
        taps, lanes = self.across.taps, self.lanes
        for tap in range(taps):
            for inputs, meets in lines:
                read = [values(tap) for values in inputs]  # only now: registers hold few
                for row, tap_row in meets:
                    factor = self.factors((deep * index(self.down.taps) + tap_row) * index(taps) + index(tap))
                    for total, values in zip(tile.sums, read, strict=True):
                        place = index(row * lanes)
                        emit.put(total, emit.vector(total, place, lanes) + factor * values, place, lanes)

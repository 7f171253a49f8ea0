"""Generation of depthwise convolutions as windows over planes, in three dimensions over planes one behind the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.candidates import Candidate
from heterocc.compiler.lower.cpu.generate.convolution.form import Convolution, find_convolution
from heterocc.compiler.lower.cpu.generate.convolution.planes import (
    MOST_STRIDE,
    WIDE_OF_MANY,
    Meets,
    Plane,
    PlaneWriter,
    Tasks,
    Tile,
    Values,
)
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import can_store
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.sizes import is_number, typical

MOST_HELD = 9
"""The limit on taps whose weights are held in registers, beside sums and inputs."""

MOST_ACROSS = 49
"""The limit on taps of a row."""

CHAINS = 4
"""The sums of a tile of one vector, which are added up at the end: products of one sum would wait for each other."""


def propose_planes(kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
    """The kernel as a depthwise convolution that copies nothing but planes of many taps."""
    conv = find_convolution(kernel, (3, 4, 5))
    if conv is None or conv.inputs != 1 or conv.groups == 1 or not can_store(kernel):
        return
    if conv.columns.taps > MOST_ACROSS or conv.columns.stride > MOST_STRIDE:
        return
    writer = partial(_Writer, kernel, conv)
    judged = writer(isa)
    known = all(is_number(w.size) and is_number(w.places) for w in (conv.depth, conv.rows, conv.columns))
    if (judged.fixed or isa.reads_parts) and (known or (judged.masks and conv.deep is None)):
        yield Candidate("planes", judged.cycles, writer)


class _Writer(PlaneWriter):
    """A generator of a depthwise convolution."""

    def __init__(self, kernel: Kernel, conv: Convolution, isa: Isa) -> None:
        tasks = Tasks(conv.batch * conv.groups * conv.depth.places, conv.work)
        super().__init__(kernel, conv.data, conv.rows, conv.columns, isa, conv.loops[2:], tasks)
        self.conv = conv
        self.copies = self.copies and conv.deep is None
        self.is_long = self.is_long and conv.deep is None
        if conv.taps > MOST_HELD and not isa.core.halves:
            self.wide = WIDE_OF_MANY  # share the weights, which are loaded for each tile

    @property
    def cycles(self) -> float:
        """Modelled time of the convolution: a load for each vector and tap, nothing copied."""
        planes = typical(self.conv.batch) * self.conv.groups * self.conv.outputs * self.conv.depth.places
        return planes * self.conv.taps * self.vectors

    def each_plane(self, arguments: Arguments, number: tirx.Expr) -> Iterator[Plane]:
        """The planes of outputs of a plane of inputs, each with its weights in registers if they are few."""
        conv, depth = self.conv, self.conv.depth
        size = index(conv.rows.size * conv.columns.size)
        image, group, deep = emit.unpacked(number, (conv.batch, conv.groups, depth.places))
        begin, inside = emit.bound(number * size), None
        if conv.deep is not None:
            behind = deep * index(depth.stride) - index(depth.before)
            first = tirx.max(index(0), -tirx.floordiv(behind, index(depth.dilation)))
            last = tirx.floordiv(index(depth.size - 1) - behind, index(depth.dilation)) + index(1)
            inside = emit.bound(first), emit.bound(tirx.min(index(depth.taps), last))
            begin = emit.bound(((image * index(conv.groups) + group) * index(depth.size) + behind) * size)
        self.read.copy(begin)
        with emit.loop(conv.outputs) as output:
            channel = emit.bound(group * index(conv.outputs) + output)
            self.factors = self._factors(arguments, channel)
            values = zip((*conv.loops[:2], conv.deep), (image, channel, deep), strict=True)
            yield Plane(self.kernel.place(values), begin, inside)

    def _factors(self, arguments: Arguments, channel: tirx.Expr) -> Callable[[tirx.Expr], tirx.Expr]:
        """The vector of the weight of a tap: few taps have a register each, which the tiles of a plane share."""
        weights, first = arguments.flat(self.kernel.function.params[self.conv.weight]), channel * index(self.conv.taps)
        if self.conv.taps > MOST_HELD:
            return lambda tap: emit.broadcast(weights[first + tap], self.lanes)
        held = emit.registers(self.conv.taps, self.lanes)
        for tap in range(self.conv.taps):
            emit.put(held, emit.broadcast(weights[first + index(tap)], self.lanes), index(tap * self.lanes), self.lanes)
        return lambda tap: emit.vector(held, tap * index(self.lanes), self.lanes)

    def chains(self, tall: int, wide: int) -> int:
        """Several sums for an output if a tile has one vector only."""
        return CHAINS if tall * wide == 1 and self.conv.plane_taps > CHAINS else 1

    def write_sums(self, arguments: Arguments, plane: Plane, tile: Tile) -> None:
        """Write the sums of a tile, over the planes of inputs that taps in depth read."""
        depth = self.conv.depth
        self.weight: tirx.Expr = index(0)
        if plane.inside is None:
            self.add_lines(arguments, tile, plane.begin)
            return
        with build.serial(*plane.inside) as tap:
            self.weight = tap * index(self.conv.plane_taps)
            further = tap * index(depth.dilation * self.down.size * self.across.size)
            self.add_lines(arguments, tile, emit.bound(plane.begin + further))

    def add(self, tile: Tile, inputs: Sequence[Values], meets: Meets) -> None:
        """Add the products of a row of inputs with the weights of each row of taps."""
        taps, lanes = self.across.taps, self.lanes
        chains = self.chains(tile.tall, len(tile.starts))
        for tap in range(taps):
            for row, tap_row in meets:
                factor = self.factors(self.weight + tap_row * index(taps) + index(tap))
                for total, values in zip(tile.sums, inputs, strict=True):
                    value, place = values[tap], index((row if chains == 1 else tap % chains) * lanes)
                    if value is not None:
                        emit.put(total, emit.vector(total, place, lanes) + factor * value, place, lanes)

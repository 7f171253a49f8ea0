"""Depthwise convolutions of 8-bit maps with the channels last: vectors lie along the channels.

Numbers of several rows at one column are combined to a group, which one instruction multiplies by the weights of these
rows. Outputs of a tile that read the same column follow each other, so that LLVM combines it once for all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.candidates import Candidate
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import store_tile
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.places import Linear, Place, index, offset, offset_at, overlapping
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.terms import BYTES, in_vectors_of
from heterocc.compiler.lower.cpu.generate.tiles import Run, runs
from heterocc.compiler.lower.cpu.sizes import as_number, is_one, moves, typical
from heterocc.compiler.lower.kernels.expressions import dtype_of

_MOST_ROWS = 8
"""Outputs side by side that share a vector of weights."""


def propose_integer_depthwise(kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
    """The kernel as a depthwise convolution of integers."""
    data, weight = kernel.through_copies(kernel.left), kernel.through_copies(kernel.right)
    if dtype_of(data) != "uint8" or dtype_of(weight) != "int8" or len(kernel.places) < 2:
        return
    forms = [offset(side.indices, side.source, kernel.loops) for side in (data, weight)]
    written = offset([kernel.loops[i] for i in kernel.places], kernel.sum_, kernel.loops)
    if forms[0] is None or forms[1] is None or written is None:
        return
    if any(kernel.argument(side.source) is None for side in (data, weight)):
        return
    *outer, along, channel = kernel.places
    if any(not is_one(form.steps[channel]) for form in (forms[0], forms[1], written)):
        return
    if any(moves(forms[1].steps[i]) for i in (*outer, along)):
        return
    sides = ((data.source, forms[0]), (weight.source, forms[1]))
    writer = _Writer(kernel, in_vectors_of(as_number(kernel.extents[channel]), isa), sides)
    yield Candidate("depthwise of bytes", typical(math.prod(kernel.extents)) / writer.isa.lanes, lambda _: writer)


class _Writer:
    """Writes a row of outputs at a time, for a vector of channels; `sides` are the data and the weight."""

    def __init__(self, kernel: Kernel, isa: Isa, sides: Sequence[tuple[tirx.Buffer, Linear]]) -> None:
        self.kernel, self.sides, self.kind, self.packings = kernel, sides, BYTES[isa.dot], ()
        self.isa = replace(isa, lanes=min(isa.lanes, as_number(kernel.extents[kernel.places[-1]])))
        *outer, along, channel = kernel.places
        self.outer = [kernel.axis([i]) for i in outer]
        self.row, self.channels = kernel.axis([along]), kernel.axis([channel])
        self.tiles = runs(self.row.length, _MOST_ROWS)
        *down, across = kernel.terms
        self.down, self.across = [kernel.axis([i]) for i in down], kernel.axis([across])
        rows, size = list(product(*(range(as_number(a.length)) for a in self.down))), self.kind.together
        self.groups = [rows[first : first + size] for first in range(0, len(rows), size)]

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        sizes = [a.length for a in self.outer]
        with emit.shared_loop(math.prod(sizes), math.prod(self.kernel.extents)) as task:
            place = list(zip(self.outer, emit.unpacked(task, sizes), strict=True))
            with emit.loop(-(-self.channels.length // self.isa.lanes)) as vector:
                start = overlapping(vector * index(self.isa.lanes), self.channels.length, self.isa.lanes)
                here = [*place, (self.channels, start)]
                weights = {}
                for number, tap in product(range(len(self.groups)), range(as_number(self.across.length))):
                    value = self._group(arguments, 1, number, [*here, (self.across, index(tap))])
                    weights[number, tap] = emit.register(value, self.isa.lanes, "int32")
                with emit.loop(sum(r.count for r in self.tiles)) as tile:
                    emit.either_run(self.tiles, tile, lambda run: self._tile(arguments, here, weights, run, tile))

    def _group(self, arguments: Arguments, side: int, number: int, place: Place) -> tirx.Expr:
        """A group of rows of the data or of the weight at a place, for a vector of channels: one of 32 bits a lane."""
        (buffer, form), lanes, group = self.sides[side], self.isa.lanes, self.groups[number]
        vectors = []
        for taps in group:
            inside = ((axis, index(tap)) for axis, tap in zip(self.down, taps, strict=True))
            vectors.append(emit.vector(arguments.flat(buffer), offset_at(form, [*place, *inside]), lanes))
        return _grouped(vectors, self.kind.together)

    def _tile(
        self,
        arguments: Arguments,
        place: Place,
        weights: Mapping[tuple[int, int], tirx.Buffer],
        run: Run,
        tile: tirx.Expr,
    ) -> None:
        width, first = self.isa.lanes, emit.start_of(run, tile)
        *outer, (_, start) = place
        sums = emit.cleared(run.size, width, "int32")
        steps = [axis.stride(self.sides[0][1]) for axis in (self.row, self.across)]
        reads = list(product(range(run.size), range(as_number(self.across.length))))
        for output, tap in sorted(reads, key=lambda read: typical(read[0] * steps[0] + read[1] * steps[1])):
            there = [*place, (self.row, first + index(output)), (self.across, index(tap))]
            for number in range(len(self.groups)):
                group = self._group(arguments, 0, number, there)
                total, weight = emit.vector(sums, index(output * width), width), weights[number, tap]
                added = self.kind.plus(total, group, emit.vector(weight, index(0), width))
                emit.put(sums, added, index(output * width), width)
        store_tile(
            self.kernel,
            arguments,
            [sums],
            run.size,
            width,
            lambda row, _, lane: [*outer, (self.row, first + row), (self.channels, start + lane)],
            lambda _: width,
        )


def _grouped(rows: Sequence[tirx.Expr], together: int) -> tirx.Expr:
    """Vectors of bytes as one of several numbers in each lane, the first lowest; zeros for those that are missing."""
    lanes = int(rows[0].ty.dtype.lanes)
    total: tirx.Expr = emit.zeros(lanes, "int32")
    for place, row in enumerate(rows):
        if together > 1:  # without copies of the sign in the places above
            row = tirx.Cast(f"uint{32 // together}x{lanes}", row)
        above = tirx.const(place * (32 // together), f"int32x{lanes}")
        total = tirx.bitwise_or(total, tirx.shift_left(tirx.Cast(f"int32x{lanes}", row), above))
    return total

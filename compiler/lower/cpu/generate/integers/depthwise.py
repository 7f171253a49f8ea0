"""Depthwise convolutions of 8-bit maps with the channels last: vectors lie along the channels.

Numbers of several rows at one column are combined to a group, which one instruction multiplies by the weights of these
rows. All outputs of a tile that read a column use the same group.
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
from heterocc.compiler.lower.cpu.generate.places import Linear, Place, at, index, offset, overlapping
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.terms import BYTES, in_vectors_of
from heterocc.compiler.lower.cpu.generate.tiles import Run, runs
from heterocc.compiler.lower.cpu.sizes import moves, typical
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
    if any(form.steps[channel] != 1 for form in (forms[0], forms[1], written)):
        return
    if any(moves(forms[1].steps[i]) for i in (*outer, along)):
        return
    buffers = (data.source, weight.source)
    writer = _Writer(kernel, in_vectors_of(kernel.extents[channel], isa), (forms[0], forms[1]), buffers)
    yield Candidate("depthwise of bytes", typical(math.prod(kernel.extents)) / writer.lanes, lambda _: writer)


class _Writer:
    """Writes a row of outputs at a time, for a vector of channels."""

    def __init__(
        self, kernel: Kernel, isa: Isa, forms: tuple[Linear, Linear], buffers: tuple[tirx.Buffer, tirx.Buffer]
    ) -> None:
        width = min(isa.lanes, kernel.extents[kernel.places[-1]])
        self.kernel, self.isa, self.lanes, self.kind = kernel, replace(isa, lanes=width), width, BYTES[isa.dot]
        self.packings = ()
        self.forms, self.buffers = forms, buffers
        *outer, along, channel = kernel.places
        self.outer = [kernel.axis([i]) for i in outer]
        self.row, self.channels = kernel.axis([along]), kernel.axis([channel])
        *down, across = kernel.terms
        self.rows = list(product(*(range(kernel.extents[i]) for i in down)))
        self.down, self.across = [kernel.axis([i]) for i in down], kernel.axis([across])
        self.tiles = runs(self.row.length, _MOST_ROWS)

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        sizes = [a.length for a in self.outer]
        vectors = -(-self.channels.length // self.lanes)
        work = math.prod(self.kernel.extents)
        with emit.shared_loop(math.prod(sizes), work) as task:
            place = list(zip(self.outer, emit.unpacked(task, sizes), strict=True))
            with emit.loop(vectors) as vector:
                start = overlapping(vector * index(self.lanes), self.channels.length, self.lanes)
                weights = self._weights(arguments, start)
                with emit.loop(sum(r.count for r in self.tiles)) as tile:
                    emit.either_run(
                        self.tiles,
                        tile,
                        lambda run: self._tile(arguments, [*place, (self.channels, start)], weights, run, tile),
                    )

    def _groups(self) -> Iterator[tuple[int, ...]]:
        """The numbers of the rows of each group."""
        size = self.kind.together
        for first in range(0, len(self.rows), size):
            yield tuple(range(first, min(first + size, len(self.rows))))

    def _group(self, arguments: Arguments, side: int, rows: tuple[int, ...], place: Place) -> tirx.Expr:
        """The numbers of some rows of the data or of the weight at a place, for a vector of channels."""
        vectors = []
        for row in rows:
            there = [*place, *((axis, index(tap)) for axis, tap in zip(self.down, self.rows[row], strict=True))]
            where = at(self.forms[side], there)
            assert where is not None
            vectors.append(emit.vector(arguments.flat(self.buffers[side]), where, self.lanes))
        return _grouped(vectors, self.kind.together)

    def _weights(self, arguments: Arguments, start: tirx.Expr) -> Mapping[tuple[int, int], tirx.Buffer]:
        """Groups of weights in registers, by the numbers of the group and of the tap in its row."""
        held: dict[tuple[int, int], tirx.Buffer] = {}
        for (number, rows), tap in product(enumerate(self._groups()), range(self.across.length)):
            held[number, tap] = emit.registers(1, self.lanes, "int32")
            value = self._group(arguments, 1, rows, [(self.channels, start), (self.across, index(tap))])
            emit.put(held[number, tap], value, index(0), self.lanes)
        return held

    def _tile(
        self,
        arguments: Arguments,
        place: Place,
        weights: Mapping[tuple[int, int], tirx.Buffer],
        run: Run,
        tile: tirx.Expr,
    ) -> None:
        width, first = self.lanes, emit.start_of(run, tile)
        *outer, (_, start) = place
        sums = emit.registers(run.size, width, "int32")
        with emit.loop(run.size, "unroll") as row:
            emit.put(sums, emit.broadcast(tirx.const(0, "int32"), width), row * index(width), width)
        for output, tap, others in self._columns(run.size):
            for number, rows in enumerate(self._groups()):
                there = [*place, (self.row, first + index(output)), (self.across, index(tap))]
                group = emit.registers(1, width, "int32")
                emit.put(group, self._group(arguments, 0, rows, there), index(0), width)
                for output_, tap_ in others:
                    total = emit.vector(sums, index(output_ * width), width)
                    left, right = (emit.vector(b, index(0), width) for b in (group, weights[number, tap_]))
                    emit.put(sums, self.kind.plus(total, left, right), index(output_ * width), width)
        store_tile(
            self.kernel,
            arguments,
            [sums],
            run.size,
            width,
            lambda row, _, lane: [*outer, (self.row, first + row), (self.channels, start + lane)],
            lambda _: width,
        )

    def _columns(self, outputs: int) -> Iterator[tuple[int, int, list[tuple[int, int]]]]:
        """Each column that a tile reads, as an output and a tap, with all outputs and taps that read it."""
        steps = [axis.step(self.forms[0]) or 0 for axis in (self.row, self.across)]
        columns: dict[int, list[tuple[int, int]]] = {}
        for output, tap in product(range(outputs), range(self.across.length)):
            columns.setdefault(output * steps[0] + tap * steps[1], []).append((output, tap))
        for _, pairs in sorted(columns.items()):
            yield *pairs[0], pairs


def _grouped(rows: Sequence[tirx.Expr], together: int) -> tirx.Expr:
    """Vectors of bytes as one of several numbers in each lane, the first lowest; zeros for those that are missing."""
    total: tirx.Expr | None = None
    for place, row in enumerate(rows):
        lanes = int(row.ty.dtype.lanes)
        if together > 1:  # without copies of the sign in the places above
            row = tirx.Cast(f"uint{32 // together}x{lanes}", row)
        number = tirx.Cast(f"int32x{lanes}", row)
        if place:
            number = tirx.shift_left(number, tirx.const(place * (32 // together), f"int32x{lanes}"))
        total = number if total is None else tirx.bitwise_or(total, number)
    assert total is not None
    return total

"""Depthwise convolutions of 8-bit maps with the channels last: vectors lie along the channels."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.blocks import dtype_of
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import store_tile
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.places import Axis, Linear, Place, at, index, offset
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.tiles import Run, runs

_MOST_ROWS = 8
"""Outputs side by side that share a vector of weights."""


def generate_integer_depthwise(kernel: Kernel, isa: Isa) -> tuple[tirx.PrimFunc, tuple[()]] | None:
    """The kernel written as a depthwise convolution of integers, None if it is not one."""
    data, weight = kernel.through_copies(kernel.left), kernel.through_copies(kernel.right)
    if dtype_of(data) != "uint8" or dtype_of(weight) != "int8" or len(kernel.places) < 2:
        return None
    forms = [offset(side.indices, side.source, kernel.loops) for side in (data, weight)]
    written = offset([kernel.loops[i] for i in kernel.places], kernel.sum_, kernel.loops)
    if forms[0] is None or forms[1] is None or written is None:
        return None
    if any(kernel.argument(side.source) is None for side in (data, weight)):
        return None
    *outer, along, channel = kernel.places
    if any(form.steps[channel] != 1 for form in (forms[0], forms[1], written)):
        return None
    if any(forms[1].steps[i] for i in (*outer, along)):
        return None
    buffers = (data.source, weight.source)
    writer = _Writer(kernel, isa.narrowed(kernel.extents[channel]), (forms[0], forms[1]), buffers)
    return emit.written(kernel, {}, writer.write), ()


class _Writer:
    """Writes a row of outputs at a time, for a vector of channels."""

    def __init__(
        self, kernel: Kernel, isa: Isa, forms: tuple[Linear, Linear], buffers: tuple[tirx.Buffer, tirx.Buffer]
    ) -> None:
        self.kernel, self.lanes = kernel, isa.lanes
        self.forms, self.buffers = forms, buffers
        *outer, along, channel = kernel.places
        self.outer = [kernel.axis([i]) for i in outer]
        self.row, self.channels = kernel.axis([along]), kernel.axis([channel])
        self.terms = [kernel.axis([i]) for i in kernel.terms]
        self.tiles = runs(self.row.length, _MOST_ROWS)

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        sizes = [a.length for a in self.outer]
        vectors = -(-self.channels.length // self.lanes)
        work = math.prod(self.kernel.extents)
        with emit.shared_loop(math.prod(sizes), work) as task:
            place = list(zip(self.outer, emit.unpacked(task, sizes), strict=True))
            with emit.loop(vectors) as vector:
                last = max(self.channels.length - self.lanes, 0)
                start = tirx.min(vector * index(self.lanes), index(last)) if last else index(0)
                with emit.loop(sum(r.count for r in self.tiles)) as tile:
                    emit.either_run(
                        self.tiles, tile, lambda run: self._tile(arguments, place, start, run, emit.start_of(run, tile))
                    )

    def _tile(self, arguments: Arguments, place: Place, start: tirx.Expr, run: Run, first: tirx.Expr) -> None:
        lanes, width = self.lanes, min(self.lanes, self.channels.length)
        sums = emit.registers(run.size, lanes, "int32")
        with emit.loop(run.size, "unroll") as row:
            emit.put(sums, tirx.const(0, f"int32x{lanes}"), row * index(lanes), lanes)
        taps = [a.length for a in self.terms]
        for tap in range(math.prod(taps)):
            self._add(arguments, [*place, *self._tap(tap, taps)], start, (run.size, first), sums)
        store_tile(
            self.kernel,
            arguments,
            [sums],
            run.size,
            lanes,
            lambda row, _, lane: [*place, (self.row, first + row), (self.channels, start + lane)],
            lambda _: width,
        )

    def _tap(self, tap: int, taps: Sequence[int]) -> list[tuple[Axis, tirx.Expr]]:
        found: list[tuple[Axis, tirx.Expr]] = []
        for axis, extent in zip(reversed(self.terms), reversed(taps), strict=True):
            found.append((axis, index(tap % extent)))
            tap //= extent
        return found

    def _add(
        self,
        arguments: Arguments,
        place: Place,
        start: tirx.Expr,
        rows: tuple[int, tirx.Expr],
        sums: tirx.Buffer,
    ) -> None:
        """Add the products of one tap to the sums of the outputs of a tile."""
        lanes, width = self.lanes, min(self.lanes, self.channels.length)
        count, first = rows
        flat = [arguments.flat(buffer) for buffer in self.buffers]
        with emit.loop(count, "unroll") as row, emit.loop(width, "vectorized") as lane:
            there = [*place, (self.row, first + row), (self.channels, start + lane)]
            where = [at(form, there) for form in self.forms]
            assert where[0] is not None and where[1] is not None
            product = tirx.Cast("int32", flat[0][where[0]]) * tirx.Cast("int32", flat[1][where[1]])
            number = row * index(lanes) + lane
            build.buffer_store(sums, sums[number] + product, [number])

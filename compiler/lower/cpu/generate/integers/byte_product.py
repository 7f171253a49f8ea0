"""Products of 8-bit integers by a weight: matrix products, and convolutions of channels-last maps.

Each output is a sum over terms of one unsigned number, which a row of outputs shares, and a vector of signed weights
along the output's last axis. Terms that lie in a row in memory are taken in groups, as many as one instruction
multiplies and adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.any_rows import (
    count_of,
    row_runs,
    shares_epilogue,
    write_sized_tile,
    write_tile,
)
from heterocc.compiler.lower.cpu.generate.candidates import Candidate
from heterocc.compiler.lower.cpu.generate.emit import Arguments, Step
from heterocc.compiler.lower.cpu.generate.epilogue import can_store, reads_in_epilogue, store_tile
from heterocc.compiler.lower.cpu.generate.integers.limited import LimitedPanels
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Axis, Linear, Place, at, index, offset, overlapping, shape_of
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.terms import BYTES
from heterocc.compiler.lower.cpu.generate.tiles import Run, pick_tile, runs
from heterocc.compiler.lower.cpu.sizes import is_number, moves, typical
from heterocc.compiler.lower.kernels.expressions import dtype_of, is_zero


@dataclass(frozen=True, slots=True)
class IntegerProduct:
    """out[outer, row, column] = Σ over segments and terms of data[outer, row, segment, term] · weight[segment, term,
    column], where the terms of a segment lie in a row. `data` is the place in memory as a linear form of the loops."""

    outer: tuple[Axis, ...]
    rows: Axis
    columns: Axis
    segments: tuple[Axis, ...]
    terms: Axis
    buffer: tirx.Buffer
    data: Linear
    panels: tuple[int, tuple[int, ...], tuple[int, ...]]

    @property
    def work(self) -> int:
        """Multiply-adds."""
        return math.prod(a.length for a in (*self.outer, self.rows, self.columns, *self.segments, self.terms))


def propose_integer_product(kernel: Kernel, isa: Isa) -> Iterator[Candidate]:
    """The kernel as a product of integers by a weight."""
    product = find_integer_product(kernel)
    if product is None:
        return

    def writer(isa: Isa) -> ProductWriter:
        return ProductWriter(kernel, product, isa if isa.dot == "bytes" else isa.narrowed(product.columns.length))

    yield Candidate("product of bytes", writer(isa).cycles, writer)


def find_integer_product(kernel: Kernel) -> IntegerProduct | None:
    """Read a kernel as a product of unsigned numbers and a signed weight."""
    if not can_store(kernel):
        return None
    data, weight = kernel.through_copies(kernel.left), kernel.through_copies(kernel.right)
    if dtype_of(data) != "uint8" or dtype_of(weight) != "int8":
        return None
    argument = kernel.argument(weight.source)
    form = offset(data.indices, data.source, kernel.loops)
    written = offset([kernel.loops[i] for i in kernel.places], kernel.sum_, kernel.loops)
    if kernel.argument(data.source) is None or argument not in kernel.weights or form is None or written is None:
        return None
    axes = {n: i for i, e in enumerate(weight.indices) if (n := kernel.loop_of(e)) is not None}
    ones = [i for i in range(len(weight.indices)) if i not in axes.values()]
    if reads_in_epilogue(kernel, weight.source) or any(not is_zero(weight.indices[i]) for i in ones):
        return None
    places = [i for i in kernel.places if kernel.extents[i] > 1]
    across = [i for i in places if i in axes]
    along = [i for i in places if i not in axes]
    summed = [i for i in kernel.terms if kernel.extents[i] > 1]
    if any(moves(form.steps[i]) for i in across) or any(i not in axes or not moves(form.steps[i]) for i in summed):
        return None
    columns = kernel.axis(across)
    if (across and columns.step(written) != 1) or not all(moves(form.steps[i]) for i in along):
        return None
    terms = kernel.last_run(summed, [form])
    if summed and terms.step(form) != 1:
        terms = kernel.axis([])
    rows = kernel.last_run(along, [form])
    segments = tuple(kernel.axis([i]) for i in summed if i not in terms.loops)
    outer = tuple(kernel.axis([i]) for i in along if i not in rows.loops)
    left_out = [axes[n] for n in axes if kernel.extents[n] == 1]
    order = (*ones, *left_out, *(axes[n] for a in (*segments, terms, columns) for n in a.loops))
    shape = shape_of(weight.source)
    assert shape is not None
    return IntegerProduct(outer, rows, columns, segments, terms, data.source, form, (argument, shape, order))


@dataclass(frozen=True, slots=True)
class Groups:
    """Numbers of groups of a segment that are added at once, with so many terms each, and the segment's places."""

    data: tirx.Expr
    weight: tirx.Expr
    groups: Sequence[tirx.Expr]
    terms: int


class ProductWriter:
    """Writes a product: tiles of columns, whose weights stay in a cache, each down all rows."""

    def __init__(self, kernel: Kernel, product: IntegerProduct, isa: Isa) -> None:
        self.kernel, self.product, self.isa, self.kind = kernel, product, isa, BYTES[isa.dot]
        length = product.columns.length
        count = -(-length // isa.lanes)
        # The products of pairs are in a register of their own before they are added.
        spare = replace(isa, registers=isa.registers - 1) if isa.dot == "pairs" else isa
        tall, wide = pick_tile(product.rows.length, count, spare)
        self.row_runs, self.column_runs = row_runs(product.rows.length, tall), runs(count, wide)
        segments = math.prod(a.length for a in product.segments)
        sizes, group = (1, product.terms.length, length, isa.lanes), self.kind.together
        self.panels = Panels(*product.panels, *sizes, self.column_runs, segments=segments, group=group)
        self.cost = self.panels.steps * self.kind.cost  # instructions for a row and a vector

    @property
    def packings(self) -> tuple[Panels | LimitedPanels, ...]:
        """The packing of the weight."""
        return (self.panels,)

    @property
    def cycles(self) -> float:
        """Modelled time of the multiplications and additions."""
        tiles = [(typical(r.count), r.size, v.count * v.size) for r in self.row_runs for v in self.column_runs]
        outer = math.prod(typical(a.length) for a in self.product.outer)
        return outer * self.cost / 2 * sum(count * rows * vectors for count, rows, vectors in tiles)

    @property
    def widens(self) -> bool:
        """Whether the data is copied in 16 bits: two of its numbers are then read by one instruction, not by six."""
        return (
            self.isa.dot == "pairs" and self._numbers >= self.isa.lanes and self.product.columns.length > self.isa.lanes
        )

    @property
    def _numbers(self) -> int:
        """The length of the data, 0 if it is known only at run time."""
        shape = shape_of(self.product.buffer)
        size = 0 if shape is None else math.prod(shape)
        return size if is_number(size) else 0

    def _widened(self, arguments: Arguments) -> tirx.Buffer:
        """Copy the data to memory in 16 bits."""
        product, lanes = self.product, 2 * self.isa.lanes
        data, size = arguments.flat(product.buffer), self._numbers
        lanes = lanes if size >= lanes else lanes // 2
        copied = emit.scratch(size, "int16")
        vectors = -(-size // lanes)
        parts = emit.shares(product.work, 1, vectors)
        with emit.shared_loop(parts, product.work) as part, emit.share_loop(part, parts, vectors) as number:
            start = overlapping(number * index(lanes), size, lanes)
            emit.put(copied, tirx.Cast(f"int16x{lanes}", emit.vector(data, start, lanes)), start, lanes)
        return copied

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        product = self.product
        self.data = self._widened(arguments) if self.widens else arguments.flat(product.buffer)
        outer = tuple(a.length for a in product.outer)
        columns = sum(r.count for r in self.column_runs)
        tiles = count_of(product.rows.length, self.row_runs)
        parts = emit.shares(product.work, math.prod(outer) * columns, tiles)
        with emit.shared_loop(columns * math.prod(outer) * parts, product.work) as task:
            column, *places, part = emit.unpacked(task, (columns, *outer, parts))
            place = list(zip(product.outer, places, strict=True))
            emit.either_run(
                self.column_runs,
                column,
                lambda run: self._down(arguments, place, run, column, emit.Share(part, parts, tiles)),
            )

    def _down(self, arguments: Arguments, place: Place, run: Run, column: tirx.Expr, share: emit.Share) -> None:
        number = emit.start_of(run, column)
        lanes, product = self.isa.lanes, self.product
        length = product.columns.length
        starts = [self._start((number + index(v)) * index(lanes)) for v in range(run.size)]

        def store(sums: Sequence[tirx.Buffer], rows: int | tirx.Expr, first: tirx.Expr) -> None:
            store_tile(
                self.kernel,
                arguments,
                sums,
                rows,
                lanes,
                lambda row, column, lane: [
                    *place,
                    (product.rows, first + row),
                    (product.columns, starts[column] + lane),
                ],
                lambda column: min(lanes, length),
            )

        def sums(rows: Run, first: tirx.Expr) -> Sequence[tirx.Buffer]:
            return self.sums(arguments, [*place, (product.rows, first)], (run, number), rows.size)

        total = product.rows.length
        with share.loop() as tile:
            if shares_epilogue(total, self.panels.segments * self.panels.terms):
                write_sized_tile(total, self.row_runs, tile, [lanes] * run.size, "int32", sums, store)
            else:
                write_tile(self.row_runs, tile, sums, store)

    def sums(
        self, arguments: Arguments, place: Place, panel: tuple[Run, tirx.Expr], rows: int
    ) -> Sequence[tirx.Buffer]:
        """The sums of a tile of rows from `place` on; `panel` is its run of columns and the first vector of these."""
        product, panels, (run, number) = self.product, self.panels, panel
        weights = arguments.flat(self.kernel.function.params[panels.argument])
        pitch, size = product.rows.step(product.data) or 0, panels.lanes * panels.group

        def numbers(row: tirx.Expr, step: Groups) -> Sequence[tirx.Expr]:
            places = (step.data + row * index(pitch) + group * index(panels.group) for group in step.groups)
            return [self.kind.number(self.data, where, step.terms) for where in places]

        def columns(column: int, step: Groups) -> Sequence[tirx.Expr]:
            places = (step.weight + (group * index(run.size) + index(column)) * index(size) for group in step.groups)
            return [emit.vector(weights, where, size) for where in places]

        def walk(_: int, step: Step) -> None:
            with emit.loop(panels.segments) as segment:
                values = emit.unpacked(segment, [a.length for a in product.segments])
                data = at(product.data, [*place, *zip(product.segments, values, strict=True)])
                assert data is not None
                weight = number * index(panels.pitch) + segment * index(panels.groups * size * run.size)
                self.walk(lambda groups, terms, n: step(Groups(data, weight, groups, terms), n))

        return emit.product_tile(rows, run.size, panels.steps, self.isa, numbers, columns, walk, kind=self.kind)

    def walk(self, step: Callable[[Sequence[tirx.Expr], int, int], None]) -> None:
        """Call `step` for the groups of a segment that are added at once, with the number of terms in each."""
        panels = self.panels
        whole, more = divmod(panels.terms, panels.group)
        if self.isa.dot == "pairs" and self.isa.core.few_registers:
            # Unrolled, LLVM widens the weights of several groups at once, and stores sums to have registers for them.
            unroll = 1
        else:
            # Rows of any number have code for many sizes of tiles, whose loops are kept short.
            unroll = emit.UNROLL if is_number(self.product.rows.length) else emit.UNROLL // 2
        emit.in_turn(whole, lambda group, number: step([group], panels.group, number), unroll)
        if more:
            step([index(whole)], more, 0)

    def _start(self, column: tirx.Expr) -> tirx.Expr:
        """The start of a vector; a last one that would exceed the end overlaps the previous one."""
        return overlapping(column, self.product.columns.length, self.isa.lanes)

"""Generation of matrix products: with a weight, of two matrices, batched, with a vector, and 1×1 convolutions.

Each output is a sum over terms of a number, shared by a row of outputs, times a vector along the output's last axis.
The numbers are of the factor that is constant along that axis (the left matrix; a convolution's weights), the vectors
of the other (the right matrix; the pixels). Weights are packed so that a tile reads them consecutively. Other factors
are read in place, or copied panel by panel if their vectors are not contiguous or their rows compete for the same sets
of the cache. The structure follows Goto and van de Geijn, "Anatomy of high-performance matrix
multiplication" (2008).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvm import tirx
from tvm.ir import TensorLoad
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import can_store, reads_in_epilogue, store_tile
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Axis, Linear, Place, at, index, offset, shape_of
from heterocc.compiler.lower.cpu.generate.read import Kernel
from heterocc.compiler.lower.cpu.generate.tiles import Run, better_along_channels, choose_tile, runs

ROWS_A_TASK = 64
"""The smallest number of rows for which a panel is copied."""


@dataclass(frozen=True, slots=True)
class Side:
    """A factor: its load, its place in memory as a linear form of the loops, and its argument if it is a weight."""

    load: TensorLoad
    form: Linear
    weight: int | None


@dataclass(frozen=True, slots=True)
class Product:
    """out[outer, row, column] = Σ over terms of numbers[outer, row, term] · vectors[outer, term, column]."""

    outer: tuple[Axis, ...]
    rows: Axis
    columns: Axis
    terms: Axis
    numbers: Side
    vectors: Side

    @property
    def work(self) -> int:
        """The number of multiply-adds."""
        return math.prod(a.length for a in (*self.outer, self.rows, self.columns, self.terms))


def generate_product(kernel: Kernel, isa: Isa) -> tuple[tirx.PrimFunc, tuple[Panels, ...]] | None:
    """The kernel written as a matrix product, None if it is not one."""
    found = find_product(kernel)
    if found is None or not can_store(kernel) or _along_channels(found, isa):
        return None
    writer = _Writer(kernel, found, isa.narrowed(found.columns.length))
    packed = {p.argument: p.size for p in writer.packings}
    return emit.written(kernel, packed, writer.write), writer.packings


def _along_channels(found: Product, isa: Isa) -> bool:
    """Whether a convolution of a narrow map is scheduled instead."""
    if found.vectors.weight is not None or found.numbers.weight is None or not found.columns.extents:
        return False
    used = found.columns.length / (-(-found.columns.length // isa.lanes) * isa.lanes)
    return better_along_channels(used, found.rows.length, found.columns.extents[-1], isa)


def find_product(kernel: Kernel) -> Product | None:
    """Read a kernel as a matrix product."""
    sides = [_side(kernel, load) for load in (kernel.left, kernel.right)]
    if (
        sides[0] is None
        or sides[1] is None
        or kernel.argument(sides[0].load.source) == kernel.argument(sides[1].load.source)
    ):
        return None
    places = [i for i in kernel.places if kernel.extents[i] > 1]
    terms = [i for i in kernel.terms if kernel.extents[i] > 1]
    moving = [[bool(side.form.steps[i]) for side in sides if side is not None] for i in range(len(kernel.loops))]
    if any(moving[i] == [False, False] for i in places) or any(moving[i] != [True, True] for i in terms):
        return None
    along = next((i for i in reversed(places) if moving[i] != [True, True]), None)
    if along is None or (places and places[-1] != along):
        return None
    right = moving[along][1]
    numbers, vectors = (sides[0], sides[1]) if right else (sides[1], sides[0])
    assert numbers is not None and vectors is not None
    written = offset([kernel.loops[i] for i in kernel.places], kernel.sum_, kernel.loops)
    assert written is not None
    only_vectors = [i for i in places if moving[i] == moving[along]]
    only_numbers = [i for i in places if moving[i] not in (moving[along], [True, True])]
    columns = kernel.last_run(only_vectors, [vectors.form, written])
    rows = kernel.last_run(only_numbers, [numbers.form])
    summed = kernel.axis(terms)
    if any(s.weight is None and summed.step(s.form) is None for s in (numbers, vectors)):
        return None
    outer = tuple(kernel.axis([i]) for i in places if i not in (*columns.loops, *rows.loops))
    found = Product(outer, rows, columns, summed, numbers, vectors)
    return found if columns.step(written) == 1 and _worth_it(found) else None


def _worth_it(found: Product) -> bool:
    """Whether vectors are contiguous, packed, or used by enough rows to be copied."""
    return found.vectors.weight is not None or found.columns.step(found.vectors.form) == 1 or found.rows.length >= 8


def _side(kernel: Kernel, load: TensorLoad) -> Side | None:
    """A factor read from an argument; a weight if it is a parameter, only read here, and each axis is one loop."""
    load = kernel.through_copies(load)
    argument = kernel.argument(load.source)
    form = offset(load.indices, load.source, kernel.loops)
    if argument is None or form is None:
        return None
    weight = argument in kernel.weights and not reads_in_epilogue(kernel, load.source)
    weight = weight and all(_axis_of(kernel, i) is not None or _is_zero(i) for i in load.indices)
    return Side(load, form, argument if weight else None)


def _axis_of(kernel: Kernel, expr: tirx.Expr) -> int | None:
    return next((n for n, v in enumerate(kernel.loops) if v.same_as(expr)), None)


def _is_zero(expr: tirx.Expr) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr) == 0


class _Writer:
    """A generator of a product: panels of columns, and for each all rows, tile by tile."""

    def __init__(self, kernel: Kernel, found: Product, isa: Isa) -> None:
        self.kernel, self.found, self.isa = kernel, found, isa
        self.length = found.columns.length
        count = -(-self.length // isa.lanes)
        tall, wide = choose_tile(found.rows.length, count, isa)
        self.row_runs = runs(found.rows.length, tall)
        self.column_runs = runs(count, wide)
        self.packed = [self._packing(found.numbers, found.rows, 1, self.row_runs)]
        self.packed.append(self._packing(found.vectors, found.columns, isa.lanes, self.column_runs))
        self.copies = self.packed[1] is None and self._copied()

    @property
    def packings(self) -> tuple[Panels, ...]:
        """The packings of the weights."""
        return tuple(p for p in self.packed if p is not None)

    def _packing(self, side: Side, places: Axis, lanes: int, tiles: tuple[Run, ...]) -> Panels | None:
        if side.weight is None:
            return None
        axes = {n: i for i, e in enumerate(side.load.indices) if (n := _axis_of(self.kernel, e)) is not None}
        outer = [a for a in self.found.outer if a.loops[0] in axes]
        ones = [i for i in range(len(side.load.indices)) if i not in axes.values()]
        ones += [axes[n] for n in axes if self.kernel.extents[n] == 1]
        groups = (*(a.loops for a in outer), self.found.terms.loops, places.loops)
        order = (*ones, *(axes[n] for loops in groups for n in loops))
        size = math.prod(a.length for a in outer)
        shape = shape_of(side.load.source)
        assert shape is not None
        return Panels(side.weight, shape, order, size, self.found.terms.length, places.length, lanes, tiles)

    def _copied(self) -> bool:
        """Whether panels of the vectors are copied before use.

        Rows whose distance is a multiple of a large power of two map to few sets of a second-level cache of 1 MiB with
        16 ways; more rows than these sets hold evict each other.
        """
        side, terms = self.found.vectors, self.found.terms
        if self.found.columns.step(side.form) != 1 or self.length < self.isa.lanes:
            return True
        pitch = 4 * abs(terms.step(side.form) or 0)
        return pitch > 0 and terms.length > 16 * ((1 << 16) // math.gcd(pitch, 1 << 16))

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        found = self.found
        outer = math.prod(a.length for a in found.outer)
        groups = sum(r.count for r in self.column_runs)
        tiles = sum(r.count for r in self.row_runs)
        parts = emit.shares(found.work, outer * groups, tiles)
        if self.copies:
            parts = max(1, min(parts, found.rows.length // ROWS_A_TASK))
        with emit.shared_loop(outer * groups * parts, found.work) as task:
            place_number, group, part = emit.unpacked(task, (outer, groups, parts))
            place = self._outer_place(place_number)
            emit.either_run(
                self.column_runs, group, lambda run: self._panel(arguments, place, run, group, (part, parts, tiles))
            )

    def _outer_place(self, place: tirx.Expr) -> list[tuple[Axis, tirx.Expr]]:
        loops = tuple(n for a in self.found.outer for n in a.loops)
        every = Axis(loops, tuple(self.kernel.extents[n] for n in loops))
        values = dict(every.split(place))
        return [(axis, values[axis.loops[0]]) for axis in self.found.outer]

    def _panel(
        self, arguments: Arguments, place: Place, run: Run, group: tirx.Expr, share: tuple[tirx.Expr, int, int]
    ) -> None:
        """Compute one group of columns of some rows."""
        lanes = self.isa.lanes
        number = emit.start_of(run, group)
        starts = [self._start((number + index(v)) * index(lanes)) for v in range(run.size)]
        panel = self._copy(arguments, place, starts) if self.copies else None
        with emit.share_loop(*share) as tile:
            emit.either_run(
                self.row_runs,
                tile,
                lambda rows: self._tile(arguments, place, (run, number, starts, panel), rows, tile),
            )

    def _start(self, column: tirx.Expr) -> tirx.Expr:
        """The start of a vector; a last one that would exceed the end overlaps the previous one."""
        if self.length <= self.isa.lanes:
            return index(0)
        return tirx.min(column, index(self.length - self.isa.lanes)) if self.length % self.isa.lanes else column

    def _tile(
        self,
        arguments: Arguments,
        place: Place,
        panel: tuple[Run, tirx.Expr, list[tirx.Expr], tirx.Buffer | None],
        rows: Run,
        tile: tirx.Expr,
    ) -> None:
        found, lanes = self.found, self.isa.lanes
        run, number, starts, copied = panel
        first = emit.start_of(rows, tile)

        def broadcast(row: tirx.Expr, term: tirx.Expr) -> tirx.Expr:
            flat = arguments.flat(found.numbers.load.source)
            packing = self.packed[0]
            if packing is not None:
                base = self._packed_base(packing, place) + first * index(packing.terms)
                return flat[base + term * index(rows.size) + row]
            where = at(found.numbers.form, [*place, (found.rows, first + row), (found.terms, term)])
            assert where is not None
            return flat[where]

        def loaded(column: int, term: tirx.Expr) -> tirx.Expr:
            if copied is not None:
                return emit.vector(copied, term * index(run.size * lanes) + index(column * lanes), lanes)
            flat = arguments.flat(found.vectors.load.source)
            packing = self.packed[1]
            if packing is not None:
                base = self._packed_base(packing, place) + number * index(lanes * packing.terms)
                return emit.vector(flat, base + term * index(run.size * lanes) + index(column * lanes), lanes)
            where = at(found.vectors.form, [*place, (found.columns, starts[column]), (found.terms, term)])
            assert where is not None
            return emit.vector(flat, where, lanes)

        sums = emit.product_tile(rows.size, run.size, found.terms.length, self.isa, broadcast, loaded)
        store_tile(
            self.kernel,
            arguments,
            sums,
            rows.size,
            lanes,
            lambda row, column, lane: [
                *place,
                (found.rows, first + row),
                (found.columns, starts[column] + lane),
            ],
            lambda column: min(lanes, self.length),
        )

    def _packed_base(self, packing: Panels, place: Place) -> tirx.Expr:
        """The start of the panels of the outer place."""
        side = self.found.numbers if packing is self.packed[0] else self.found.vectors
        total: tirx.Expr = index(0)
        for axis, value in place:
            if side.form.steps[axis.loops[0]]:
                total = total * index(axis.length) + value
        return total * index(packing.block)

    def _copy(self, arguments: Arguments, place: Place, starts: list[tirx.Expr]) -> tirx.Buffer:
        """Copy a panel of the vectors, term by term."""
        found, lanes = self.found, self.isa.lanes
        width = len(starts) * lanes
        copied = emit.scratch(found.terms.length * width)
        flat = arguments.flat(found.vectors.load.source)
        used = min(lanes, self.length)
        row = found.columns.step(found.vectors.form) == 1
        with emit.loop(found.terms.length) as term:
            for column, start in enumerate(starts):
                to = term * index(width) + index(column * lanes)
                if used < lanes:
                    emit.put(copied, emit.zeros(lanes), to, lanes)
                with emit.loop(used, "vectorized" if row else "serial") as lane:
                    where = at(found.vectors.form, [*place, (found.columns, start + lane), (found.terms, term)])
                    assert where is not None
                    build.buffer_store(copied, flat[where], [to + lane])
        return copied

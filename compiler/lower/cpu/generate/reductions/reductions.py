"""Generation of sums, products, maxima and minima over any axes, in vectors along a row of outputs, terms, or both.

A row of terms is combined in several vector accumulators, which are then combined by halves; its last terms use shorter
vectors. Few outputs that follow the terms in memory (sums of the columns of a narrow table) do not fill vectors: these
extend over several terms, and a lane always has the same output. The order of additions differs from the sequential
one, and their error is smaller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import Element, can_store, kept_stages
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.masked import mask, masked_vector
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, at, index, loop_values, offset
from heterocc.compiler.lower.cpu.generate.read import Fold, unless_empty
from heterocc.compiler.lower.cpu.sizes import exceeds, is_number, typical
from heterocc.compiler.lower.kernels.expressions import (
    dtype_of,
    is_conditional,
    is_function,
    loads,
    nodes,
    substituted,
    uses,
)

PARALLEL_TERMS = 1 << 16
"""The smallest number of terms that is divided among threads; one with a function counts as `FUNCTION`."""

FUNCTION = 8
CHAINS = 4
"""The number of accumulators: an addition has a latency of four cycles, and two can start in each."""

FEWEST_ROUNDS = 4
"""The smallest number of uses of each accumulator for which it pays to combine lanes at the end."""


def generate_reduction(kernel: Fold, isa: Isa) -> tuple[tirx.PrimFunc, tuple[Panels, ...]] | None:
    """The kernel written as a reduction in vectors; None if its inputs are not contiguous along a row."""
    reduction = find_reduction(kernel, isa.lanes)
    if reduction is None or not can_store(kernel):
        return None
    writer = _Mixed if reduction.mixed else _Along if reduction.along else _Across
    return emit.written(kernel, {}, writer(kernel, reduction, isa).write), ()


@dataclass(frozen=True, slots=True)
class Reduction:
    """`row` is the axis of vectors: outputs if `along`, else terms. `outer` are the other loops over outputs, `terms`
    those over terms. `value` is the combined expression of arguments.

    If vectors are of terms and outputs in turn, `row` has both, and `mixed` are the outputs.
    """

    outer: Axis
    terms: tuple[int, ...]
    row: Axis
    along: bool
    value: tirx.Expr
    mixed: Axis | None = None


def find_reduction(kernel: Fold, lanes: int) -> Reduction | None:
    """Read a kernel as a reduction whose loads have constant strides along its last output or its last term."""
    value = from_arguments(kernel)
    if value is None:
        return None
    forms = [offset(load.indices, load.source, kernel.loops) for load in loads(value)]
    bare = substituted(value, [], lambda _: tirx.const(0.0, "float32"))
    if not forms or any(f is None for f in forms) or any(uses(bare, v) for v in kernel.loops):
        return None
    every = [f for f in forms if f is not None]
    places = [n for n in kernel.places if kernel.extents[n] > 1]
    terms = [n for n in kernel.terms if kernel.extents[n] > 1]
    mixed = kernel.last_run(places, every)
    row = kernel.last_run([*terms, *mixed.loops], every)
    if len(row.loops) > len(mixed.loops) and _pays(row, mixed, lanes) and all(row.step(f) == 1 for f in every):
        rest = [n for n in places if n not in mixed.loops]
        return Reduction(
            kernel.axis(rest), tuple(n for n in terms if n not in row.loops), row, False, value, mixed=mixed
        )
    for loops, along in ((places, True), (terms, False)):
        steps = {f.steps[loops[-1]] for f in every} if loops else set()
        if steps and steps <= {0, 1} and 1 in steps and not (along and kernel.extents[loops[-1]] < 4):
            row = kernel.last_run(loops, every)
            rest = [n for n in places if n not in row.loops]
            return Reduction(kernel.axis(rest), tuple(n for n in terms if n not in row.loops), row, along, value)
    return None


def _pays(row: Axis, mixed: Axis, lanes: int) -> bool:
    """Whether outputs are too few to fill vectors, and terms enough for accumulators with several of each output."""
    if not (is_number(row.length) and 1 < mixed.length <= lanes):
        return False
    return row.length >= FEWEST_ROUNDS * _accumulators(mixed, lanes) * lanes


def _accumulators(mixed: Axis, lanes: int) -> int:
    """The number of vectors after which lanes have the same outputs again, several times if it is small."""
    period = mixed.length // math.gcd(mixed.length, lanes)
    return period * -(-CHAINS // period)


def from_arguments(kernel: Fold) -> tirx.Expr | None:
    """The combined expression with preceding stages inlined; None if one of them is read under a condition."""

    value = kernel.inlined(kernel.value)
    conditions = any(map(is_conditional, nodes(value)))
    known = all(kernel.argument(load.source) is not None and dtype_of(load) == "float32" for load in loads(value))
    return value if known and not conditions else None


class Writer:
    """The common part of all forms."""

    def __init__(self, kernel: Fold, reduction: Reduction, isa: Isa) -> None:
        self.kernel, self.reduction, self.lanes = kernel, reduction, isa.lanes
        self.masked = isa.has_masks and not is_number(reduction.row.length)
        functions = sum(map(is_function, nodes(reduction.value)))
        self.work = math.prod(kernel.extents) * (1 + FUNCTION * functions)
        self.kind = "parallel" if typical(self.work) >= PARALLEL_TERMS else "serial"

    def value(
        self, arguments: Arguments, place: Place, known: Sequence[tuple[TensorLoad, tirx.Expr]] = ()
    ) -> tirx.Expr:
        """The combined expression at a place of outputs and terms; the values of some loads may be `known`."""
        loops = self.kernel.loops

        def load(read: TensorLoad) -> tirx.Expr:
            for other, value in known:
                if tvm_ffi.structural_equal(other, read):
                    return value
            form = offset(read.indices, read.source, loops)
            where = None if form is None else at(form, place)
            assert where is not None
            return arguments.flat(read.source)[where]

        return substituted(substituted(self.reduction.value, [], load), loop_values(place, loops))

    def outer_place(self, place: tirx.Expr) -> list[tuple[Axis, tirx.Expr]]:
        """The loops over outputs at a task."""
        return [self.single(n, value) for n, value in emit.split(self.reduction.outer, place)]

    def single(self, number: int, value: tirx.Expr) -> tuple[Axis, tirx.Expr]:
        """A single loop as an axis."""
        return Axis((number,), (self.kernel.extents[number],)), value

    def over_terms(self, body: Callable[[list[tuple[Axis, tirx.Expr]]], None]) -> None:
        """`body` in a nest of the loops over terms."""
        with ExitStack() as stack:
            body([self.single(n, stack.enter_context(emit.loop(self.kernel.extents[n]))) for n in self.reduction.terms])

    def start(
        self, arguments: Arguments, buffers: Sequence[tirx.Buffer], first: Callable[[int, tirx.Expr], Place]
    ) -> None:
        """Set registers to the neutral element; those of a maximum or minimum to the first term.

        `first` is the place of the output that a lane of a register belongs to, and of a vector's row.
        """
        terms = [self.single(n, index(0)) for n in self.reduction.terms]
        for number, buffer in enumerate(buffers):
            lanes = int(buffer.shape[0])
            with emit.loop(lanes, "vectorized") as lane:
                value = tirx.const(self.kernel.start, "float32")
                if self.kernel.takes_first:
                    extents = [self.kernel.extents[n] for n in self.kernel.terms]
                    value = unless_empty(extents, self.value(arguments, [*first(number, lane), *terms]), value)
                build.buffer_store(buffer, value, [lane])

    def store(self, arguments: Arguments, total: tirx.Buffer, place: Callable[[tirx.Expr], Place], lanes: int) -> None:
        """Store the results in a register."""
        kept = {n: emit.registers(1, lanes, dtype_of(s.value)) for n, s in kept_stages(self.kernel)}
        with emit.loop(lanes, "vectorized") as lane:
            Element(self.kernel, arguments, total[lane], kept, place(lane), lane).store()


class _Along(Writer):
    """A generator with vectors of outputs: several at a time, over all terms."""

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        row, lanes = self.reduction.row, self.lanes
        while lanes > row.length:
            lanes //= 2
        vectors = -(-row.length // lanes)
        wide = min(CHAINS, typical(vectors))
        tiles = -(-vectors // wide)
        with emit.loop(self.reduction.outer.length * tiles, self.kind) as task:
            outer = self.outer_place(tirx.floordiv(task, index(tiles)) if tiles > 1 else task)
            tile = tirx.floormod(task, index(tiles)) if tiles > 1 else index(0)
            starts = [self._start((tile * index(wide) + index(v)) * index(lanes), lanes) for v in range(wide)]
            totals = [emit.registers(1, lanes) for _ in range(wide)]
            self.start(arguments, totals, lambda number, lane: at_lane(outer, row, starts[number], lane))

            def add(terms: list[tuple[Axis, tirx.Expr]]) -> None:
                for total, start in zip(totals, starts, strict=True):
                    with emit.loop(lanes, "vectorized") as lane:
                        value = self.value(arguments, [*outer, *terms, (row, start + lane)])
                        build.buffer_store(total, self.kernel.combine(total[lane], value), [lane])

            self.over_terms(add)
            for total, start in zip(totals, starts, strict=True):
                self.store(arguments, total, partial(at_lane, outer, row, start), lanes)

    def _start(self, start: tirx.Expr, lanes: int) -> tirx.Expr:
        """The start of a vector; one that would exceed the end overlaps others."""
        last = self.reduction.row.length - lanes
        return tirx.min(start, index(last)) if exceeds(self.reduction.row.length, lanes * CHAINS) else start


def at_lane(outer: Sequence[tuple[Axis, tirx.Expr]], row: Axis, start: tirx.Expr, lane: tirx.Expr) -> Place:
    """The place of a lane of a vector of outputs."""
    return [*outer, (row, start + lane)]


class _Across(Writer):
    """A generator with vectors of terms: one output at a time."""

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        row, lanes = self.reduction.row, self.lanes
        while is_number(row.length) and lanes > row.length:
            lanes //= 2
        whole, tail = divmod(row.length, lanes)
        chains = max(1, min(CHAINS, typical(whole)))
        widths = [w for w in (8, 4, 2, 1) if w < lanes and tail & w] if is_number(tail) else self._narrow(lanes)
        widths = [] if self.masked else widths
        with emit.loop(self.reduction.outer.length, self.kind) as task:
            outer = self.outer_place(task)
            totals = [emit.registers(1, lanes) for _ in range(chains)]
            shorter = {w: emit.registers(1, w) for w in widths}
            # What takes one vector begins with it, but for the first of all: NaN in it is left out when all are merged.
            single = is_number(row.length) and not self.reduction.terms
            once = [
                total
                for number, total in enumerate([*totals[1:], *shorter.values()], 1)
                if single and (number >= chains or whole // chains + (number < whole % chains) == 1)
            ]
            begun = [t for t in (*totals, *shorter.values()) if not any(t.same_as(other) for other in once)]
            self.start(arguments, begun, lambda *_: [*outer, (row, index(0))])

            def add(terms: list[tuple[Axis, tirx.Expr]]) -> None:
                def take(total: tirx.Buffer, start: tirx.Expr, width: int) -> None:
                    with emit.loop(width, "vectorized") as lane:
                        value = self.value(arguments, [*outer, *terms, (row, start + lane)])
                        if not any(total.same_as(other) for other in once):
                            value = self.kernel.combine(total[lane], value)
                        build.buffer_store(total, value, [lane])

                with emit.loop(whole // chains) as number:
                    for chain, total in enumerate(totals):
                        take(total, number * index(chains * lanes) + index(chain * lanes), lanes)
                if not is_number(tail):
                    with emit.loop(whole % chains) as rest:
                        take(totals[0], (index(whole - whole % chains) + rest) * index(lanes), lanes)
                    if self.masked:
                        self._take_last(arguments, totals[-1], [*outer, *terms])
                        return
                    left = 0
                    for width in widths:
                        with emit.loop((tail - left) // width) as rest:
                            take(shorter[width], index(whole * lanes + left) + rest * index(width), width)
                        left = tail - tail % width
                    return
                for rest in range(whole % chains):
                    take(totals[rest], index((whole - whole % chains + rest) * lanes), lanes)
                done = whole * lanes
                for width, total in shorter.items():
                    take(total, index(done), width)
                    done += width

            self.over_terms(add)
            self.store(arguments, self._merged(totals, shorter, lanes), lambda _: outer, 1)

    def _take_last(self, arguments: Arguments, total: tirx.Buffer, place: list[tuple[Axis, tirx.Expr]]) -> None:
        """Add the last terms of a row, which are less than a vector."""
        row, lanes = self.reduction.row, self.lanes
        start, left = index(row.length - row.length % lanes), index(row.length % lanes)
        with build.If(left > index(0)), build.Then():
            read = []
            kept = mask(index(0), lanes, row.length % lanes)
            for load in loads(self.reduction.value):
                form = offset(load.indices, load.source, self.kernel.loops)
                if form is not None and row.step(form):
                    where, register = at(form, [*place, (row, start)]), emit.registers(1, lanes)
                    assert where is not None
                    value = masked_vector(arguments.flat(load.source), where, lanes, kept)
                    emit.put(register, value, index(0), lanes)
                    read.append((load, register))
            with emit.loop(lanes, "vectorized") as lane:
                known = [(load, register[lane]) for load, register in read]
                value = self.value(arguments, [*place, (row, start + lane)], known)
                inside = tirx.Cast("int32", lane) < tirx.Cast("int32", left)
                value = tirx.Select(inside, value, tirx.const(self.kernel.start, "float32"))
                build.buffer_store(total, self.kernel.combine(total[lane], value), [lane])

    @staticmethod
    def _narrow(lanes: int) -> list[int]:
        """Vectors for the last terms of a row of any length."""
        return [4, 1] if lanes > 4 else [1]

    def _merged(self, totals: Sequence[tirx.Buffer], shorter: dict[int, tirx.Buffer], lanes: int) -> tirx.Buffer:
        """One number from all accumulators: vectors first, then halves of a vector."""
        combine = self.kernel.combine
        total = totals[0]
        for other in totals[1:]:
            both = combine(emit.vector(total, index(0), lanes), emit.vector(other, index(0), lanes))
            emit.put(total, both, index(0), lanes)
        while True:
            if lanes in shorter:
                rest = emit.vector(shorter[lanes], index(0), lanes)
                emit.put(total, combine(emit.vector(total, index(0), lanes), rest), index(0), lanes)
            if lanes == 1:
                return total
            lanes //= 2
            half = emit.registers(1, lanes)
            halves = [emit.vector(total, index(place), lanes) for place in (0, lanes)]
            emit.put(half, combine(*halves), index(0), lanes)
            total = half


class _Mixed(Writer):
    """A generator with vectors of terms and outputs in turn: all of the few outputs at a time."""

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        row, lanes, mixed = self.reduction.row, self.lanes, self.reduction.mixed
        assert mixed is not None
        chains = _accumulators(mixed, lanes)
        round_ = chains * lanes
        whole, rest = divmod(row.length, round_)
        more, tail = divmod(rest, lanes)
        with emit.loop(self.reduction.outer.length, self.kind) as task:
            outer = self.outer_place(task)
            totals = [emit.registers(1, lanes) for _ in range(chains)]
            last = emit.registers(1, lanes)

            def first(number: int, lane: tirx.Expr) -> Place:
                # What is left begins in the accumulator that is next in turn.
                before = index((number if number < chains else more) * lanes)
                return [*outer, (row, tirx.floormod(before + lane, index(mixed.length)))]

            self.start(arguments, [*totals, last], first)

            def add(terms: list[tuple[Axis, tirx.Expr]]) -> None:
                def take(total: tirx.Buffer, start: tirx.Expr, kind: str, count: int) -> None:
                    with emit.loop(count, kind) as lane:
                        value = self.value(arguments, [*outer, *terms, (row, start + lane)])
                        build.buffer_store(total, self.kernel.combine(total[lane], value), [lane])

                with emit.loop(whole) as number:
                    for chain, total in enumerate(totals):
                        take(total, number * index(round_) + index(chain * lanes), "vectorized", lanes)
                done = whole * round_
                for chain in range(more):
                    take(totals[chain], index(done + chain * lanes), "vectorized", lanes)
                if tail:
                    take(last, index(done + more * lanes), "serial", tail)

            self.over_terms(add)
            both = self.kernel.combine(emit.vector(totals[more], index(0), lanes), emit.vector(last, index(0), lanes))
            emit.put(totals[more], both, index(0), lanes)
            lines = emit.scratch(round_)
            for chain, total in enumerate(totals):
                emit.put(lines, emit.vector(total, index(0), lanes), index(chain * lanes), lanes)
            with emit.loop(mixed.length) as output:
                result = emit.registers(1, 1)
                build.buffer_store(result, lines[output], [index(0)])
                with emit.loop(round_ // mixed.length - 1) as number:
                    term = lines[(number + index(1)) * index(mixed.length) + output]
                    build.buffer_store(result, self.kernel.combine(result[index(0)], term), [index(0)])
                self.store(arguments, result, partial(at_lane, outer, mixed, output), 1)

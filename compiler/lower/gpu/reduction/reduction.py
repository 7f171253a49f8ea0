"""The schedule for reductions of rows and computations on their results: a work group shares the terms of its rows.

Each item of a group accumulates every n-th term of a row in a register. Then half of the items merge the results of the
other half with theirs, through shared memory, until one is left. This takes log2(n) barriers, does not assume lock
step, and always adds in the same order. Few long rows are shared by several groups: these store partial results, which
the groups of the next kernel merge, again in the same order. Atomic operations are not used.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from math import prod

from tvm import tirx

from heterocc.compiler.lower.gpu import nest
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.gpu.packed import Packed
from heterocc.compiler.lower.gpu.plain import UNROLLED
from heterocc.compiler.lower.gpu.reduction.accumulate import Accumulator, Exprs
from heterocc.compiler.lower.gpu.reduction.reduction_vectors import VectorWriter
from heterocc.compiler.lower.gpu.reduction.row_code import assign, at_element, hoisted
from heterocc.compiler.lower.gpu.reduction.row_form import Axes, Output, Reduction, Rows, multiplies, rows_of
from heterocc.compiler.lower.gpu.reduction.row_lanes import share_of
from heterocc.compiler.lower.gpu.reduction.row_parts import Parts, PartsWriter
from heterocc.compiler.lower.gpu.reduction.teams import MOST_STEPS, Team, teams_of
from heterocc.compiler.lower.kernels.expressions import dtype_of

FEW = 64
"""The most results of a kernel for which several work groups per result are worth reading the operands repeatedly."""

LONG_SUM = 1 << 12
"""The least terms of each such result. On a CPU it pays only if one item would exceed the limit on loop iterations."""


def schedule_few_sums(function: tirx.PrimFunc, limits: Limits, _: Collection[int] = ()) -> Packed | None:
    """The scheduled kernel if it is a few long sums, such as a product of few rows and columns; else None."""
    if limits.vectors or prod(int(n) for n in function.params[-1].ty.shape if isinstance(n, tirx.IntImm)) > FEW:
        return None
    rows = rows_of(function)
    least = 2 * MOST_STEPS if limits.software else LONG_SUM
    if rows is None or rows.length < least or not any(multiplies(r) for r in rows.reductions):
        return None
    return schedule_rows(function, limits)


def schedule_rows(function: tirx.PrimFunc, limits: Limits, _: Collection[int] = ()) -> Packed | None:
    """The scheduled kernel; None if it does not reduce rows, or if each item would sum only a few terms."""
    rows = rows_of(function)
    if rows is None:
        return None
    few = rows.length <= UNROLLED and rows.passes == 1
    if limits.vectors:
        share = share_of(rows)
        if few and (share.lanes.count == 1 or (share.lanes.along == "row" and not share.lanes.vector)):
            return None
        return Packed(VectorWriter(rows, share, limits.grid).kernel(function))
    team = limits.choose("team", teams_of(rows, limits, len(function.params)))
    if team.items == 1 and few and len(rows.reductions[0].accumulator.targets) == 1:
        return None
    return Packed(_Writer(rows, team, limits).kernel(function))


@dataclass(frozen=True, slots=True)
class _Item:
    """The indices of a work item.

    `number` is its index in the group, `row` that of its row in the group, `place` its index among the items of the
    row. `part` is the part of the row that the group reduces, of `parts`. `linear` is the index of the row among all
    rows, `at` the same by the rows' axes. `inside` is the condition that the row exists, None if it always does.
    """

    number: tirx.Expr
    row: tirx.Expr
    place: tirx.Expr
    part: tirx.Expr
    parts: int
    linear: tirx.Expr
    at: list[tirx.Expr]
    inside: tirx.Expr | None


@dataclass
class _Writer(PartsWriter[_Item]):
    """Writes the kernel of one team; `values` are the buffers of a row's results, each with the value in a register."""

    rows: Rows
    team: Team
    limits: Limits
    buffers: list[tirx.Buffer] = field(default_factory=list)
    values: list[tuple[tirx.Buffer, tirx.Expr]] = field(default_factory=list)

    @property
    def parts(self) -> int:
        """The number of groups that share each row."""
        return self.team.parts

    def _launch(self, parts: int, body: Callable[[_Item], list[tirx.Stmt]]) -> tirx.Stmt:
        """Run `body` in all items. Items beyond the last row repeat it, so that all of a group reach the barriers."""
        team, count = self.team, self.rows.count
        groups = -(-count // team.rows) * parts
        open_end = count % team.rows != 0 or nest.beyond(groups, self.limits.grid)

        def item(group: tirx.Expr, number: tirx.Expr) -> tirx.Stmt:
            part = nest.index(0)
            if parts > 1:
                group, part = tirx.floordiv(group, nest.index(parts)), tirx.floormod(group, nest.index(parts))
            if team.across:
                place, row = tirx.floordiv(number, nest.index(team.rows)), tirx.floormod(number, nest.index(team.rows))
            elif team.rows > 1:
                place, row = (
                    tirx.floormod(number, nest.index(team.items)),
                    tirx.floordiv(number, nest.index(team.items)),
                )
            else:
                place, row = number, nest.index(0)
            linear = group * nest.index(team.rows) + row if team.rows > 1 else group
            inside = linear < nest.index(count) if open_end else None
            linear = tirx.min(linear, nest.index(count - 1)) if open_end else linear
            at = nest.split_index(linear, self.rows.extents)
            self.values = []
            return nest.sequence(body(_Item(number, row, place, part, parts, linear, at, inside)))

        def items(group: tirx.Expr) -> tirx.Stmt:
            return nest.launch("threadIdx.x", team.items * team.rows, lambda number: item(group, number))

        return nest.launch_groups(groups, self.limits.grid, items)

    def _whole(self, item: _Item) -> list[tirx.Stmt]:
        """All reductions of a row, then the outputs."""
        steps = []
        for reduction in self.rows.reductions:
            found, results = self._reduced(reduction, item)
            steps += [*found, *self._stored(reduction, results, item)]
            self._know(reduction, results)
        return [*steps, *(self._output(o, item) for o in self.rows.outputs)]

    def _part(self, which: int, left: Parts, item: _Item) -> list[tirx.Stmt]:
        """One reduction of a part of a row, with the results of the earlier reductions."""
        steps = []
        for reduction in self.rows.reductions[:which]:
            found, results = self._gathered(reduction, left, item)
            steps += found
            self._know(reduction, results)
        reduction = self.rows.reductions[which]
        found, results = self._reduced(reduction, item)
        first = _both(item.inside, item.place < nest.index(1) if self.team.items > 1 else None)
        stores = left.stores(reduction, item.linear, item.part, [r[nest.index(0)] for r in results])
        return [*steps, *found, nest.when(first, nest.sequence(stores))]

    def _rest(self, left: Parts, item: _Item) -> list[tirx.Stmt]:
        """The outputs, from the results of all parts."""
        steps = []
        for reduction in self.rows.reductions:
            found, results = self._gathered(reduction, left, item)
            steps += [*found, *self._stored(reduction, results, item)]
            self._know(reduction, results)
        return [*steps, *(self._output(o, item) for o in self.rows.outputs)]

    def _gathered(self, reduction: Reduction, left: Parts, item: _Item) -> tuple[list[tirx.Stmt], list[tirx.Buffer]]:
        """The results of a reduction, merged from those of the parts by every group."""
        alone = dataclasses.replace(item, part=nest.index(0), parts=1)
        return self._accumulated(
            reduction.accumulator, self.team.parts, lambda part: left.loads(reduction, item.linear, part), alone
        )

    def _reduced(self, reduction: Reduction, item: _Item) -> tuple[list[tirx.Stmt], list[tirx.Buffer]]:
        """Reduce the item's part of a row; return the statements and the registers with the results."""
        axes = reduction.axes
        once, named = self._once(reduction.accumulator.terms, axes, item)
        steps, results = self._accumulated(
            reduction.accumulator, axes.length, lambda e: tuple(self._at(t, axes, item, e) for t in named), item
        )
        return [*once, *steps], results

    def _accumulated(
        self, accumulator: Accumulator, length: int, terms: Callable[[tirx.Expr], Exprs], item: _Item
    ) -> tuple[list[tirx.Stmt], list[tirx.Buffer]]:
        sums = [self._buffer(1, d, "local", "part") for d in accumulator.dtypes]
        zero = nest.index(0)
        steps = [tirx.BufferStore(b, v, [zero]) for b, v in zip(sums, accumulator.starts, strict=True)]

        def add(element: tirx.Expr) -> tirx.Stmt:
            merged = accumulator.merge(tuple(b[zero] for b in sums), terms(element))
            return assign(merged, [(b, [zero]) for b in sums])

        steps += self._elements(length, item, add)
        if self.team.items == 1:
            return steps, sums
        results = [self._buffer(1, d, "local", "value") for d in accumulator.dtypes]
        return [*steps, *self._merged(accumulator, sums, results, item)], results

    def _know(self, reduction: Reduction, results: Sequence[tirx.Buffer]) -> None:
        """Replace later loads of the results by the registers."""
        for (buffer, _), result in zip(reduction.accumulator.targets, results, strict=True):
            self.values.append((buffer, result[nest.index(0)].astype(dtype_of(buffer))))

    def _stored(self, reduction: Reduction, results: Sequence[tirx.Buffer], item: _Item) -> list[tirx.Stmt]:
        """Store the results that are outputs of the kernel."""
        zero = nest.index(0)
        first = item.place < nest.index(1) if self.team.items > 1 else None
        first = _both(_both(item.inside, first), item.part < nest.index(1) if item.parts > 1 else None)
        steps = []
        for which in reduction.stored:
            buffer, indices = reduction.accumulator.targets[which]
            place = [self._at(i, reduction.axes, item, zero) for i in indices]
            value = results[which][zero].astype(dtype_of(buffer))
            steps.append(nest.when(first, tirx.BufferStore(buffer, value, place)))
        return steps

    def _merged(
        self, accumulator: Accumulator, sums: list[tirx.Buffer], results: list[tirx.Buffer], item: _Item
    ) -> list[tirx.Stmt]:
        """Merge the partial results of a row's items in shared memory, and load the result in all of them.

        Steps alternate between two arrays, so that an item never writes an element that another still reads.
        """
        team = self.team
        size = team.items * team.rows
        shared, other = ([self._buffer(size, d, "shared", "parts") for d in accumulator.dtypes] for _ in range(2))
        apart = team.rows if team.across else 1
        here, zero = item.number, nest.index(0)
        steps = [tirx.BufferStore(b, s[zero], [here]) for b, s in zip(shared, sums, strict=True)]
        steps.append(nest.barrier())
        half = team.items // 2
        while half:
            far = here + nest.index(half * apart)
            merged = accumulator.merge(tuple(b[here] for b in shared), tuple(b[far] for b in shared))
            steps.append(nest.when(item.place < nest.index(half), assign(merged, [(b, [here]) for b in other])))
            steps.append(nest.barrier())
            shared, other = other, shared
            half //= 2
        first = item.row if team.across else item.row * nest.index(team.items)
        return steps + [tirx.BufferStore(r, b[first], [zero]) for r, b in zip(results, shared, strict=True)]

    def _once(self, exprs: Sequence[tirx.Expr], axes: Axes, item: _Item) -> tuple[list[tirx.Bind], list[tirx.Expr]]:
        """Bindings for the subexpressions that are constant in a row, and the expressions with these replaced."""
        found = [hoisted(e, axes) for e in exprs]
        named = [part for _, parts in found for part in parts]
        return [tirx.Bind(n, self._at(e, axes, item, nest.index(0))) for n, e in named], [e for e, _ in found]

    def _output(self, output: Output, item: _Item) -> tirx.Stmt:
        once, (result,) = self._once([output.store.value], output.axes, item)

        def store(element: tirx.Expr) -> tirx.BufferStore:
            value = self._at(result, output.axes, item, element)
            place = [self._at(i, output.axes, item, element) for i in output.store.indices]
            return tirx.BufferStore(output.store.buffer, value, place)

        return nest.when(item.inside, nest.sequence([*once, *self._elements(output.axes.length, item, store)]))

    def _elements(self, length: int, item: _Item, body: Callable[[tirx.Expr], tirx.Stmt]) -> list[tirx.Stmt]:
        """Run `body` for the item's elements of its group's part of a row."""
        items = self.team.items
        whole, rest = divmod(length, items * item.parts)
        start, place = item.place, item.place
        if item.parts > 1:
            start = item.part * nest.index(whole * items) + item.place
            place = item.part * nest.index(items) + item.place
        steps = []
        if whole:
            steps.append(nest.loop("step", whole, lambda i: body(i * nest.index(items) + start)))
        if rest:
            steps.append(nest.when(place < nest.index(rest), body(nest.index(whole * items * item.parts) + place)))
        return steps

    def _at(self, expr: tirx.Expr, axes: Axes, item: _Item, element: tirx.Expr) -> tirx.Expr:
        return at_element(expr, axes, item.at, element, self.values)

    def _buffer(self, size: int, dtype: str, scope: str, name: str) -> tirx.Buffer:
        buffer = tirx.decl_buffer((size,), dtype, f"{name}{len(self.buffers)}", scope=scope)
        self.buffers.append(buffer)
        return buffer


def _both(first: tirx.Expr | None, second: tirx.Expr | None) -> tirx.Expr | None:
    if first is None or second is None:
        return second if first is None else first
    return tirx.all(first, second)

"""The schedule for reductions of rows, with what is computed from them: a work group shares the terms of its rows.

Each item of a group accumulates every so manyth term of a row in a register; then half of the items take in what the
other half has, through shared memory, until one is left: log2 barriers, nothing assumed in lock step, and always the
same order of additions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvm import tirx

from heterocc.compiler.lower.cpu.blocks import dtype_of, itemsize
from heterocc.compiler.lower.gpu import nest
from heterocc.compiler.lower.gpu.accumulate import Accumulator
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.gpu.packed import Packed
from heterocc.compiler.lower.gpu.plain import UNROLLED
from heterocc.compiler.lower.gpu.reduction_vectors import VectorWriter, lanes_of
from heterocc.compiler.lower.gpu.row_code import assign, at_element, hoisted, steps
from heterocc.compiler.lower.gpu.rows import Axes, Output, Reduction, Rows, rows_of


@dataclass(frozen=True, slots=True)
class Team:
    """A work group: `rows` rows of `items` items each; neighbours in the group are so in the row or `across` rows."""

    items: int
    rows: int
    across: bool


GROUP = 256
"""Most work items of a group: what every device of the last decade takes."""

BUNDLE = 32
"""Items that share an access to memory on GPUs, if they read neighbours."""

BUSY = 1 << 16
"""Work items that keep a large GPU busy."""

TERMS = 4
"""Terms that an item should have at least, for the merging afterwards to be worth it."""

FEW_ROWS = 32
"""Rows below which the cores of a CPU that plays a GPU want several items a row: a vector of them runs side by side."""

MOST_STEPS = 1 << 15
"""Steps of loops that one item may make on such a device: lavapipe ends all loops of a shader after 65535 in all."""


def schedule_rows(function: Any, limits: Limits, _: Collection[int] = ()) -> Packed | None:
    """The scheduled kernel, or None where it reduces no rows, or where each item would sum a few terms on its own."""
    rows = rows_of(function)
    if rows is None:
        return None
    if limits.vectors:
        lanes = lanes_of(rows)
        if lanes.count == 1 and rows.passes == 1:
            return None
        return Packed(VectorWriter(rows, lanes, limits.grid).kernel(function))
    team = _software_team(rows, limits) if limits.software else _team(rows, limits)
    few = rows.length <= UNROLLED and rows.passes == 1 and len(rows.reductions[0].accumulator.targets) == 1
    if team.items == 1 and few:
        return None
    return Packed(_Writer(rows, team, limits).kernel(function))


def _team(rows: Rows, limits: Limits) -> Team:
    """Neighbouring items read neighbours in memory; a row has as many as it takes to keep the device busy."""
    most = _most_items(rows, limits)
    across = _across(rows)
    abreast = min(BUNDLE, _power_up_to(rows.extents[-1]), most) if across else 1
    items = 1 if across or rows.length < BUNDLE else min(BUNDLE, most)
    while items * 2 * abreast <= most and rows.length >= 2 * items * TERMS and rows.count * items < BUSY:
        items *= 2
    if items == 1:
        return Team(1, min(2 * BUNDLE, most), True)
    while not across and items * abreast * 2 <= min(2 * BUNDLE, most) and abreast * 2 <= rows.count:
        abreast *= 2
    return Team(items, abreast, across)


def _software_team(rows: Rows, limits: Limits) -> Team:
    """Barriers cost more than they save where there are rows enough."""
    most = _most_items(rows, limits)
    items = 1 if rows.count >= FEW_ROWS else min(_SIMD, _power_up_to(rows.length), most)
    while items * 2 <= most and rows.passes * rows.length // items > MOST_STEPS:
        items *= 2
    if items == 1:
        return Team(1, min(8 * _SIMD if rows.count >= 64 * _SIMD else _SIMD, most), True)
    return Team(items, 1, False)


_SIMD = 8


def _across(rows: Rows) -> bool:
    """Whether neighbouring rows, rather than neighbours in a row, lie side by side."""
    return bool(rows.extents) and steps(rows, across=True) <= {0, 1} and not steps(rows, across=False) <= {0, 1}


def _most_items(rows: Rows, limits: Limits) -> int:
    """The most items of a group, a power of two: each has its results in shared memory, twice."""
    each = sum(2 * itemsize(d) for r in rows.reductions for d in r.accumulator.dtypes)
    return _power_up_to(max(1, min(GROUP, limits.group, limits.shared // each)))


def _power_up_to(number: int) -> int:
    return 1 << (number.bit_length() - 1)


@dataclass(frozen=True, slots=True)
class _Item:
    """A work item: its number in the group, its row's number there, its place in the row, which row of all this is by
    its axes, and whether there is such a row (None where there always is)."""

    number: Any
    row: Any
    place: Any
    at: list[Any]
    inside: Any


@dataclass
class _Writer:
    """Writes the kernel of one team; `values` are the results of a row, each with the register that has it."""

    rows: Rows
    team: Team
    limits: Limits
    buffers: list[Any] = field(default_factory=list)
    values: list[tuple[Any, Any]] = field(default_factory=list)

    def kernel(self, function: Any) -> Any:
        groups = -(-self.rows.count // self.team.rows)
        partial = self.rows.count % self.team.rows != 0 or nest.beyond(groups, self.limits.grid)

        def items(group: Any) -> Any:
            size = self.team.items * self.team.rows
            return nest.launch("threadIdx.x", size, lambda item: self._item(group, item, partial))

        return nest.kernel(function, self.buffers, nest.launch_groups(groups, self.limits.grid, items))

    def _item(self, group: Any, item: Any, partial: bool) -> Any:
        """All that one item does. Beyond the last row it repeats that one, so that all items meet at barriers."""
        team = self.team
        if team.across:
            place, row = tirx.floordiv(item, nest.index(team.rows)), tirx.floormod(item, nest.index(team.rows))
        elif team.rows > 1:
            place, row = tirx.floormod(item, nest.index(team.items)), tirx.floordiv(item, nest.index(team.items))
        else:
            place, row = item, nest.index(0)
        number = group * nest.index(team.rows) + row if team.rows > 1 else group
        inside = number < nest.index(self.rows.count) if partial else None
        number = tirx.min(number, nest.index(self.rows.count - 1)) if partial else number
        who = _Item(item, row, place, nest.split_index(number, self.rows.extents), inside)
        steps = [step for r in self.rows.reductions for step in self._reduction(r, who)]
        return nest.sequence([*steps, *(self._output(o, who) for o in self.rows.outputs)])

    def _reduction(self, reduction: Reduction, who: _Item) -> list[Any]:
        accumulator = reduction.accumulator
        sums = [self._buffer(1, d, "local", "part") for d in accumulator.dtypes]
        zero = nest.index(0)
        steps = [tirx.BufferStore(b, v, [zero]) for b, v in zip(sums, accumulator.starts, strict=True)]

        once, hoisted_terms = self._once(accumulator.terms, reduction.axes, who)
        steps += once

        def add(element: Any) -> Any:
            terms = tuple(self._at(t, reduction.axes, who, element) for t in hoisted_terms)
            merged = accumulator.merge(tuple(b[zero] for b in sums), terms)
            return assign(merged, [(b, [zero]) for b in sums])

        steps += self._elements(reduction.axes.length, who, add)
        results = sums
        if self.team.items > 1:
            results = [self._buffer(1, d, "local", "value") for d in accumulator.dtypes]
            steps += self._merged(accumulator, sums, results, who)
        for (buffer, _), result in zip(accumulator.targets, results, strict=True):
            self.values.append((buffer, result[zero].astype(dtype_of(buffer))))
        first = _both(who.inside, who.place < nest.index(1) if self.team.items > 1 else None)
        for which in reduction.stored:
            buffer, indices = accumulator.targets[which]
            where = [self._at(i, reduction.axes, who, zero) for i in indices]
            value = results[which][zero].astype(dtype_of(buffer))
            steps.append(nest.when(first, tirx.BufferStore(buffer, value, where)))
        return steps

    def _merged(self, accumulator: Accumulator, sums: list[Any], results: list[Any], who: _Item) -> list[Any]:
        """The partial results of a row's items merged in shared memory, and read by all of them.

        Results go back and forth between two arrays, so that no item writes what another one still reads.
        """
        team = self.team
        size = team.items * team.rows
        shared, other = ([self._buffer(size, d, "shared", "parts") for d in accumulator.dtypes] for _ in range(2))
        apart = team.rows if team.across else 1
        here, zero = who.number, nest.index(0)
        steps = [tirx.BufferStore(b, s[zero], [here]) for b, s in zip(shared, sums, strict=True)]
        steps.append(nest.barrier())
        half = team.items // 2
        while half:
            far = here + nest.index(half * apart)
            merged = accumulator.merge(tuple(b[here] for b in shared), tuple(b[far] for b in shared))
            steps.append(nest.when(who.place < nest.index(half), assign(merged, [(b, [here]) for b in other])))
            steps.append(nest.barrier())
            shared, other = other, shared
            half //= 2
        first = who.row if team.across else who.row * nest.index(team.items)
        return steps + [tirx.BufferStore(r, b[first], [zero]) for r, b in zip(results, shared, strict=True)]

    def _once(self, exprs: Sequence[Any], axes: Axes, who: _Item) -> tuple[list[Any], list[Any]]:
        """What the expressions need once a row, and the expressions with names for it."""
        found = [hoisted(e, axes) for e in exprs]
        named = [part for _, parts in found for part in parts]
        return [tirx.Bind(n, self._at(e, axes, who, nest.index(0))) for n, e in named], [e for e, _ in found]

    def _output(self, output: Output, who: _Item) -> Any:
        once, (result,) = self._once([output.store.value], output.axes, who)

        def store(element: Any) -> Any:
            value = self._at(result, output.axes, who, element)
            where = [self._at(i, output.axes, who, element) for i in output.store.indices]
            return tirx.BufferStore(output.store.buffer, value, where)

        return nest.when(who.inside, nest.sequence([*once, *self._elements(output.axes.length, who, store)]))

    def _elements(self, length: int, who: _Item, body: Callable[[Any], Any]) -> list[Any]:
        """Run `body` for the item's elements of a row."""
        items = self.team.items
        whole, rest = divmod(length, items)
        steps = []
        if whole:
            steps.append(nest.loop("step", whole, lambda i: body(i * nest.index(items) + who.place)))
        if rest:
            steps.append(nest.when(who.place < nest.index(rest), body(nest.index(whole * items) + who.place)))
        return steps

    def _at(self, expr: Any, axes: Axes, who: _Item, element: Any) -> Any:
        return at_element(expr, axes, who.at, element, self.values)

    def _buffer(self, size: int, dtype: str, scope: str, name: str) -> Any:
        buffer = tirx.decl_buffer((size,), dtype, f"{name}{len(self.buffers)}", scope=scope)
        self.buffers.append(buffer)
        return buffer


def _both(first: Any, second: Any) -> Any:
    if first is None or second is None:
        return second if first is None else first
    return tirx.all(first, second)

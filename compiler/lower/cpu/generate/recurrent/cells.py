"""The cells of a recurrent layer: states and outputs from the sums of the gates, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.converters.recurrent.layer import Layer
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.recurrent.arguments import LayerArguments
from heterocc.compiler.lower.cpu.generate.recurrent.groups import Group
from heterocc.compiler.lower.cpu.generate.recurrent.levels import Levels
from heterocc.compiler.lower.cpu.generate.recurrent.sums import Sums
from heterocc.compiler.operators.layers.recurrent import GATES, GRU, LSTM, RNN

_TOGETHER = 2
"""Vectors for which a function is computed together: its steps wait for each other otherwise."""


@dataclass(frozen=True)
class TimeStep:
    """A step, and where the layer's states are: `state` [2, batch, padded].

    The step reads the half `now` and writes the other one. A GRU's update gate and the part of the state that its reset
    gate keeps are [batch, hidden].
    """

    number: tirx.Expr
    now: tirx.Expr
    state: tirx.Buffer
    updates: tirx.Buffer | None
    kept: tirx.Buffer | None


@dataclass(frozen=True)
class _Row:
    """A row of the batch at a step: its place in the sequence, and whether this has not ended, if it may end early."""

    number: tirx.Expr
    time: tirx.Expr
    runs: tirx.Expr | None

    def where_running(self, value: tirx.Expr, other: tirx.Expr) -> tirx.Expr:
        return value if self.runs is None else tirx.Select(self.runs, value, other)


class Cells:
    """Writes the cells of groups of columns."""

    def __init__(self, given: LayerArguments, layer: Layer, sums: Sums, levels: Levels | None, step: TimeStep) -> None:
        self.given, self.layer, self.sums, self.levels, self.step = given, layer, sums, levels, step

    def reset(self, group: Group) -> None:
        """The update gate of a GRU, and the part of the state that the reset gate keeps."""
        f, updates, kept = self.layer.activations[0], self.step.updates, self.step.kept
        assert updates is not None and kept is not None
        for row, column, place in self._each(group):
            update, keeps = (f(self._clipped(self._total(group, row, gate, column))) for gate in (0, 1))
            build.buffer_store(updates, update, [row.number, place])
            build.buffer_store(kept, keeps * self._before(row, place), [row.number, place])

    def write(self, group: Group) -> None:
        """The outputs and the states of a step."""
        find = {RNN: self._simple, GRU: self._gated, LSTM: self._memory}[self.layer.kind]
        for row, column, place in self._each(group):
            value = find(group, row, column, place)
            stored = row.where_running(value, tirx.const(0, self.layer.dtype))
            build.buffer_store(self.given.outputs, stored, [row.time, row.number, place])
            fresh = self.given.outputs[row.time, row.number, place]
            build.buffer_store(
                self.step.state,
                row.where_running(fresh, self._before(row, place)),
                [index(1) - self.step.now, row.number, place],
            )

    def _each(self, group: Group) -> Iterator[tuple[_Row, tirx.Expr, tirx.Expr]]:
        """The rows of the batch and the columns of a group, in vectors: a column in the group, and in the state."""
        with emit.loop(self.given.batch) as row:
            one = self._row(row)
            for start, lanes in self._vectors(group):
                with emit.loop(lanes, "vectorized") as lane:
                    column = index(start) + lane
                    yield one, column, group.first + column

    def _vectors(self, group: Group) -> Iterator[tuple[int, int]]:
        lanes, start = self.sums.phase.lanes, 0
        while start < group.columns:
            left = group.columns - start
            count = lanes * _TOGETHER if left >= lanes * _TOGETHER else min(lanes, left)
            yield start, count
            start += count

    def _row(self, row: tirx.Expr) -> _Row:
        """A row. A sequence that goes backwards begins at its own end."""
        step, steps = self.step.number, index(self.given.steps)
        if self.given.lengths is None:
            return _Row(row, steps - index(1) - step if self.layer.reverse else step, None)
        length = self.given.lengths[row].astype("int64")
        length = build.bind(tirx.max(index(0), tirx.min(length, steps)))
        runs = build.bind(step < length)
        back = tirx.Select(runs, length - index(1) - step, step)
        return _Row(row, emit.bound(back) if self.layer.reverse else step, runs)

    def _input(self, row: _Row, gate: int, place: tirx.Expr) -> tirx.Expr:
        return self.given.projected[row.time, row.number, index(gate * self.layer.hidden) + place]

    def _total(self, group: Group, row: _Row, gate: int, column: tirx.Expr) -> tirx.Expr:
        """What a gate gets from the input and from the state."""
        return self._input(row, gate, group.first + column) + self._from_state(group, row, gate, column)

    def _from_state(self, group: Group, row: _Row, gate: int, column: tirx.Expr) -> tirx.Expr:
        total = self.sums.memory[self.sums.place(group, row.number, gate, column)]
        if self.levels is None:
            return total
        given, levels, place = self.given, self.levels, index(gate * self.layer.hidden) + group.first + column
        assert given.factors is not None and given.totals is not None
        exact = (total - levels.zero[index(0)] * given.totals[place]).astype("float32")
        scaled = exact * given.factors[place]
        if given.offsets is not None and levels.sum is not None:
            scaled = scaled - levels.sum[row.number] * given.offsets[place]
        return scaled * levels.scale[index(0)]

    def _before(self, row: _Row, place: tirx.Expr) -> tirx.Expr:
        return self.step.state[self.step.now, row.number, place]

    def _clipped(self, x: tirx.Expr) -> tirx.Expr:
        if self.layer.clip is None:
            return x
        bound = tirx.const(self.layer.clip, x.ty)
        return tirx.max(-bound, tirx.min(bound, x))

    def _simple(self, group: Group, row: _Row, column: tirx.Expr, place: tirx.Expr) -> tirx.Expr:
        return self.layer.activations[0](self._clipped(self._total(group, row, 0, column)))

    def _gated(self, group: Group, row: _Row, column: tirx.Expr, place: tirx.Expr) -> tirx.Expr:
        layer, bias = self.layer, self.given.bias
        f, g = layer.activations
        if bias is not None:
            update, keeps = (f(self._clipped(self._total(group, row, gate, column))) for gate in (0, 1))
            candidate = keeps * (self._from_state(group, row, 2, column) + bias[place])
            fresh = g(self._clipped(self._input(row, 2, place) + candidate))
        else:
            assert self.step.updates is not None
            update = self.step.updates[row.number, place]
            fresh = g(self._clipped(self._total(group, row, 2, column)))
        return (tirx.const(1, layer.dtype) - update) * fresh + update * self._before(row, place)

    def _memory(self, group: Group, row: _Row, column: tirx.Expr, place: tirx.Expr) -> tirx.Expr:
        """The output of an LSTM, whose cell it writes."""
        layer, at = self.layer, [row.number, place]
        cell = self.given.last[1]
        enters, leaves, stays, fresh = (self._total(group, row, gate, column) for gate in range(GATES[LSTM]))
        f, g, last = layer.activations
        entering = f(self._clipped(self._seen(enters, 0, at, cell)))
        one = tirx.const(1, layer.dtype)
        kept = one - entering if layer.input_forget else f(self._clipped(self._seen(stays, 2, at, cell)))
        made = kept * cell[row.number, place] + entering * g(self._clipped(fresh))
        build.buffer_store(cell, row.where_running(made, cell[row.number, place]), at)
        leaving = f(self._clipped(self._seen(leaves, 1, at, cell)))
        return leaving * last(cell[row.number, place])

    def _seen(self, total: tirx.Expr, gate: int, at: Sequence[tirx.Expr], cell: tirx.Buffer) -> tirx.Expr:
        """A gate's sum, with the part of the cell that the gate sees."""
        peephole = self.given.peephole
        if peephole is None:
            return total
        return total + peephole[index(gate * self.layer.hidden) + at[1]] * cell[at[0], at[1]]

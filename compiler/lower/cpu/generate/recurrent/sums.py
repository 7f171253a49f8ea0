"""The sums of a recurrent layer's step: products of states and weights, for tiles of rows and columns in registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate.emit import bound, broadcast, put, vector
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.recurrent.arguments import number
from heterocc.compiler.lower.cpu.generate.recurrent.groups import Group, Phase, Tiles
from heterocc.compiler.lower.cpu.generate.terms import NUMBERS, in_vectors_of, of_fours


@dataclass(frozen=True)
class Source:
    """The factors of weights: flat rows, `pitch` apart, of the layer's numbers or of bytes."""

    rows: tirx.Buffer
    start: tirx.Expr
    pitch: int


@dataclass(frozen=True)
class Sums:
    """The sums of a phase, in memory: [groups, batch, gates, columns of a group]."""

    phase: Phase
    memory: tirx.Buffer
    batch: tirx.Expr

    def place(self, group: Group, row: tirx.Expr, gate: int, column: tirx.Expr) -> tirx.Expr:
        """Where the sum of a gate and of a column of a group is."""
        gates = self.phase.gates
        start = group.first * self.batch * number(len(gates))
        return start + (row * number(len(gates)) + number(gate - gates.start)) * number(group.stored) + column

    def write(self, tiles: Tiles, source: Source, weights: tirx.Buffer, isa: Isa, group: Group, batches: range) -> None:
        """Write the code that computes the sums of a group, for any of these batches."""
        tiles.each(batches, lambda first, rows: self._tile(group, first, rows, source, weights, isa))

    def clear(self, group: Group) -> None:
        """Write the code for sums of a state of zeros."""
        count = self.batch * number(len(self.phase.gates) * group.stored)
        start = self.place(group, number(0), self.phase.gates.start, number(0))
        with build.serial(number(0), count) as place:
            build.buffer_store(self.memory, tirx.const(0, str(self.memory.dtype)), [start + place])

    def _tile(self, group: Group, first: tirx.Expr, rows: int, source: Source, weights: tirx.Buffer, isa: Isa) -> None:
        phase, lanes = self.phase, self.phase.lanes
        count = phase.vectors(rows, group.stored)
        with build.serial(number(0), number(group.stored // (count * lanes))) as part:
            columns = [part * number(count * lanes) + number(n * lanes) for n in range(count)]
            self._part(group, columns, [first + number(r) for r in range(rows)], source, weights, isa)

    def _part(
        self,
        group: Group,
        columns: Sequence[tirx.Expr],
        rows: Sequence[tirx.Expr],
        source: Source,
        weights: tirx.Buffer,
        isa: Isa,
    ) -> None:
        layer, gates, lanes = self.phase.layer, self.phase.gates, self.phase.lanes
        block, together = layer.block(len(gates)), layer.together
        dtype = str(self.memory.dtype)
        before = gates.start * layer.padded * layer.terms * together
        starts = []
        for column in columns:
            place = group.first + column
            whole = tirx.floordiv(place, number(block)) * number(block * layer.terms * len(gates))
            starts.append(bound(number(before) + (whole + tirx.floormod(place, number(block))) * number(together)))
        totals = {
            (row, gate, n): build.alloc_buffer((lanes,), dtype, scope="global")
            for gate in range(len(gates))
            for n in range(len(columns))
            for row in range(len(rows))
        }
        for total in totals.values():
            put(total, broadcast(tirx.const(0, dtype), lanes), number(0), lanes)
        begins = [bound(source.start + row * number(source.pitch)) for row in rows]
        kind = of_fours(in_vectors_of(lanes, isa)) if layer.narrow else NUMBERS[dtype]
        with build.serial(number(0), number(layer.terms)) as term:
            factors = [kind.number(source.rows, begin + term * number(together)) for begin in begins]
            for gate in range(len(gates)):
                for n, start in enumerate(starts):
                    place = start + (term * number(len(gates)) + number(gate)) * number(block * together)
                    column_ = vector(weights, place, lanes * together)
                    for row, factor in enumerate(factors):
                        total = totals[row, gate, n]
                        put(total, kind.add(vector(total, number(0), lanes), factor, column_), number(0), lanes)
        for (row, gate, n), total in totals.items():
            place = self.place(group, rows[row], gates.start + gate, columns[n])
            put(self.memory, vector(total, number(0), lanes), place, lanes)

"""The sums of a recurrent layer's step: products of states and weights, for tiles of rows and columns in registers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.any_rows import each_tile
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.recurrent.groups import Group, Phase
from heterocc.compiler.lower.cpu.generate.terms import NUMBERS, in_vectors_of, of_fours
from heterocc.compiler.lower.cpu.sizes import Size, is_number


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
    batch: Size

    def place(self, group: Group, row: tirx.Expr, gate: int, column: tirx.Expr) -> tirx.Expr:
        """Where the sum of a gate and of a column of a group is."""
        gates = self.phase.gates
        start = group.first * index(self.batch * len(gates))
        return start + (row * index(len(gates)) + index(gate - gates.start)) * index(group.stored) + column

    def write(self, source: Source, weights: tirx.Buffer, isa: Isa, group: Group) -> None:
        """Write the code that computes the sums of a group."""

        def write_rows(first: tirx.Expr, rows: int) -> None:
            count = self.phase.vectors(rows, group.stored)
            size = count * self.phase.lanes
            with emit.loop(group.stored // size) as part:
                columns = [part * index(size) + index(n * self.phase.lanes) for n in range(count)]
                self._tile(group, columns, first, rows, source, weights, isa)

        each_tile(self.batch, self.phase.rows, write_rows, near=True, among=group.among)

    def _tile(
        self,
        group: Group,
        columns: list[tirx.Expr],
        first: tirx.Expr,
        count: int,
        source: Source,
        weights: tirx.Buffer,
        isa: Isa,
    ) -> None:
        """Compute the sums of all gates for the vectors of some columns, and for so many rows from the first on."""
        layer, gates, lanes = self.phase.layer, self.phase.gates, self.phase.lanes
        block, together = layer.block(len(gates)), layer.together
        before = gates.start * layer.padded * layer.terms * together
        starts = []
        for column in columns:
            place = group.first + column
            whole = tirx.floordiv(place, index(block)) * index(block * layer.terms * len(gates))
            starts.append(emit.bound(index(before) + (whole + tirx.floormod(place, index(block))) * index(together)))
        kind = of_fours(in_vectors_of(lanes, isa)) if layer.narrow else NUMBERS[str(self.memory.dtype)]
        begin = emit.bound(source.start + first * index(source.pitch))

        def factor(row: tirx.Expr, term: tirx.Expr) -> tirx.Expr:
            return kind.number(source.rows, begin + row * index(source.pitch) + term * index(together))

        def loaded(vector: int, term: tirx.Expr) -> tirx.Expr:
            gate, n = divmod(vector, len(columns))
            place = starts[n] + (term * index(len(gates)) + index(gate)) * index(block * together)
            return emit.vector(weights, place, lanes * together)

        vectors = len(gates) * len(columns)
        # Of any batch there are several tiles. With two terms in place of four, AVX2 takes up to 1.4 times as long.
        unroll = emit.UNROLL if is_number(self.batch) or not isa.masks else emit.terms_of_turn(count * vectors * lanes)
        walk = partial(emit.in_turn, unroll=unroll)
        isa = replace(isa, lanes=lanes)
        sums = emit.product_tile(count, vectors, layer.terms, isa, factor, loaded, walk, kind=kind)
        for vector, total in enumerate(sums):
            gate, n = divmod(vector, len(columns))
            with emit.loop(count, "unroll") as row:
                to = self.place(group, first + row, gates.start + gate, columns[n])
                emit.put(self.memory, emit.vector(total, row * index(lanes), lanes), to, lanes)

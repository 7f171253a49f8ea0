"""The writer of attention kernels whose products have factors rounded to bfloat16.

Queries are rounded tile by tile, keys and values head by head, and exponentials row by row, after their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.attention.writer import AttentionWriter
from heterocc.compiler.lower.cpu.generate.bfloat.bfloat_product import round_row, store_turned, turned_row
from heterocc.compiler.lower.cpu.generate.pairs import paired
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.terms import PAIRS


class PairedAttentionWriter(AttentionWriter):
    """A generator of one kernel of fixed sizes, which the constructor writes."""

    kind = PAIRS
    queries: tirx.Buffer
    exponentials: tirx.Buffer

    @property
    def terms(self) -> int:
        """The number of pairs of terms."""
        return -(-self.form.terms // 2)

    @property
    def keys(self) -> int:
        """The number of pairs of keys."""
        return -(-self.form.keys // 2)

    def begin(self) -> None:
        """Allocate the memory for rounded rows."""
        tall = max(r.size for r in self.row_runs)
        self.queries = emit.scratch(tall * emit.spread(self.terms), "int32")
        self.exponentials = emit.scratch(tall * emit.spread(self.keys), "int32")

    def prepare(self, outer: Sequence[tirx.Expr], first: tirx.Expr, rows: int) -> None:
        """Round the queries of a tile of rows."""
        form, base = self.form, self.base(self.form.q, outer)
        with emit.loop(rows) as row:

            def where(term: tirx.Expr, row: tirx.Expr = row) -> tirx.Expr:
                return base + (first + row) * index(form.q.row) + term * index(form.q.column)

            to = (self.queries, row * index(emit.spread(self.terms)))
            round_row(self.arguments[0], where, form.terms, form.q.column == 1, to)

    def finish(self, row: tirx.Expr, scores: tirx.Buffer) -> None:
        """Round a row of exponentials."""
        to = (self.exponentials, row * index(emit.spread(self.keys)))
        round_row(scores, lambda key: row * index(self.pitch) + key, self.form.keys, True, to)

    def query(self, outer: Sequence[tirx.Expr], first: tirx.Expr) -> Callable[[tirx.Expr, tirx.Expr], tirx.Expr]:
        """The pair of a row of the tile and a number of the pair."""
        return lambda row, pair: self.queries[row * index(emit.spread(self.terms)) + pair]

    def exponential(self, scores: tirx.Buffer) -> Callable[[tirx.Expr, tirx.Expr], tirx.Expr]:
        """The pair of a row and a number of the pair."""
        return lambda row, pair: self.exponentials[row * index(emit.spread(self.keys)) + pair]

    def packed_keys(self, outer: Sequence[tirx.Expr]) -> tirx.Buffer:
        """The keys of a head as panels: for each pair of terms vectors of keys."""
        form, lanes = self.form, self.for_keys.lanes
        source, base = self.arguments[1], self.base(form.k, outer)
        packed = emit.scratch(sum(r.count * r.size for r in self.key_runs) * lanes * self.terms, "int32")
        transposes = form.k.row != 1 and form.k.column == 1 and form.keys >= lanes
        transposes = transposes and form.terms % 2 == 0 and form.terms >= 2 * lanes
        for run in self.key_runs:
            with emit.loop(run.count) as panel:
                first = index(run.start) + panel * index(run.size)
                for column in range(run.size):
                    start = self.start(first + index(column), lanes, form.keys)
                    to, pitch = first * index(lanes * self.terms) + index(column * lanes), run.size * lanes
                    if transposes:
                        self._turn_keys(packed, to, pitch, base + start * index(form.k.row))
                        continue

                    def at(term: tirx.Expr, lane: tirx.Expr, start: tirx.Expr = start) -> tirx.Expr:
                        return base + (start + lane) * index(form.k.row) + term * index(form.k.column)

                    filled = (min(lanes, form.keys), form.k.row == 1)
                    with emit.loop(self.terms) as pair:
                        pairs = self._pair(source, at, pair, form.terms, lanes, filled)
                        emit.put(packed, pairs, to + pair * index(pitch), lanes)
        return packed

    def _turn_keys(self, packed: tirx.Buffer, to: tirx.Expr, pitch: int, first: tirx.Expr) -> None:
        """Pack a vector of keys from rows of terms, a square block of pairs at a time."""
        form, lanes = self.form, self.for_keys.lanes
        with emit.loop(-(-form.terms // (2 * lanes))) as block:
            term = tirx.min(block * index(2 * lanes), index(form.terms - 2 * lanes))
            rows = [
                turned_row(self.arguments[1], first + index(number * form.k.row) + term, lanes)
                for number in range(lanes)
            ]
            store_turned(rows, lanes, packed, to + tirx.floordiv(term, index(2)) * index(pitch), pitch)

    def copies_values(self) -> bool:
        """Whether values are packed: always, to round them."""
        return True

    def packed_values(self, outer: Sequence[tirx.Expr]) -> tirx.Buffer:
        """The values of a head, each pair of rows as vectors of columns."""
        form, lanes = self.form, self.for_columns.lanes
        count = -(-form.columns // lanes)
        base = self.base(form.v, outer)
        packed = emit.scratch(self.keys * count * lanes, "int32")
        with emit.loop(self.keys) as pair, emit.loop(count) as column:
            start = self.start(column, lanes, form.columns)

            def at(key: tirx.Expr, lane: tirx.Expr) -> tirx.Expr:
                return base + key * index(form.v.row) + (start + lane) * index(form.v.column)

            filled = (min(lanes, form.columns), form.v.column == 1)
            pairs = self._pair(self.arguments[2], at, pair, form.keys, lanes, filled)
            emit.put(packed, pairs, pair * index(count * lanes) + column * index(lanes), lanes)
        return packed

    @staticmethod
    def _pair(
        source: tirx.Buffer,
        at: Callable[[tirx.Expr, tirx.Expr], tirx.Expr],
        pair: tirx.Expr,
        rows: int,
        lanes: int,
        filled: tuple[int, bool],
    ) -> tirx.Expr:
        """A vector of pairs of two successive of `rows` rows, whose numbers are at `at(row, lane)`.

        `filled` is the number of lanes that are not zero, and whether their numbers lie one beside the other.
        """
        width, beside = filled
        halves = [emit.registers(1, lanes) for _ in range(2)]
        for number, half in enumerate(halves):
            row = pair * index(2) + index(number)
            emit.put(half, emit.zeros(lanes), index(0), lanes)

            def load(half: tirx.Buffer = half, row: tirx.Expr = row) -> None:
                with emit.loop(width, "vectorized" if beside else "serial") as lane:
                    build.buffer_store(half, source[at(row, lane)], [lane])

            if rows % 2 and number:
                with build.If(row < index(rows)), build.Then():
                    load()
            else:
                load()
        return paired(*(emit.vector(half, index(0), lanes) for half in halves))

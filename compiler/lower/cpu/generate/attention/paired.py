"""The writer of attention kernels whose products have factors rounded to bfloat16.

Queries are rounded tile by tile, keys and values head by head, and exponentials row by row, after their sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.attention.writer import AttentionWriter
from heterocc.compiler.lower.cpu.generate.bfloat.bfloat_product import round_row
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.products.copied_columns import copy_pairs
from heterocc.compiler.lower.cpu.generate.terms import PAIRS


class PairedAttentionWriter(AttentionWriter):
    """A generator of one kernel of fixed sizes, which the constructor writes."""

    kind = PAIRS
    copies = staticmethod(copy_pairs)
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

    def copies_values(self) -> bool:
        """Whether values are packed: always, to round them."""
        return True

"""Attention over fewer keys than a vector has lanes, where their number is known only at run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.attention.writer import LOWEST, AttentionWriter
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.masked import mask, masked_vector
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.tiles import Run, runs

ROWS = 4
"""Rows of a tile: few keys come mostly with few queries."""


class ShortAttentionWriter(AttentionWriter):
    """A generator of a kernel whose keys fill one vector in part: the other lanes have no part in sums and maxima."""

    def choose_tiles(self, isa: Isa) -> None:
        """Set the tiles of rows, of keys and of columns, and the distance of rows of scores."""
        self.row_runs, self.key_runs = runs(self.form.rows, ROWS), (Run(0, 0, 1, 1),)
        wide = max(1, (isa.registers - 1) // (ROWS + 1))
        self.column_runs = runs(-(-self.form.columns // self.for_columns.lanes), wide)
        self.pitch = 2 * self.for_keys.lanes

    def packed_keys(self, outer: Sequence[tirx.Expr]) -> tirx.Buffer:
        """The keys of a head, for each term a vector that ends in zeros; where they are if they are in a row there."""
        form, lanes = self.form, self.for_keys.lanes
        source, base = self.arguments[1], self.base(form.k, outer)
        if self._in_place:
            return source
        packed = emit.scratch(lanes * form.terms)
        with emit.loop(form.terms) as term:
            emit.put(packed, emit.zeros(lanes), term * index(lanes), lanes)
        with emit.loop(form.keys) as key, emit.loop(form.terms) as term:
            at = base + key * index(form.k.row) + term * index(form.k.column)
            build.buffer_store(packed, emit.as_float(source[at]), [term * index(lanes) + key])
        return packed

    @property
    def _in_place(self) -> bool:
        """Whether an instruction reads the keys of a term where they are, without what follows them."""
        return self.for_keys.masks and self.form.k.row == 1 and self.form.k.dtype == "float32"

    def _loaded(self, outer: Sequence[tirx.Expr], keys: tirx.Buffer) -> Callable[[int, tirx.Expr], tirx.Expr]:
        form, lanes = self.form, self.for_keys.lanes
        if not self._in_place:
            return lambda _, term: emit.vector(keys, term * index(lanes), lanes)
        base, kept = self.base(form.k, outer), mask(index(0), lanes, form.keys, may_precede=False)
        return lambda _, term: masked_vector(keys, base + term * index(form.k.column), lanes, kept)

    def write_scores(
        self,
        outer: Sequence[tirx.Expr],
        first: tirx.Expr,
        rows: int,
        vector: tirx.Expr,
        vectors: int,
        keys: tirx.Buffer,
        scores: tirx.Buffer,
        top: tirx.Buffer,
    ) -> None:
        """The scores of rows with all keys, and the largest in each lane."""
        lanes, count = self.for_keys.lanes, index(self.form.keys)
        query = self.query(outer, first)
        (sums,) = emit.product_tile(rows, 1, self.terms, self.for_keys, query, self._loaded(outer, keys))
        with emit.loop(rows, "unroll") as row:
            emit.put(scores, emit.vector(sums, row * index(lanes), lanes), row * index(self.pitch), lanes)
        steps = self.steps(outer)
        with emit.loop(rows) as row:
            with emit.loop(self.form.keys) as key:  # one by one: masks end with the last key
                at = row * index(self.pitch) + key
                build.buffer_store(scores, steps(scores[at], first + row, key), [at])
            with emit.loop(lanes, "vectorized") as lane:
                score = scores[row * index(self.pitch) + lane]
                build.buffer_store(
                    top, tirx.Select(lane < count, score, build.float32(LOWEST)), [row * index(lanes) + lane]
                )

"""The writer of attention kernels of float32.

A task packs the keys of one head into panels, then takes tiles of rows: their scores go to a buffer that stays in the
cache, where each row becomes its exponentials; the product with the values is divided by their sum as it is stored.
The scores of all rows are never in memory. If all rows are one tile, as those of one token are, a panel is packed when
its scores are computed: the cache of the first level holds it, and not the packed keys of a long text. For a few rows
keys are not packed at all. What the rows of a tile take no part in at the end of the keys is not computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.attention.description import Attention, Operand
from heterocc.compiler.lower.cpu.generate.epilogue import copied
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.maps.transposes import FEWEST_LANES, sums_of_rows
from heterocc.compiler.lower.cpu.generate.places import index, overlapping
from heterocc.compiler.lower.cpu.generate.products.copied_columns import Columns, copy_columns
from heterocc.compiler.lower.cpu.generate.spans import folded
from heterocc.compiler.lower.cpu.generate.tiles import Run, choose_tile, runs, vector_runs
from heterocc.compiler.lower.cpu.sizes import (
    Dim,
    Size,
    assumed,
    at_least,
    is_number,
    is_one,
    larger,
    may_be_zero,
    smaller,
    typical,
    within,
)

ROWS_A_TASK = 64
"""The smallest number of rows for which keys are packed."""

FEW_HEADS = 4
ROWS_OF_FEW_HEADS = 32
"""The smallest number of rows of fewer than FEW_HEADS heads for which two threads each pack the keys."""

FEW_ROWS = 3
"""The most rows for which keys are read where they are: for more, they are packed in less time than that takes."""

FEWEST_VECTORS = 4
"""The fewest vectors of keys for which masked ones are looked for."""

MOST_ROWS = 14
MOST_ROW_BYTES = 2048
"""The row distance in elements at multiples of which rows compete for the same sets of the cache."""

COPIED = 4
"""Vectors of values that are copied together."""

LOWEST = -3.4028234663852886e38
"""The finite initial value of maxima, so that a row of only -inf gives NaN, as in ONNX Runtime."""


class AttentionWriter:
    """A generator of one kernel, which the constructor writes.

    `outer` is the head of a task, of which it has the packed keys and values, and memory for the scores of a tile.
    `left_out` is the number of vectors of keys at the end that the tile's rows take no part in. `few` keys are less
    than a vector, and take part alone in it: `length` is the number of keys with the others.
    """

    outer: Sequence[tirx.Expr]
    packed_keys: tirx.Buffer | None
    packed_values: tirx.Buffer | None
    scores: tirx.Buffer
    left_out: Size = 0

    def __init__(self, form: Attention, isa: Isa, arguments: Sequence[tirx.Buffer], *, few: bool = False) -> None:
        self.form, self.arguments, self.few = form, arguments, few
        self.for_keys, self.for_columns = isa.narrowed(form.keys), isa.narrowed(form.columns)
        self.length = self.for_keys.lanes if few else form.keys
        self.choose_tiles(isa)
        self._write()

    def choose_tiles(self, isa: Isa) -> None:
        """Set the tiles of rows, of keys and of columns, and the distance of rows of scores."""
        form, lanes = self.form, self.for_keys.lanes
        count = -(-self.length // lanes)
        # Few registers hold tiles of a few rows, into which more than MOST_ROWS are divided better.
        every = is_number(form.rows) and isa.core.few_registers
        rows = 1 if self.few else form.rows if every else min(typical(form.rows), MOST_ROWS)
        tall, wide = choose_tile(rows, count, isa)
        self.row_runs = runs(form.rows, tall, short=False)
        if form.has_a_key_for_each_row and tall <= lanes and not self.few and assumed(at_least(form.keys, lanes)):
            self.row_runs = (Run(0, 0, -(-form.rows // tall), tall, form.rows - tall),)
        self.key_runs = vector_runs(count, 1 if self.reads_keys else wide)
        wide = max(1, (isa.registers - 1) // (tall + 1))
        self.column_runs = runs(-(-form.columns // self.for_columns.lanes), wide)
        # Rows of scores at a distance of a power of two would compete for sets of the cache.
        self.pitch = count * lanes + lanes

    def _write(self) -> None:
        form = self.form
        tiles = sum(r.count for r in self.row_runs)
        heads = math.prod(form.outer)
        most = larger(1, form.rows // ROWS_A_TASK)
        if is_number(form.rows) and is_number(heads) and heads < FEW_HEADS and form.rows >= ROWS_OF_FEW_HEADS:
            most = larger(2, most)
        parts = smaller(emit.shares(form.work, heads, tiles), most)
        with emit.shared_loop(heads * parts, form.work) as task:
            *self.outer, part = emit.unpacked(task, (*form.outer, parts))
            self.packed_keys = None if self.reads_keys else self._keys()
            self.packed_values = self._values() if self.copies_values() else None
            self.scores = emit.scratch(self.row_runs[0].size * self.pitch)
            with emit.share_loop(part, parts, tiles) as tile:
                emit.either_run(self.row_runs, tile, lambda run: self._tile(emit.start_of(run, tile), run.size))

    def base(self, operand: Operand) -> tirx.Expr:
        """The start of an operand's rows at a place of the outer loops."""
        total: tirx.Expr = index(0)
        repeats = operand.repeats or (1,) * len(operand.outer)
        for place, step, repeat in zip(self.outer, operand.outer, repeats, strict=True):
            if not is_number(step) or step:  # one of keys whose number may be 0 is right for that, too
                total = total + (place if repeat == 1 else tirx.floordiv(place, index(repeat))) * index(step)
        return total if all(map(is_number, operand.outer)) else emit.bound(total)

    @staticmethod
    def start(vector: tirx.Expr, lanes: int, length: Size) -> tirx.Expr:
        """The start of a vector; one that would exceed the end overlaps the previous one."""
        start = overlapping(vector * index(lanes), length, lanes)
        return start if is_number(length) else emit.bound(start)

    @property
    def reads_keys(self) -> bool:
        """Whether each row is multiplied by the keys where they are, by a vector of terms of each at a time."""
        form, lanes = self.form, self.for_keys.lanes
        if not is_number(form.terms) or not (self.few or (is_number(form.rows) and form.rows <= FEW_ROWS)):
            return False
        in_a_row = all(is_number(o.column) and o.column == 1 for o in (form.q, form.k)) and form.terms % lanes == 0
        return in_a_row and lanes >= FEWEST_LANES and (self.few or assumed(at_least(form.keys, lanes)))

    @property
    def one_tile(self) -> bool:
        """Whether all rows are one tile."""
        return len(self.row_runs) == 1 and is_number(self.row_runs[0].count) and self.row_runs[0].count == 1

    def _keys(self) -> tirx.Buffer:
        """The keys of a head as panels: for each term vectors of keys. Memory for one panel if rows are one tile."""
        vectors = max(r.size for r in self.key_runs) if self.one_tile else sum(r.count * r.size for r in self.key_runs)
        packed = emit.scratch(vectors * self.for_keys.lanes * self.form.terms)
        if not self.one_tile:
            for run in self.key_runs:
                with emit.loop(run.count) as panel:
                    self._pack_panel(index(run.start) + panel * index(run.size), run.size, packed)
        return packed

    def _pack_panel(self, vector: tirx.Expr, vectors: int, packed: tirx.Buffer) -> None:
        """Pack a panel of so many vectors of keys."""
        form, lanes, k = self.form, self.for_keys.lanes, self.form.k
        whole = lanes == 1 or (not self.few and assumed(at_least(form.keys, lanes)))
        used, once, place = lanes if whole else form.keys, not is_number(form.keys), self._place_of(vector)
        columns = Columns.of(self.arguments[1], self.base(k), form.terms, k.row, k.column, turns=whole and lanes > 1)
        starts = [self.start(vector + index(v), lanes, self.length) for v in range(vectors)]
        copy_columns(columns, (starts, used), lanes, packed, place, vectors * lanes, once=once)

    def _place_of(self, vector: tirx.Expr) -> tirx.Expr:
        """Where the panel that begins with this vector of keys is in their packed form."""
        return index(0) if self.one_tile else vector * index(self.for_keys.lanes * self.form.terms)

    def copies_values(self) -> bool:
        """Whether values are packed: vectors are not contiguous, or many rows read them.

        These would widen values of 16 bits again and again, or compete for the same sets of the cache.
        """
        form = self.form
        if not is_one(form.v.column) or not assumed(at_least(form.columns, self.for_columns.lanes)):
            return True
        compete = typical(form.v.row) * 4 % MOST_ROW_BYTES == 0 and typical(form.keys) > 64
        return not self.few and typical(form.rows) > 16 and (compete or form.v.dtype != "float32")

    def _values(self) -> tirx.Buffer:
        """The values of a head, each row as vectors of columns."""
        form, lanes, v = self.form, self.for_columns.lanes, self.form.v
        count, used = -(-form.columns // lanes), within(lanes, form.columns)
        packed = emit.scratch(form.keys * count * lanes)
        columns = Columns.of(self.arguments[2], self.base(v), form.keys, v.column, v.row, turns=used == lanes > 1)
        for run in runs(count, COPIED):
            with emit.loop(run.count) as panel:
                number = index(run.start) + panel * index(run.size)
                starts = [self.start(number + index(n), lanes, form.columns) for n in range(run.size)]
                copy_columns(columns, (starts, used), lanes, packed, number * index(lanes), count * lanes)
        return packed

    def _tile(self, first: tirx.Expr, rows: int) -> None:
        """A tile of rows: their scores, the exponentials of these, and their product with the values."""
        lanes = self.for_keys.lanes
        top, factors = emit.registers(rows, lanes), emit.registers(rows, 1)
        with emit.loop(rows, "unroll") as row:
            emit.put(top, emit.broadcast(build.float32(LOWEST), lanes), row * index(lanes), lanes)
        self.left_out = self._left_out(first, rows)
        for run in self.key_runs:
            with emit.loop(self._panels(run)) as panel:
                self._write_scores(first, rows, index(run.start) + panel * index(run.size), run.size, top)
        with emit.loop(rows) as row:
            self._exponentials(row, top, factors)
            self._without_empty(first, row, factors)
        for run in self.column_runs:
            with emit.loop(run.count) as panel:
                self._product(first, rows, index(run.start) + panel * index(run.size), run.size, factors)

    def _left_out(self, first: tirx.Expr, rows: int) -> Size:
        """The number of vectors of keys at the end whose scores are -inf in each row of a tile; one vector stays.

        A row that takes part in no key still is a sum of no exponentials: NaN.
        """
        form, lanes = self.form, self.for_keys.lanes
        masks = zip([(s.operand, s) for s in form.steps if s.operand is not None], self.arguments[3:], strict=False)
        never = [(operand, step.kind, mask) for (operand, step), mask in masks if step.number == -math.inf]
        few = is_number(form.rows) and form.rows <= FEW_ROWS
        if not never or few or self.few or typical(form.keys) < FEWEST_VECTORS * lanes:
            return 0
        operand, kind, mask = never[0]
        base = self.base(operand) + first * index(operand.row)
        held, found = emit.cleared(1, 1, "int64"), emit.cleared(1, 1, "int32")
        count, some = held[index(0)], found[index(0)]
        with build.While(tirx.all(some == tirx.const(0, "int32"), count + index(1) < index(form.keys // lanes))):
            in_rows = emit.cleared(1, lanes, "int32")
            start = base + (index(form.keys) - (count + index(1)) * index(lanes)) * index(operand.column)
            with emit.loop(rows, "unroll") as row, emit.loop(lanes, "vectorized") as lane:
                read = mask[start + row * index(operand.row) + lane * index(operand.column)]
                taken = (read if kind == "unless" else tirx.Not(read)).astype("int32")
                build.buffer_store(in_rows, tirx.max(in_rows[lane], taken), [lane])
            emit.put(found, folded(in_rows, lanes, tirx.max)[index(0)], index(0), 1)
            emit.put(held, count + index(1) - some.astype("int64"), index(0), 1)
        return Dim(0, emit.bound(count))

    def _panels(self, run: Run) -> Size:
        """The number of panels of a run that are not left out."""
        if is_number(self.left_out):
            return run.count
        vectors = -(-self.form.keys // self.for_keys.lanes) - self.left_out
        return smaller(run.count, larger(0, -((run.start - vectors) // run.size)))

    def _write_scores(self, first: tirx.Expr, rows: int, vector: tirx.Expr, vectors: int, top: tirx.Buffer) -> None:
        """The scores of rows with a panel of keys, and the largest so far in each lane."""
        form, lanes = self.form, self.for_keys.lanes
        if self.packed_keys is None:
            sums: Sequence[tirx.Buffer] = [self._sums_of_terms(first, rows, vector)]
        else:
            sums = self._sums(first, rows, vector, vectors, self.packed_keys)
        if self.few:
            total = copied(sums[0], rows, lanes)
            with emit.loop(rows) as row, emit.loop(form.keys) as key:
                score, place = self.scores[row * index(self.pitch) + key], row * index(lanes) + key
                build.buffer_store(score.source, self._after_steps(total[place], first + row, key), score.indices)
                build.buffer_store(top, tirx.max(top[place], score), [place])
            return
        for column, total in enumerate(sums):
            start = self.start(vector + index(column), lanes, form.keys)
            with emit.loop(rows, "unroll") as row:
                place = row * index(lanes)
                with emit.loop(within(lanes, form.keys), "vectorized") as lane:
                    value = self._after_steps(total[place + lane], first + row, start + lane)
                    build.buffer_store(total, value, [place + lane])
                with emit.loop(within(lanes, form.keys), "vectorized") as lane:
                    build.buffer_store(self.scores, total[place + lane], [row * index(self.pitch) + start + lane])
                with emit.loop(within(lanes, form.keys), "vectorized") as lane:
                    build.buffer_store(top, tirx.max(top[place + lane], total[place + lane]), [place + lane])

    def _sums(
        self, first: tirx.Expr, rows: int, vector: tirx.Expr, vectors: int, keys: tirx.Buffer
    ) -> Sequence[tirx.Buffer]:
        """The products of rows and a panel of keys."""
        form, lanes = self.form, self.for_keys.lanes
        if self.one_tile:
            self._pack_panel(vector, vectors, keys)
        panel, q, base = self._place_of(vector), self.arguments[0], self.base(form.q)

        def loaded(column: int, term: tirx.Expr) -> tirx.Expr:
            return emit.vector(keys, panel + term * index(vectors * lanes) + index(column * lanes), lanes)

        def query(row: tirx.Expr, term: tirx.Expr) -> tirx.Expr:
            return q[base + (first + row) * index(form.q.row) + term * index(form.q.column)]

        return emit.product_tile(rows, vectors, form.terms, self.for_keys, query, loaded)

    def _sums_of_terms(self, first: tirx.Expr, rows: int, vector: tirx.Expr) -> tirx.Buffer:
        """The products of rows and a vector of keys, which are read where they are."""
        form, lanes, (q, k, *_) = self.form, self.for_keys.lanes, self.arguments
        query, keys = emit.bound(self.base(form.q) + first * index(form.q.row)), self.base(form.k)
        keys = emit.bound(keys + self.start(vector, lanes, self.length) * index(form.k.row))
        total = emit.registers(rows, lanes)

        def sums(row: tirx.Expr, some: Sequence[tirx.Expr]) -> Sequence[tirx.Buffer]:
            products = [emit.cleared(1, lanes) for _ in some]
            with emit.loop(form.terms // lanes) as block:
                term = block * index(lanes)
                one = emit.as_float(emit.vector(q, query + row * index(form.q.row) + term, lanes))
                for key, product in zip(some, products, strict=True):
                    other = emit.as_float(emit.vector(k, keys + key * index(form.k.row) + term, lanes))
                    emit.put(product, emit.vector(product, index(0), lanes) + one * other, index(0), lanes)
            return products

        with emit.loop(rows) as row:
            if self.few:
                with emit.loop(form.keys) as key:
                    emit.put(total, folded(sums(row, [key])[0], lanes, tirx.Add)[index(0)], row * index(lanes) + key, 1)
            else:
                every = sums_of_rows(sums(row, list(map(index, range(lanes)))), lanes)
                emit.put(total, emit.vector(every, index(0), lanes), row * index(lanes), lanes)
        return total

    def _after_steps(self, score: tirx.Expr, row: tirx.Expr, key: tirx.Expr) -> tirx.Expr:
        """The score of a row and a key after all steps."""
        arguments = iter(self.arguments[3:])
        for step in self.form.steps:
            other = None if step.number is None else tirx.const(step.number, "float32")
            if step.operand is not None:
                at = self.base(step.operand)
                at = at + row * index(step.operand.row) + key * index(step.operand.column)
                read = next(arguments)[at]
                if step.kind in ("where", "unless"):
                    pair = (other, score) if step.kind == "where" else (score, other)
                    score = tirx.Select(read, *pair)
                    continue
                other = read
            assert other is not None
            score = {"add": tirx.Add, "multiply": tirx.Mul, "divide": tirx.Div}[step.kind](score, other)
        return score

    def _exponentials(self, row: tirx.Expr, top: tirx.Buffer, factors: tirx.Buffer) -> None:
        """Replace a row of scores by exp(score - largest), and set the row's factor to the inverse of their sum."""
        keys, lanes, scores = self.form.keys, self.for_keys.lanes, self.scores
        largest = folded(emit.register(emit.vector(top, row * index(lanes), lanes), lanes), lanes, tirx.max)
        sums = emit.cleared(2, lanes)
        whole, rest = (0, keys) if self.few else (keys // lanes - self.left_out, keys % lanes)

        def take(vector: tirx.Expr, number: int, *, is_whole: bool = True) -> None:
            at, total = row * index(self.pitch) + vector * index(lanes), index(number * lanes)
            with emit.loop(lanes, "vectorized") as lane:
                value = tirx.exp(scores[at + lane] - largest[index(0)])
                value = value if is_whole else tirx.Select(lane < index(rest), value, build.float32(0.0))
                build.buffer_store(scores, value, [at + lane])
            with emit.loop(lanes, "vectorized") as lane:
                build.buffer_store(sums, sums[total + lane] + scores[at + lane], [total + lane])

        with emit.loop(whole // 2) as pair:
            for number in range(2):
                take(pair * index(2) + index(number), number)
        if not is_number(whole) or whole % 2:
            with emit.loop(whole % 2):
                take(index(whole - 1), 0)
        if not is_number(rest) or rest:
            take(index(whole), 1, is_whole=False)
        factor = build.float32(1.0) / folded(sums, lanes, tirx.Add, chains=2)[index(0)]
        if may_be_zero(keys):  # a product with no values is zero
            factor = tirx.Select(index(keys) > index(0), factor, build.float32(0.0))
        build.buffer_store(factors, factor, [row])

    def _without_empty(self, first: tirx.Expr, row: tirx.Expr, factors: tirx.Buffer) -> None:
        """Set the factor of an empty row to zero; factors of other rows are never zero."""
        factor, zero, empty = factors[row], build.float32(0.0), self.form.empty
        if self.form.empty_if_nan:
            # The largest score has the exponential 1, unless all are -inf: a sum is at least 1, 0 or NaN.
            factor = tirx.Select(tirx.And(factor > zero, factor <= build.float32(1.0)), factor, zero)
        if empty is not None:
            holds = self.arguments[-2][self.base(empty) + (first + row) * index(empty.row)]
            factor = tirx.Select(holds, zero, factor)
        if self.form.empty_if_nan or empty is not None:
            build.buffer_store(factors, factor, [row])

    def _product(self, first: tirx.Expr, rows: int, vector: tirx.Expr, vectors: int, factors: tirx.Buffer) -> None:
        """Rows of exponentials times some vectors of columns of the values, stored."""
        form, lanes = self.form, self.for_columns.lanes
        starts = [self.start(vector + index(c), lanes, form.columns) for c in range(vectors)]
        base, count = self.base(form.v), -(-form.columns // lanes)

        def loaded(column: int, key: tirx.Expr) -> tirx.Expr:
            if self.packed_values is not None:
                place = key * index(count * lanes) + (vector + index(column)) * index(lanes)
                return emit.vector(self.packed_values, place, lanes)
            return emit.as_float(emit.vector(self.arguments[2], base + key * index(form.v.row) + starts[column], lanes))

        def exponential(row: tirx.Expr, key: tirx.Expr) -> tirx.Expr:
            return self.scores[row * index(self.pitch) + key]

        keys = form.keys - self.left_out * self.for_keys.lanes
        sums = emit.product_tile(rows, vectors, keys, self.for_columns, exponential, loaded)
        out, base_out = self.arguments[-1], self.base(form.out)
        for start, total in zip(starts, sums, strict=True):
            with emit.loop(rows, "unroll") as row, emit.loop(within(lanes, form.columns), "vectorized") as lane:
                at = base_out + (first + row) * index(form.out.row) + start + lane
                value = total[row * index(lanes) + lane] * factors[row]
                if form.empty is not None or form.empty_if_nan or may_be_zero(form.keys):
                    zero = build.float32(0.0)
                    value = tirx.Select(tirx.EQ(factors[row], zero), zero, value)
                build.buffer_store(out, value, [at])

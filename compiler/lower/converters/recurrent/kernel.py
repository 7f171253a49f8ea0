"""The kernel of one direction of an LSTM, GRU or RNN: a loop over time whose steps compute products and cell together.

A step takes blocks of the state's columns in turn, in parallel if a step is long enough: all gates of a block are
summed up in registers, for a tile of the batch, and go into the cell from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.converters.recurrent.layer import GATES, STATES, Layer
from heterocc.compiler.lower.written import WRITTEN

_PARALLEL_WORK = 1 << 16
"""The fewest multiply-adds of a step that are divided among threads: two or three microseconds of one, which waits for
weights from a second-level cache."""


def write_layer(layer: Layer) -> tirx.PrimFunc:
    """The kernel `(projected, recurrence, *states, [factors], [offsets], [bias], [peephole], [lengths], outputs, …)`.

    `projected` [steps, batch, gates · hidden] has the products of the inputs and the biases. `recurrence` has the
    weights in the order [blocks, hidden, gates, columns of a block], with zeros behind the last column, of the
    gates of each phase after those of the one before; those of 8 bits are multiplied by the factors [gates ·
    hidden], less the offsets. The bias [hidden] is that of the candidate of a GRU with `linear_before_reset`, the
    peephole weights are [3 · hidden], lengths are [batch]. Outputs are [steps, batch, hidden]; those behind the end
    of a sequence are 0. The last states follow them.
    """
    with IRBuilder() as builder, build.prim_func(s_tir=True):
        build.func_name(layer.kind.lower())
        build.func_attr({"tirx.noalias": True, WRITTEN: True, "op_pattern": 8})
        _Writer(layer).write()
    return builder.get()


@dataclass(frozen=True)
class _Tile:
    """Rows of the batch and columns of the state whose sums are in registers together.

    Its columns are those from `offset` on of a block of `stored`, which begins at column `block`. `lanes` are the
    columns of each of its vectors: those of the last one may be fewer than its sums.
    """

    block: tirx.Expr
    stored: int
    offset: tirx.Expr
    lanes: tuple[int, ...]
    first: tirx.Expr
    rows: int


class _Writer:
    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        gates, hidden = GATES[layer.kind], layer.hidden
        self.gates = gates
        self.steps = tirx.Var("steps", "int64") if layer.steps is None else _index(layer.steps)
        self.batch = tirx.Var("batch", "int64") if layer.batch is None else _index(layer.batch)
        self.projected = self._argument("projected", self.steps, self.batch, gates * hidden)
        self.weights = self._argument("recurrence", gates * layer.padded * hidden, dtype=layer.stored)
        states = STATES[layer.kind]
        self.begin = [self._argument(f"begin{n}", self.batch, hidden) for n in range(states)]
        self.factors = self._argument("factors", gates * hidden) if layer.narrow else None
        self.offsets = self._argument("offsets", gates * hidden) if layer.shifted else None
        self.bias = self._argument("bias", hidden) if layer.linear_before_reset else None
        self.peephole = self._argument("peephole", 3 * hidden) if layer.peephole else None
        self.lengths = build.arg("lengths", build.Buffer((self.batch,), "int32")) if layer.lengths else None
        self.outputs = self._argument("outputs", self.steps, self.batch, hidden)
        self.last = [self._argument(f"last{n}", self.batch, hidden) for n in range(states)]

    def _argument(self, name: str, *shape: tirx.Expr | int, dtype: str | None = None) -> tirx.Buffer:
        return build.arg(name, build.Buffer(_sizes(shape), dtype or self.layer.dtype))

    def write(self) -> None:
        layer = self.layer
        # a step reads the state that the one before wrote, while it writes its own
        self.state = self._scratch(2, self.batch, layer.hidden)
        for source, target in zip(self.begin[1:], self.last[1:], strict=True):
            self._copy(lambda *i, s=source: s[i], lambda value, *i, t=target: build.buffer_store(t, value, [*i]))
        self._copy(
            lambda *i: self.begin[0][i], lambda value, *i: build.buffer_store(self.state, value, [_index(0), *i])
        )
        two_phases = len(layer.phases) > 1
        if two_phases:
            self.updates = self._scratch(self.batch, layer.hidden)
            self.kept = self._scratch(self.batch, layer.hidden)
        with build.serial(_index(0), self.steps) as step:
            self.step = step
            self.now = tirx.floormod(step, _index(2))
            if two_phases:
                self._each_tile(self._reset)
            self._each_tile(self._cell)
        end = tirx.floormod(self.steps, _index(2))
        self._copy(lambda *i: self.state[(end, *i)], lambda value, *i: build.buffer_store(self.last[0], value, [*i]))

    def _scratch(self, *shape: tirx.Expr | int) -> tirx.Buffer:
        return build.alloc_buffer(_sizes(shape), self.layer.dtype, scope="global")

    def _copy(self, source: Callable[..., tirx.Expr], store: Callable[..., None]) -> None:
        columns = _index(self.layer.hidden)
        with build.serial(_index(0), self.batch) as row, build.serial(_index(0), columns) as column:
            store(source(row, column), row, column)

    def _each_tile(self, body: Callable[[_Tile], None]) -> None:
        """Write `body` for all tiles, in a parallel loop if there is enough work."""
        layer = self.layer
        one = layer.hidden * layer.hidden * self.gates
        if len(layer.blocks) == 1 or (layer.batch is not None and layer.batch * one < _PARALLEL_WORK):
            self._each_block(build.serial, body)
        elif layer.batch is not None or one >= _PARALLEL_WORK:
            self._each_block(build.parallel, body)
        else:
            with build.If(self.batch * _index(one) >= _index(_PARALLEL_WORK)):
                with build.Then():
                    self._each_block(build.parallel, body)
                with build.Else():
                    self._each_block(build.serial, body)

    def _each_block(
        self, kind: Callable[..., AbstractContextManager[tirx.Expr]], body: Callable[[_Tile], None]
    ) -> None:
        """Write `body` for the tiles of all blocks, the last of which may have fewer columns."""
        sizes, block = self.layer.blocks, self.layer.block
        whole = len(sizes) - (self.layer.hidden % block != 0)
        with kind(_index(0), _index(len(sizes))) as number:
            first = number * _index(block)
            if whole == len(sizes):
                self._each_row(first, block, block, body)
            elif whole == 0:
                self._each_row(first, sizes[-1], self.layer.hidden, body)
            else:
                with build.If(number < _index(whole)):
                    with build.Then():
                        self._each_row(first, block, block, body)
                    with build.Else():
                        self._each_row(first, sizes[-1], self.layer.hidden % block, body)

    def _each_row(self, first: tirx.Expr, stored: int, columns: int, body: Callable[[_Tile], None]) -> None:
        """Write `body` for the tiles of a block. Single rows behind the last whole tile take all columns at once."""
        layer = self.layer
        rows = _index(layer.rows)
        whole = tirx.floordiv(self.batch, rows) if layer.batch is None else _index(layer.batch // layer.rows)

        def lanes(count: int) -> tuple[int, ...]:
            return tuple(min(layer.vector, count - start) for start in range(0, count, layer.vector))

        def across(row: tirx.Expr, count: int) -> None:
            parts, rest = divmod(columns, layer.width)
            if parts:
                with build.serial(_index(0), _index(parts)) as part:
                    body(_Tile(first, stored, part * _index(layer.width), lanes(layer.width), row, count))
            if rest:
                body(_Tile(first, stored, _index(parts * layer.width), lanes(rest), row, count))

        with build.serial(_index(0), whole) as tile:
            across(tile * rows, layer.rows)
        if layer.batch is None:
            with build.serial(_index(0), self.batch - whole * rows) as row:
                body(_Tile(first, stored, _index(0), lanes(columns), whole * rows + row, 1))
        elif layer.batch % layer.rows:
            across(whole * rows, layer.batch % layer.rows)

    def _sums(
        self,
        source: Callable[[tirx.Expr, tirx.Expr], tirx.Expr],
        start: Mapping[int, Callable[[int, tirx.Expr], tirx.Expr]],
        tile: _Tile,
    ) -> dict[int, list[list[tirx.Buffer]]]:
        """The sums of each gate in `start`, for each row and vector: first values plus products of the source's rows.

        First values are functions of the row of the tile and the column of the state.
        """
        hidden, vector = _index(self.layer.hidden), self.layer.vector
        sums = {
            gate: [
                [build.alloc_buffer((vector,), self.layer.dtype, scope="global") for _ in tile.lanes]
                for _ in range(tile.rows)
            ]
            for gate in start
        }
        parts = [
            (gate, row, number, lanes)
            for gate in start
            for row in range(tile.rows)
            for number, lanes in enumerate(tile.lanes)
        ]
        for gate, row, number, lanes in parts:
            total, known = sums[gate][row][number], 0 if self.factors is not None else lanes
            if known:
                with _lanes(lanes) as lane:
                    build.buffer_store(total, start[gate](row, self._column(tile, number, lane)), [lane])
            if known < vector:
                with _lanes(vector - known) as lane:
                    build.buffer_store(total, tirx.const(0, self.layer.dtype), [_index(known) + lane])
        (gates,) = (phase for phase in self.layer.phases if phase[0] in start)
        before = (_index(gates.start * self.layer.padded) + tile.block * _index(len(gates))) * hidden
        rows = range(tile.rows if self.offsets is not None else 0)
        state_sums = [build.alloc_buffer((1,), self.layer.dtype, scope="global") for _ in rows]
        for total in state_sums:
            build.buffer_store(total, tirx.const(0, self.layer.dtype), [_index(0)])
        with build.serial(_index(0), hidden) as term:
            for row, total in enumerate(state_sums):
                build.buffer_store(total, total[_index(0)] + source(tile.first + _index(row), term), [_index(0)])
            for gate in start:
                begin = (term * _index(len(gates)) + _index(gate - gates.start)) * _index(tile.stored)
                place = before + begin + tile.offset
                for row in range(tile.rows):
                    for number, total in enumerate(sums[gate][row]):
                        with _lanes(vector) as lane:
                            weight = self.weights[place + _index(number * vector) + lane].astype(self.layer.dtype)
                            product = source(tile.first + _index(row), term) * weight
                            build.buffer_store(total, total[lane] + product, [lane])
        if self.factors is not None:
            for gate, row, number, lanes in parts:
                total = sums[gate][row][number]
                with _lanes(lanes) as lane:
                    column = self._column(tile, number, lane)
                    place = _index(gate * self.layer.hidden) + column
                    scaled = total[lane] * self.factors[place]
                    if self.offsets is not None:
                        scaled = scaled - state_sums[row][_index(0)] * self.offsets[place]
                    build.buffer_store(total, start[gate](row, column) + scaled, [lane])
        return sums

    def _column(self, tile: _Tile, number: int, lane: tirx.Expr) -> tirx.Expr:
        """The column of the state in a lane of a vector."""
        return tile.block + tile.offset + _index(number * self.layer.vector) + lane

    def _times(self, tile: _Tile) -> list[tirx.Expr]:
        """The place of the step in the sequence of each row. A sequence that goes backwards begins at its own end."""
        if not self.layer.reverse:
            return [self.step] * tile.rows
        if self.lengths is None:
            return [self.steps - _index(1) - self.step] * tile.rows
        ends = [self._length(tile, row) for row in range(tile.rows)]
        return [build.bind(tirx.Select(self.step < e, e - _index(1) - self.step, self.step)) for e in ends]

    def _length(self, tile: _Tile, row: int) -> tirx.Expr:
        assert self.lengths is not None
        given = self.lengths[tile.first + _index(row)].astype("int64")
        return build.bind(tirx.max(_index(0), tirx.min(given, self.steps)))

    def _given(self, tile: _Tile, times: Sequence[tirx.Expr], gate: int) -> Callable[[int, tirx.Expr], tirx.Expr]:
        offset = _index(gate * self.layer.hidden)
        return lambda row, column: self.projected[times[row], tile.first + _index(row), offset + column]

    def _before(self, row: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
        return self.state[self.now, row, column]

    def _clipped(self, x: tirx.Expr) -> tirx.Expr:
        if self.layer.clip is None:
            return x
        bound = tirx.const(self.layer.clip, x.ty)
        return tirx.max(-bound, tirx.min(bound, x))

    def _reset(self, tile: _Tile) -> None:
        """The update gate of a GRU, and the part of the state that the reset gate keeps."""
        times = self._times(tile)
        sums = self._sums(self._before, {g: self._given(tile, times, g) for g in (0, 1)}, tile)
        f = self.layer.activations[0]
        for row in range(tile.rows):
            for number, lanes in enumerate(tile.lanes):
                with _lanes(lanes) as lane:
                    place = [tile.first + _index(row), self._column(tile, number, lane)]
                    update, kept = (f(self._clipped(sums[gate][row][number][lane])) for gate in (0, 1))
                    build.buffer_store(self.updates, update, place)
                    build.buffer_store(self.kept, kept * self._before(*place), place)

    def _cell(self, tile: _Tile) -> None:
        layer, times = self.layer, self._times(tile)
        gated = layer.kind == "GRU"
        if gated and not layer.linear_before_reset:
            sums = self._sums(lambda r, k: self.kept[r, k], {2: self._given(tile, times, 2)}, tile)
        else:
            start = {g: self._given(tile, times, g) for g in range(self.gates)}
            if gated:
                bias = self.bias
                assert bias is not None
                start[2] = lambda _, column: bias[column]
            sums = self._sums(self._before, start, tile)
        for row in range(tile.rows):
            runs = None if self.lengths is None else build.bind(self.step < self._length(tile, row))

            def where_running(value: tirx.Expr, other: tirx.Expr, runs: tirx.Expr | None = runs) -> tirx.Expr:
                return value if runs is None else tirx.Select(runs, value, other)

            for number, lanes in enumerate(tile.lanes):
                with _lanes(lanes) as lane:
                    place = (tile.first + _index(row), self._column(tile, number, lane))
                    found = self._result(
                        self._given(tile, times, 2)(row, place[1]) if gated else None,
                        place,
                        [sums[g][row][number][lane] if g in sums else None for g in range(self.gates)],
                        where_running,
                    )
                    stored = where_running(found, tirx.const(0, layer.dtype))
                    build.buffer_store(self.outputs, stored, [times[row], *place])
                with _lanes(lanes) as lane:
                    place = (tile.first + _index(row), self._column(tile, number, lane))
                    fresh = where_running(self.outputs[(times[row], *place)], self._before(*place))
                    build.buffer_store(self.state, fresh, [_index(1) - self.now, *place])

    def _result(
        self,
        candidate: tirx.Expr | None,
        place: tuple[tirx.Expr, tirx.Expr],
        sums: Sequence[tirx.Expr | None],
        where_running: Callable[[tirx.Expr, tirx.Expr], tirx.Expr],
    ) -> tirx.Expr:
        """The output of one element, from the sums of its gates, and of a GRU the candidate's part from the input."""
        layer = self.layer
        if layer.kind == "RNN":
            return layer.activations[0](self._clipped(sums[0]))
        if layer.kind == "LSTM":
            return self._memory(place, sums, where_running)
        f, g = layer.activations
        if layer.linear_before_reset:
            update = f(self._clipped(sums[0]))
            fresh = g(self._clipped(candidate + f(self._clipped(sums[1])) * sums[2]))
        else:
            update, fresh = self.updates[place], g(self._clipped(sums[2]))
        return (tirx.const(1, layer.dtype) - update) * fresh + update * self._before(*place)

    def _memory(
        self,
        place: tuple[tirx.Expr, tirx.Expr],
        sums: Sequence[tirx.Expr | None],
        where_running: Callable[[tirx.Expr, tirx.Expr], tirx.Expr],
    ) -> tirx.Expr:
        """The output of an LSTM's element, whose cell it writes."""
        layer, cell = self.layer, self.last[1]
        f, g, last = layer.activations
        enters = f(self._clipped(self._seen(sums[0], 0, place, cell[place])))
        stays = (
            tirx.const(1, layer.dtype) - enters
            if layer.input_forget
            else f(self._clipped(self._seen(sums[2], 2, place, cell[place])))
        )
        fresh = stays * cell[place] + enters * g(self._clipped(sums[3]))
        build.buffer_store(cell, where_running(fresh, cell[place]), [*place])
        leaves = f(self._clipped(self._seen(sums[1], 1, place, cell[place])))
        return leaves * last(cell[place])

    def _seen(self, total: tirx.Expr, gate: int, place: tuple[tirx.Expr, tirx.Expr], cell: tirx.Expr) -> tirx.Expr:
        """A gate's sum, with the part of the cell that the gate sees."""
        if self.peephole is None:
            return total
        return total + self.peephole[_index(gate * self.layer.hidden) + place[1]] * cell


def _lanes(count: int) -> AbstractContextManager[tirx.Expr]:
    kind = build.vectorized if count > 1 else build.serial
    found: AbstractContextManager[tirx.Expr] = kind(_index(0), _index(count))
    return found


def _sizes(shape: Sequence[tirx.Expr | int]) -> tuple[tirx.Expr, ...]:
    return tuple(_index(d) if isinstance(d, int) else d for d in shape)


def _index(value: int) -> tirx.Expr:
    return tirx.const(value, "int64")

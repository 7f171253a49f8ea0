"""The kernel of one direction of an LSTM, GRU or RNN: a loop over time whose steps compute products and cell together.

A step takes blocks of the state's columns in turn, in parallel if a step is long enough: all gates of a block are
summed up in registers, for a tile of the batch, and go into the cell from there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.written import WRITTEN

GATES = MappingProxyType({"LSTM": 4, "GRU": 3, "RNN": 1})
STATES = MappingProxyType({"LSTM": 2, "GRU": 1, "RNN": 1})

_VECTOR = 16
"""The elements of a vector register of 512 bits; smaller registers hold parts of it."""

_SUMS = 16
"""The registers that hold sums."""

_FEWEST_ROWS = 2

_PARALLEL_WORK = 1 << 18
"""The fewest multiply-adds of a step that are divided among threads, about five microseconds of one."""


def _sigmoid(x: tirx.Expr) -> tirx.Expr:
    return tirx.const(1, x.ty) / (tirx.const(1, x.ty) + tirx.exp(-x))


FUNCTIONS: Mapping[str, Callable[[tirx.Expr], tirx.Expr]] = MappingProxyType(
    {"Sigmoid": _sigmoid, "Tanh": tirx.tanh, "Relu": lambda x: tirx.max(x, tirx.const(0, x.ty))}
)


@dataclass(frozen=True)
class Layer:
    """One direction of a layer, for any number of steps or rows if this is None.

    `linear_before_reset` is that of GRU; an LSTM may have peepholes.
    """

    kind: str
    steps: int | None
    batch: int | None
    hidden: int
    reverse: bool
    activations: tuple[str, ...]
    linear_before_reset: bool
    peepholes: bool
    dtype: str

    @property
    def rows(self) -> int:
        """The rows of the batch in a tile; fewer for any batch, as one row should fill half of the registers, too."""
        if self.batch is None:
            return _FEWEST_ROWS
        return min(self.batch, 4 if self.kind == "LSTM" else 8)

    @property
    def width(self) -> int:
        """The columns of a block: a divisor of the state's, so that the sums of a tile fill the registers."""
        most = max(1, _SUMS // (GATES[self.kind] * self.rows)) * _VECTOR
        return max(n for n in range(1, min(self.hidden, most) + 1) if self.hidden % n == 0)


def write_layer(layer: Layer) -> tirx.PrimFunc:
    """The kernel `(projected, recurrence, *states, [bias], [peepholes], outputs, *last states)`.

    `projected` [steps, batch, gates · hidden] has the products of the inputs and the biases. `recurrence` has the
    weights in the order [blocks, hidden, gates, width]. The bias [hidden] is that of the candidate of a GRU with
    `linear_before_reset`; the peepholes [3 · hidden] are those of the input, output and forget gates. Outputs are
    [steps, batch, hidden].
    """
    with IRBuilder() as builder, build.prim_func(s_tir=True):
        build.func_name(layer.kind.lower())
        build.func_attr({"tirx.noalias": True, WRITTEN: True, "op_pattern": 8})
        _Writer(layer).write()
    return builder.get()


class _Writer:
    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        gates, hidden = GATES[layer.kind], layer.hidden
        self.gates = gates
        self.steps = tirx.Var("steps", "int64") if layer.steps is None else _index(layer.steps)
        self.batch = batch = tirx.Var("batch", "int64") if layer.batch is None else _index(layer.batch)
        self.blocks = hidden // layer.width
        self.functions = [FUNCTIONS[name] for name in layer.activations]
        self.projected = self._argument("projected", self.steps, batch, gates * hidden)
        self.weights = self._argument("recurrence", gates * hidden * hidden)
        states = STATES[layer.kind]
        self.begin = [self._argument(f"begin{n}", batch, hidden) for n in range(states)]
        self.bias = self._argument("bias", hidden) if layer.linear_before_reset else None
        self.peepholes = self._argument("peepholes", 3 * hidden) if layer.peepholes else None
        self.outputs = self._argument("outputs", self.steps, batch, hidden)
        self.last = [self._argument(f"last{n}", batch, hidden) for n in range(states)]

    def _argument(self, name: str, *shape: int | tirx.Expr) -> tirx.Buffer:
        return build.arg(name, build.Buffer(_dims(shape), self.layer.dtype))

    def write(self) -> None:
        layer = self.layer
        # a step reads the state that the one before wrote, while it writes its own
        self.state = self._scratch(2, self.batch, layer.hidden)
        for source, target in zip(self.begin[1:], self.last[1:], strict=True):
            self._copy(lambda *i, s=source: s[i], lambda value, *i, t=target: build.buffer_store(t, value, [*i]))
        self._copy(
            lambda *i: self.begin[0][i], lambda value, *i: build.buffer_store(self.state, value, [_index(0), *i])
        )
        two_phases = layer.kind == "GRU" and not layer.linear_before_reset
        if two_phases:
            self.updates = self._scratch(self.batch, layer.hidden)
            self.kept = self._scratch(self.batch, layer.hidden)
        with build.serial(_index(0), self.steps) as step:
            time = self.steps - _index(1) - step if layer.reverse else step
            self.now = tirx.floormod(step, _index(2))
            if two_phases:
                self._each_block(lambda block, row, rows: self._reset(time, block, row, rows))
            self._each_block(lambda block, row, rows: self._cell(time, block, row, rows))
        end = tirx.floormod(self.steps, _index(2))
        self._copy(lambda *i: self.state[(end, *i)], lambda value, *i: build.buffer_store(self.last[0], value, [*i]))

    def _scratch(self, *shape: int | tirx.Expr) -> tirx.Buffer:
        return build.alloc_buffer(_dims(shape), self.layer.dtype, scope="global")

    def _copy(self, source: Callable[..., tirx.Expr], store: Callable[..., None]) -> None:
        columns = _index(self.layer.hidden)
        with build.serial(_index(0), self.batch) as row, build.serial(_index(0), columns) as column:
            store(source(row, column), row, column)

    def _each_block(self, body: Callable[[tirx.Expr, tirx.Expr, int], None]) -> None:
        """Write `body(block, first row, rows)` for all blocks and all tiles of rows."""
        layer = self.layer
        work = (layer.batch or 1) * layer.hidden * layer.hidden * self.gates
        kind = build.parallel if work >= _PARALLEL_WORK and self.blocks > 1 else build.serial
        with kind(_index(0), _index(self.blocks)) as block:
            rows = _index(layer.rows)
            whole = tirx.floordiv(self.batch, rows)
            with build.serial(_index(0), whole) as tile:
                body(block, tile * rows, layer.rows)
            if layer.batch is None:
                with build.serial(_index(0), tirx.floormod(self.batch, rows)) as row:
                    body(block, whole * rows + row, 1)
            elif layer.batch % layer.rows:
                body(block, whole * rows, layer.batch % layer.rows)

    def _sums(
        self,
        source: Callable[[tirx.Expr, tirx.Expr], tirx.Expr],
        start: Mapping[int, Callable[[tirx.Expr, tirx.Expr], tirx.Expr]],
        block: tirx.Expr,
        first: tirx.Expr,
        rows: int,
    ) -> dict[int, list[tirx.Buffer]]:
        """The sums of each gate in `start`, for each row: its first value plus the products of the source's rows."""
        width, hidden = self.layer.width, self.layer.hidden
        sums = {
            gate: [build.alloc_buffer((width,), self.layer.dtype, scope="global") for _ in range(rows)]
            for gate in start
        }
        for gate, value in start.items():
            for row in range(rows):
                with self._lanes() as lane:
                    here = value(first + _index(row), block * _index(width) + lane)
                    build.buffer_store(sums[gate][row], here, [lane])
        with build.serial(_index(0), _index(hidden)) as term:
            for gate in start:
                place = ((block * _index(hidden) + term) * _index(self.gates) + _index(gate)) * _index(width)
                for row in range(rows):
                    total = sums[gate][row]
                    with self._lanes() as lane:
                        product = source(first + _index(row), term) * self.weights[place + lane]
                        build.buffer_store(total, total[lane] + product, [lane])
        return sums

    def _lanes(self) -> AbstractContextManager[tirx.Expr]:
        kind = build.vectorized if self.layer.width > 1 else build.serial
        found: AbstractContextManager[tirx.Expr] = kind(_index(0), _index(self.layer.width))
        return found

    def _given(self, time: tirx.Expr, gate: int) -> Callable[[tirx.Expr, tirx.Expr], tirx.Expr]:
        hidden = self.layer.hidden
        return lambda row, column: self.projected[time, row, _index(gate * hidden) + column]

    def _before(self, row: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
        return self.state[self.now, row, column]

    def _reset(self, time: tirx.Expr, block: tirx.Expr, first: tirx.Expr, rows: int) -> None:
        """The update gate of a GRU, and the part of the state that the reset gate keeps."""
        sums = self._sums(self._before, {g: self._given(time, g) for g in (0, 1)}, block, first, rows)
        f = self.functions[0]
        for row in range(rows):
            with self._lanes() as lane:
                place = [first + _index(row), block * _index(self.layer.width) + lane]
                build.buffer_store(self.updates, f(sums[0][row][lane]), place)
                build.buffer_store(self.kept, f(sums[1][row][lane]) * self._before(*place), place)

    def _cell(self, time: tirx.Expr, block: tirx.Expr, first: tirx.Expr, rows: int) -> None:
        layer = self.layer
        gated = layer.kind == "GRU"
        if gated and not layer.linear_before_reset:
            sums = self._sums(lambda r, k: self.kept[r, k], {2: self._given(time, 2)}, block, first, rows)
        else:
            start = {g: self._given(time, g) for g in range(self.gates)}
            if gated:
                bias = self.bias
                assert bias is not None
                start[2] = lambda _, column: bias[column]
            sums = self._sums(self._before, start, block, first, rows)
        for row in range(rows):
            with self._lanes() as lane:
                place = (first + _index(row), block * _index(layer.width) + lane)
                found = self._result(
                    time, place, [sums[g][row][lane] if g in sums else None for g in range(self.gates)]
                )
                build.buffer_store(self.outputs, found, [time, *place])
            with self._lanes() as lane:
                place = (first + _index(row), block * _index(layer.width) + lane)
                build.buffer_store(self.state, self.outputs[(time, *place)], [_index(1) - self.now, *place])

    def _result(
        self, time: tirx.Expr, place: tuple[tirx.Expr, tirx.Expr], sums: Sequence[tirx.Expr | None]
    ) -> tirx.Expr:
        """The output of one element, from the sums of its gates."""
        if self.layer.kind == "RNN":
            return self.functions[0](sums[0])
        if self.layer.kind == "LSTM":
            f, g, last = self.functions
            cell = self.last[1]
            taken = f(sums[0] + self._peephole(0, place))
            fresh = f(sums[2] + self._peephole(2, place)) * cell[place] + taken * g(sums[3])
            build.buffer_store(cell, fresh, [*place])
            return f(sums[1] + self._peephole(1, place)) * last(cell[place])
        f, g = self.functions
        if self.layer.linear_before_reset:
            update = f(sums[0])
            candidate = g(self._given(time, 2)(*place) + f(sums[1]) * sums[2])
        else:
            update, candidate = self.updates[place], g(sums[2])
        return (tirx.const(1, self.layer.dtype) - update) * candidate + update * self._before(*place)

    def _peephole(self, gate: int, place: tuple[tirx.Expr, tirx.Expr]) -> tirx.Expr:
        """What a gate of an LSTM gets from the cell; 0 without peepholes."""
        if self.peepholes is None:
            return tirx.const(0, self.layer.dtype)
        return self.peepholes[_index(gate * self.layer.hidden) + place[1]] * self.last[1][place]


def _dims(shape: Sequence[int | tirx.Expr]) -> tuple[tirx.Expr, ...]:
    return tuple(_index(n) if isinstance(n, int) else n for n in shape)


def _index(value: int) -> tirx.Expr:
    return tirx.const(value, "int64")

"""Converters of LSTM, GRU and RNN: one matrix product for the inputs of all steps, then one kernel for the recurrence.

The kernel is a loop over time steps: `gates = h · R`, with vectors along the gates, then the cell. It is for CPUs only;
on a GPU, threads would have to synchronise at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import dtype_of, fixed, shape_of
from heterocc.compiler.lower.straight import constant

if TYPE_CHECKING:
    from tvm.ir import TensorLoad


op = relax.op

_WIDTH = 64
"""The most gates that are accumulated together, in four registers of 512 bits."""

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_STATES = {"LSTM": 2, "GRU": 1, "RNN": 1}
_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


@converter("GRU", "LSTM", "RNN")
def recurrent(
    ctx: Context, data: relax.Expr, weight: relax.Expr, recurrence: relax.Expr, *rest: relax.Expr | None
) -> list[relax.Expr]:
    """All directions of one layer: the outputs of every step, and the final states."""
    kind = ctx.node.op_type
    bias, lengths, *states = (*rest, *(None,) * 5)[:4]
    if len(rest) > 4 and rest[4] is not None:
        raise NotImplementedError("peephole weights are not supported")
    by_batch = bool(ctx.attrs.get("layout", 0))
    if by_batch:
        data = op.permute_dims(data, [1, 0, 2])
        states = [None if s is None else op.permute_dims(s, [1, 0, 2]) for s in states]
    data = ctx.bb.normalize(data)
    steps, batch, features = shape_of(data)
    _require_plain(ctx, lengths, steps)
    directions, _, hidden = shape_of(recurrence)
    flat = ctx.bb.emit(op.reshape(data, (steps * batch, features)))
    names = _activations(ctx, directions)
    every: list[relax.Expr] = []
    last: list[list[relax.Expr]] = [[] for _ in range(_STATES[kind])]
    for d in range(directions):
        reverse = d == 1 or ctx.text("direction", "forward") == "reverse"
        projected = op.matmul(flat, op.permute_dims(_slice_of(weight, d)))
        inner = None
        if bias is not None:
            own, half = _slice_of(bias, d), _GATES[kind] * hidden
            outer, inner = (op.strided_slice(own, [0], [b], [b + half], assume_inbound=True) for b in (0, half))
            projected = op.add(projected, outer)
        projected = ctx.bb.emit(op.reshape(projected, (steps, batch, _GATES[kind] * hidden)))
        begin = [_initial(s, d, (batch, hidden), dtype_of(data)) for s in states[: _STATES[kind]]]
        arguments = [projected, op.permute_dims(_slice_of(recurrence, d)), *begin]
        arguments += [] if inner is None else [inner]
        cell = _Layer(kind, steps, batch, hidden, reverse, names[d], bool(ctx.attrs.get("linear_before_reset", 0)))
        found = ctx.bb.emit_te(cell.compute, *(ctx.bb.emit(a) for a in arguments), primfunc_name_hint=kind.lower())
        every.append(op.expand_dims(relax.TupleGetItem(found, 0), 1))
        for index in range(_STATES[kind]):
            last[index].append(op.expand_dims(relax.TupleGetItem(found, 1 + index), 0))
    outputs = [_joined(every, 1), *(_joined(values, 0) for values in last)]
    if by_batch:
        outputs = [op.permute_dims(outputs[0], [2, 0, 1, 3]), *(op.permute_dims(o, [1, 0, 2]) for o in outputs[1:])]
    return outputs[: ctx.outputs]


def _joined(values: Sequence[relax.Expr], axis: int) -> relax.Expr:
    return values[0] if len(values) == 1 else op.concat(list(values), axis)


def _slice_of(value: relax.Expr, direction: int) -> relax.Expr:
    """The slice of a weight or state for one direction."""
    shape = shape_of(value)
    if shape[0] == 1:
        return op.reshape(value, shape[1:])
    part = op.strided_slice(value, axes=[0], begin=[direction], end=[direction + 1], assume_inbound=True)
    return op.reshape(part, shape[1:])


def _initial(state: relax.Expr | None, direction: int, shape: tuple[int, int], dtype: str) -> relax.Expr:
    return constant(np.zeros(shape, dtype)) if state is None else _slice_of(state, direction)


def _require_plain(ctx: Context, lengths: relax.Expr | None, steps: int) -> None:
    known = None if lengths is None else fixed(lengths)
    if lengths is not None and (known is None or np.any(known != steps)):
        raise NotImplementedError("sequences of different lengths are not supported")
    if "clip" in ctx.attrs or ctx.attrs.get("input_forget", 0):
        raise NotImplementedError("clip and input_forget are not supported")
    if "activation_alpha" in ctx.attrs or "activation_beta" in ctx.attrs:
        raise NotImplementedError("activation_alpha and activation_beta are not supported")


def _activations(ctx: Context, directions: int) -> list[tuple[str, ...]]:
    kind = ctx.node.op_type
    given = [a.decode() if isinstance(a, bytes) else str(a) for a in ctx.attrs.get("activations", ())]
    count = len(_DEFAULTS[kind])
    names = [tuple(given[d * count : (d + 1) * count]) if given else _DEFAULTS[kind] for d in range(directions)]
    for name in (n for direction in names for n in direction):
        if name not in _FUNCTIONS:
            raise NotImplementedError(f"activation {name} is not supported")
    return names


def _sigmoid(x: tirx.Expr) -> tirx.Expr:
    return tirx.const(1, x.ty) / (tirx.const(1, x.ty) + tirx.exp(-x))


_FUNCTIONS: Mapping[str, Callable[[tirx.Expr], tirx.Expr]] = MappingProxyType(
    {"Sigmoid": _sigmoid, "Tanh": tirx.tanh, "Relu": lambda x: tirx.max(x, tirx.const(0, x.ty))}
)


class _Layer:
    """One direction of one layer as a loop nest."""

    def __init__(
        self,
        kind: str,
        steps: int,
        batch: int,
        hidden: int,
        reverse: bool,
        activations: tuple[str, ...],
        linear_before_reset: bool,
    ) -> None:
        self.kind, self.steps, self.batch, self.hidden, self.reverse = kind, steps, batch, hidden, reverse
        self.functions = tuple(_FUNCTIONS[name] for name in activations)
        self.linear_before_reset = linear_before_reset

    def compute(self, projected: te.Tensor, recurrence: te.Tensor, *rest: te.Tensor) -> Any:
        """The kernel's result tensors: the outputs of every step, the final states, and the gates (scratch memory)."""
        states = _STATES[self.kind]
        whole = (self.batch, self.hidden)
        gates = (self.batch, _GATES[self.kind] * self.hidden)
        shapes = [(self.steps, *whole), *(whole for _ in range(states)), gates, whole]
        dtype = str(projected.dtype)
        return te.extern(
            shapes,
            [projected, recurrence, *rest],
            lambda ins, outs: self._body(ins, outs, states),
            dtype=[dtype] * len(shapes),
            name=self.kind.lower(),
        )

    def _body(self, ins: Sequence[tirx.Buffer], outs: Sequence[tirx.Buffer], states: int) -> tirx.Stmt:
        projected, recurrence = ins[0], ins[1]
        begin = ins[2 : 2 + states]
        bias = ins[2 + states] if len(ins) > 2 + states else None
        every, kept, gates, reset = outs[0], outs[1 : 1 + states], outs[1 + states], outs[2 + states]
        whole = (self.batch, self.hidden)
        copies = [_loops(whole, partial(_copy, *pair)) for pair in zip(kept, begin, strict=True)]

        def step(t: tirx.Var) -> tirx.Stmt:
            time = tirx.const(self.steps - 1, "int32") - t if self.reverse else t
            return tirx.SeqStmt(self._step(time, projected, recurrence, bias, every, kept, gates, reset))

        return tirx.SeqStmt([*copies, _loop("t", self.steps, step)])

    def _step(
        self,
        time: tirx.Expr,
        projected: tirx.Buffer,
        recurrence: tirx.Buffer,
        bias: tirx.Buffer | None,
        every: tirx.Buffer,
        kept: Sequence[tirx.Buffer],
        gates: tirx.Buffer,
        reset: tirx.Buffer,
    ) -> list[tirx.Stmt]:
        hidden = self.hidden
        whole = (self.batch, hidden)
        state = kept[0]

        def x(i: tuple[tirx.Var, tirx.Var], gate: int) -> TensorLoad:
            return projected[time, i[0], i[1] + gate * hidden]

        def h(i: tuple[tirx.Var, tirx.Var], gate: int) -> TensorLoad:
            return gates[i[0], i[1] + gate * hidden]

        if self.kind == "RNN":
            (f,) = self.functions
            return [
                self._product(gates, state, recurrence, bias, 0, hidden),
                _loops(whole, lambda i: _both(state, every, time, i, f(x(i, 0) + h(i, 0)))),
            ]
        if self.kind == "LSTM":
            f, g, last = self.functions
            cell = kept[1]

            def update(i: tuple[tirx.Var, tirx.Var]) -> tirx.Stmt:
                fresh = f(x(i, 2) + h(i, 2)) * cell[i] + f(x(i, 0) + h(i, 0)) * g(x(i, 3) + h(i, 3))
                out = f(x(i, 1) + h(i, 1)) * last(cell[i])
                return tirx.SeqStmt([_store(cell, fresh, i), _both(state, every, time, i, out)])

            return [self._product(gates, state, recurrence, bias, 0, 4 * hidden), _loops(whole, update)]
        f, g = self.functions

        def blend(i: tuple[tirx.Var, tirx.Var], candidate: tirx.Expr) -> tirx.Stmt:
            z = f(x(i, 0) + h(i, 0))
            return _both(state, every, time, i, (tirx.const(1, z.ty) - z) * g(candidate) + z * state[i])

        if self.linear_before_reset:
            return [
                self._product(gates, state, recurrence, bias, 0, 3 * hidden),
                _loops(whole, lambda i: blend(i, x(i, 2) + f(x(i, 1) + h(i, 1)) * h(i, 2))),
            ]
        return [
            self._product(gates, state, recurrence, bias, 0, 2 * hidden),
            _loops(whole, lambda i: _store(reset, f(x(i, 1) + h(i, 1)) * state[i], i)),
            self._product(gates, reset, recurrence, bias, 2 * hidden, hidden),
            _loops(whole, lambda i: blend(i, x(i, 2) + h(i, 2))),
        ]

    def _product(
        self,
        gates: tirx.Buffer,
        state: tirx.Buffer,
        recurrence: tirx.Buffer,
        bias: tirx.Buffer | None,
        first: int,
        count: int,
    ) -> tirx.Stmt:
        """The statement gates[:, first : first + count] = bias + state · recurrence, for these columns."""
        width = max(n for n in range(1, min(count, _WIDTH) + 1) if count % n == 0)

        def columns(b: tirx.Var, block: tirx.Var) -> tirx.Stmt:
            start = block * width + first

            def begin(j: tirx.Var) -> tirx.BufferStore:
                zero = tirx.const(0, gates.dtype)
                return _store(gates, zero if bias is None else bias[start + j], (b, start + j))

            def add(k: tirx.Var) -> tirx.Stmt:
                def lane(j: tirx.Var) -> tirx.BufferStore:
                    total = gates[b, start + j] + state[b, k] * recurrence[k, start + j]
                    return _store(gates, total, (b, start + j))

                return _loop("j", width, lane, vector=True)

            return tirx.SeqStmt([_loop("j", width, begin, vector=True), _loop("k", self.hidden, add)])

        return _loop("b", self.batch, lambda b: _loop("block", count // width, lambda block: columns(b, block)))


def _loop(name: str, extent: int, body: Callable[[tirx.Var], tirx.Stmt], vector: bool = False) -> tirx.Stmt:
    var = tirx.Var(name, "int32")
    kind = tirx.ForKind.VECTORIZED if vector and extent > 1 else tirx.ForKind.SERIAL
    return tirx.For(var, tirx.const(0, "int32"), tirx.const(extent, "int32"), kind, body(var))


def _loops(shape: tuple[int, int], body: Callable[[tuple[tirx.Var, tirx.Var]], tirx.Stmt]) -> tirx.Stmt:
    return _loop("i", shape[0], lambda i: _loop("j", shape[1], lambda j: body((i, j))))


def _store(buffer: tirx.Buffer, value: tirx.Expr, index: tuple[tirx.Expr, ...]) -> tirx.BufferStore:
    return tirx.BufferStore(buffer, value, list(index))


def _copy(target: tirx.Buffer, source: tirx.Buffer, index: tuple[tirx.Var, tirx.Var]) -> tirx.BufferStore:
    return _store(target, source[index], index)


def _both(
    state: tirx.Buffer, every: tirx.Buffer, time: tirx.Expr, index: tuple[tirx.Var, tirx.Var], value: tirx.Expr
) -> tirx.Stmt:
    """Store a value as the new state and as the output of this step."""
    return tirx.SeqStmt([_store(state, value, index), _store(every, state[index], (time, *index))])

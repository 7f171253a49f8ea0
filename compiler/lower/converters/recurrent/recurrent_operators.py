"""Converters of LSTM, GRU and RNN: one matrix product for the inputs of all steps, then one kernel for the recurrence.

The kernel is for CPUs only; on a GPU, threads would have to synchronise at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from heterocc.compiler.lower.converters.checked_places import checked_lengths
from heterocc.compiler.lower.converters.recurrent.layer import Activation, Layer, activations
from heterocc.compiler.lower.converters.recurrent.request import recurrent_request
from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, fixed, shape_of
from heterocc.compiler.lower.straight import constant
from heterocc.compiler.operators.layers.recurrent import GATES, GRU, LSTM, RNN, STATES

op = relax.op

_DEFAULTS = {LSTM: ("Sigmoid", "Tanh", "Tanh"), GRU: ("Sigmoid", "Tanh"), RNN: ("Tanh",)}

Projection = Callable[[relax.Expr, int], relax.Expr]
"""The products of inputs [steps · batch, features] and the weights of a direction, by its number."""


@dataclass(frozen=True)
class Recurrence:
    """The recurrence weights [directions, gates · hidden, hidden].

    Those of integers are multiplied by `factors` [directions, gates · hidden] of the layer's type, less `offsets` of
    the same form if their zero points are not zero; `totals` of the same form are the sums of their columns.
    """

    weight: relax.Expr
    factors: relax.Expr | None = None
    totals: relax.Expr | None = None
    offsets: relax.Expr | None = None


@dataclass(frozen=True)
class _Inputs:
    """The inputs of all directions; `data` is [steps · batch, features]."""

    data: relax.Expr
    project: Projection
    recurrence: Recurrence
    bias: relax.Expr | None
    lengths: relax.Expr | None
    states: Sequence[relax.Expr | None]
    peephole: relax.Expr | None


@converter(*GATES)
def recurrent(
    ctx: Context, data: relax.Expr, weight: relax.Expr, recurrence: relax.Expr, *rest: relax.Expr | None
) -> list[relax.Expr]:
    """All directions of one layer: the outputs of every step, and the final states."""

    def project(flat: relax.Expr, number: int) -> relax.Expr:
        return op.matmul(flat, op.permute_dims(_slice_of(weight, number)))

    return layer_of(ctx, ctx.node.op_type, data, project, Recurrence(recurrence), *rest)


def layer_of(
    ctx: Context,
    kind: str,
    data: relax.Expr,
    project: Projection,
    recurrence: Recurrence,
    *rest: relax.Expr | None,
    dtype: str | None = None,
) -> list[relax.Expr]:
    """The outputs of a layer of this kind with the node's attributes, in `dtype`, by default that of the data."""
    if ctx.backend != "cpu":
        raise NotImplementedError("recurrent layers run on CPUs only")
    bias, lengths, *states, peephole = (*rest, *(None,) * 5)[: 3 + STATES[kind]]
    by_batch = bool(ctx.attrs.get("layout", 0))
    if by_batch:
        data = op.permute_dims(data, [1, 0, 2])
        states = [None if s is None else ctx.bb.emit(op.permute_dims(s, [1, 0, 2])) for s in states]
    data = ctx.bb.normalize(data)
    steps, batch, width = dims_of(data)
    flat = ctx.bb.emit(op.reshape(data, (steps * batch, width)))
    lengths = None if lengths is None or _are_all(lengths, steps) else checked_lengths(ctx, lengths, steps)
    given = _Inputs(flat, project, recurrence, bias, lengths, states, peephole)
    directions, _, hidden = shape_of(recurrence.weight)
    found = []
    for d, functions in enumerate(_activations(ctx, kind, directions)):
        layer = Layer(
            kind,
            steps if isinstance(steps, int) else None,
            batch if isinstance(batch, int) else None,
            hidden,
            d == 1 or ctx.text("direction", "forward") == "reverse",
            functions,
            kind == GRU and bool(ctx.attrs.get("linear_before_reset", 0)),
            dtype or dtype_of(data),
            ctx.attrs.get("clip"),
            bool(ctx.attrs.get("input_forget", 0)),
            peephole is not None,
            given.lengths is not None,
            recurrence.factors is not None,
            recurrence.offsets is not None,
            any(s is not None for s in given.states[: STATES[kind]]),
        )
        found.append(_direction(ctx, layer, given, d, (steps, batch)))
    outputs = [
        _joined([op.expand_dims(f[n], 0 if n else 1) for f in found], 0 if n else 1) for n in range(len(found[0]))
    ]
    if by_batch:
        outputs = [op.permute_dims(outputs[0], [2, 0, 1, 3]), *(op.permute_dims(o, [1, 0, 2]) for o in outputs[1:])]
    return outputs[: ctx.outputs]


def _direction(ctx: Context, layer: Layer, given: _Inputs, number: int, sizes: tuple[Any, Any]) -> list[relax.Expr]:
    """The outputs [steps, batch, hidden] and the final states [batch, hidden] of a direction."""
    kind, hidden, (steps, batch) = layer.kind, layer.hidden, sizes
    gated = GATES[kind] * hidden
    projected = given.project(given.data, number)
    scales = (given.recurrence.factors, given.recurrence.totals, given.recurrence.offsets)
    extra = [_slice_of(numbers, number) for numbers in scales if numbers is not None]
    if given.bias is not None:
        own = ctx.bb.emit(_slice_of(given.bias, number))
        outer, inner = (ctx.bb.emit(_part(own, begin, gated)) for begin in (0, gated))
        if layer.linear_before_reset:
            extra.append(_part(inner, 2 * hidden, hidden))
            inner = op.concat([_part(inner, 0, 2 * hidden), _zeros((hidden,), layer)], 0)
        projected = op.add(projected, op.add(outer, inner))
    elif layer.linear_before_reset:
        extra.append(_zeros((hidden,), layer))
    extra += [] if given.peephole is None else [_slice_of(given.peephole, number)]
    extra += [] if given.lengths is None else [given.lengths]
    projected = ctx.bb.emit(op.reshape(projected, (steps, batch, gated)))
    states = given.states[: STATES[kind]] if layer.begins else ()
    begin = [_initial(s, number, (batch, hidden), layer.dtype) for s in states]
    arguments = [projected, _in_blocks(ctx, _slice_of(given.recurrence.weight, number), layer), *begin, *extra]
    kernel = ctx.bb.add_func(recurrent_request(layer), kind.lower())
    types = [
        relax.TensorType(shape, layer.dtype) for shape in [(steps, batch, hidden), *[(batch, hidden)] * STATES[kind]]
    ]
    found = ctx.bb.emit(relax.call_tir(kernel, [ctx.bb.emit(a) for a in arguments], types))
    return [relax.TupleGetItem(found, n) for n in range(len(types))]


def _part(value: relax.Expr, begin: int, count: int) -> relax.Expr:
    return op.strided_slice(value, [0], [begin], [begin + count], assume_inbound=True)


def _in_blocks(ctx: Context, weight: relax.Expr, layer: Layer) -> relax.Expr:
    """The weights [gates · hidden, hidden] in the order that the kernel reads."""
    gates, hidden, width = GATES[layer.kind], layer.hidden, layer.terms * layer.together
    parts = ctx.bb.emit(op.reshape(weight, (gates, hidden, hidden)))
    for axis, size in ((1, layer.padded), (2, width)):
        if size > hidden:
            shape = [*dims_of(parts)]
            shape[axis] = size - hidden
            parts = ctx.bb.emit(op.concat([parts, constant(np.zeros(shape, layer.stored))], axis))
    found = []
    for phase in layer.phases:
        some = ctx.bb.emit(op.strided_slice(parts, [0], [phase.start], [phase.stop], assume_inbound=True))
        block = layer.block(len(phase))
        split = (len(phase), layer.padded // block, block, layer.terms, layer.together)
        ordered = op.permute_dims(ctx.bb.emit(op.reshape(some, split)), [1, 3, 0, 2, 4])
        found.append(ctx.bb.emit(op.reshape(ctx.bb.emit(ordered), (-1,))))
    return _joined(found, 0)


def _zeros(shape: Sequence[int], layer: Layer) -> relax.Expr:
    """Zeros as a constant: what is computed from them and from weights is computed at compile time."""
    return constant(np.zeros(tuple(shape), layer.dtype))


def _joined(values: Sequence[relax.Expr], axis: int) -> relax.Expr:
    return values[0] if len(values) == 1 else op.concat(list(values), axis)


def _slice_of(value: relax.Expr, direction: int) -> relax.Expr:
    """The slice of a weight or state for one direction."""
    shape = dims_of(value)
    if shape[0] == 1:
        return op.reshape(value, shape[1:])
    part = op.strided_slice(value, axes=[0], begin=[direction], end=[direction + 1], assume_inbound=True)
    return op.reshape(part, shape[1:])


def _initial(state: relax.Expr | None, direction: int, shape: tuple[Any, int], dtype: str) -> relax.Expr:
    if state is not None:
        return _slice_of(state, direction)
    return constant(np.zeros(shape, dtype)) if isinstance(shape[0], int) else op.zeros(shape, dtype)


def _are_all(lengths: relax.Expr, steps: Any) -> bool:
    """Whether no sequence ends before the last step."""
    known = fixed(lengths)
    return isinstance(steps, int) and known is not None and bool(np.all(known == steps))


def _activations(ctx: Context, kind: str, directions: int) -> list[tuple[Activation, ...]]:
    """The activation functions of each direction."""
    default = _DEFAULTS[kind]
    given = [a.decode() if isinstance(a, bytes) else str(a) for a in ctx.attrs.get("activations", ())]
    parameters = (list(ctx.attrs.get(f"activation_{name}", ())) for name in ("alpha", "beta"))
    made = activations(given or default * directions, *parameters)
    return [tuple(made[d * len(default) : (d + 1) * len(default)]) for d in range(directions)]

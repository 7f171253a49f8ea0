"""Converters of LSTM, GRU and RNN: one matrix product for the inputs of all steps, then one kernel for the recurrence.

The kernel is for CPUs only; on a GPU, threads would have to synchronise at every step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from heterocc.compiler.lower.converters.recurrent.kernel import FUNCTIONS, GATES, STATES, Layer, write_layer
from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, fixed, fixed_size, shape_of
from heterocc.compiler.lower.straight import constant
from heterocc.compiler.lower.variables import Extent

op = relax.op

_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


@converter("GRU", "LSTM", "RNN")
def recurrent(
    ctx: Context, data: relax.Expr, weight: relax.Expr, recurrence: relax.Expr, *rest: relax.Expr | None
) -> list[relax.Expr]:
    """All directions of one layer: the outputs of every step, and the final states."""
    kind = ctx.node.op_type
    if ctx.backend != "cpu":
        raise NotImplementedError("recurrent layers run on CPUs only")
    bias, lengths, *states = (*rest, *(None,) * 5)[:4]
    peepholes = rest[4] if len(rest) > 4 else None
    by_batch = bool(ctx.attrs.get("layout", 0))
    if by_batch:
        data = op.permute_dims(data, [1, 0, 2])
        states = [None if s is None else ctx.bb.emit(op.permute_dims(s, [1, 0, 2])) for s in states]
    data = ctx.bb.normalize(data)
    steps, batch, _ = dims_of(data)
    features = fixed_size(data, 2)
    _require_plain(ctx, lengths, steps)
    directions, _, hidden = shape_of(recurrence)
    flat = ctx.bb.emit(op.reshape(data, (steps * batch, features)))
    names = _activations(ctx, directions)
    resets_later = kind == "GRU" and bool(ctx.attrs.get("linear_before_reset", 0))
    every: list[relax.Expr] = []
    last: list[list[relax.Expr]] = [[] for _ in range(STATES[kind])]
    for d in range(directions):
        reverse = d == 1 or ctx.text("direction", "forward") == "reverse"
        projected = op.matmul(flat, op.permute_dims(_slice_of(weight, d)))
        count, rows = (n if isinstance(n, int) else None for n in (steps, batch))
        peeps = peepholes is not None
        layer = Layer(kind, count, rows, hidden, reverse, names[d], resets_later, peeps, dtype_of(data))
        half = GATES[kind] * hidden
        candidate = None
        if bias is not None:
            own = ctx.bb.emit(_slice_of(bias, d))
            outer, inner = (ctx.bb.emit(_part(own, begin, half)) for begin in (0, half))
            if resets_later:
                candidate = _part(inner, 2 * hidden, hidden)
                inner = op.concat([_part(inner, 0, 2 * hidden), op.zeros((hidden,), layer.dtype)], 0)
            projected = op.add(projected, op.add(outer, inner))
        elif resets_later:
            candidate = op.zeros((hidden,), layer.dtype)
        projected = ctx.bb.emit(op.reshape(projected, (steps, batch, half)))
        begin = [_initial(s, d, (batch, hidden), layer.dtype) for s in states[: STATES[kind]]]
        arguments = [projected, _in_blocks(ctx, _slice_of(recurrence, d), layer), *begin]
        arguments += [] if candidate is None else [candidate]
        arguments += [] if peepholes is None else [_slice_of(peepholes, d)]
        kernel = ctx.bb.add_func(write_layer(layer).without_attr("global_symbol"), kind.lower())
        results = [(steps, batch, hidden), *([(batch, hidden)] * STATES[kind])]
        types = [relax.TensorType(shape, layer.dtype) for shape in results]
        found = ctx.bb.emit(relax.call_tir(kernel, [ctx.bb.emit(a) for a in arguments], types))
        every.append(op.expand_dims(relax.TupleGetItem(found, 0), 1))
        for index in range(STATES[kind]):
            last[index].append(op.expand_dims(relax.TupleGetItem(found, 1 + index), 0))
    outputs = [_joined(every, 1), *(_joined(values, 0) for values in last)]
    if by_batch:
        outputs = [op.permute_dims(outputs[0], [2, 0, 1, 3]), *(op.permute_dims(o, [1, 0, 2]) for o in outputs[1:])]
    return outputs[: ctx.outputs]


def _part(value: relax.Expr, begin: int, count: int) -> relax.Expr:
    return op.strided_slice(value, [0], [begin], [begin + count], assume_inbound=True)


def _in_blocks(ctx: Context, weight: relax.Expr, layer: Layer) -> relax.Expr:
    """The weights [gates · hidden, hidden] in the order that the kernel reads."""
    blocks = layer.hidden // layer.width
    parts = op.reshape(weight, (GATES[layer.kind], blocks, layer.width, layer.hidden))
    return op.reshape(ctx.bb.emit(op.permute_dims(ctx.bb.emit(parts), [1, 3, 0, 2])), (-1,))


def _joined(values: Sequence[relax.Expr], axis: int) -> relax.Expr:
    return values[0] if len(values) == 1 else op.concat(list(values), axis)


def _slice_of(value: relax.Expr, direction: int) -> relax.Expr:
    """The slice of a weight or state for one direction."""
    shape = dims_of(value)
    if shape[0] == 1:
        return op.reshape(value, shape[1:])
    part = op.strided_slice(value, axes=[0], begin=[direction], end=[direction + 1], assume_inbound=True)
    return op.reshape(part, shape[1:])


def _initial(state: relax.Expr | None, direction: int, shape: Sequence[Extent], dtype: str) -> relax.Expr:
    if state is not None:
        return _slice_of(state, direction)
    return constant(np.zeros(shape, dtype)) if all(isinstance(n, int) for n in shape) else op.zeros(shape, dtype)


def _require_plain(ctx: Context, lengths: relax.Expr | None, steps: Extent) -> None:
    known = None if lengths is None else fixed(lengths)
    if lengths is not None and (known is None or not isinstance(steps, int) or np.any(known != steps)):
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
        if name not in FUNCTIONS:
            raise NotImplementedError(f"activation {name} is not supported")
    return names

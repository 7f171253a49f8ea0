"""Converters of LSTM, also with weights of 8 bits, GRU and RNN.

One matrix product for the inputs of all steps comes first, then one kernel for the recurrence. That is for CPUs only;
on a GPU, threads would have to synchronise at every step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.converters.checked_places import checked_lengths
from heterocc.compiler.lower.converters.quantised.integers import integer_product, signed_weight
from heterocc.compiler.lower.converters.quantised.quantised_operators import dynamic_quantize_linear
from heterocc.compiler.lower.converters.recurrent.layer import RECURRENT, Activation, Layer, activations
from heterocc.compiler.lower.converters.registry import MICROSOFT, Context, converter
from heterocc.compiler.lower.converters.values import as_dtype, dims_of, dtype_of, fixed, shape_of
from heterocc.compiler.lower.straight import constant
from heterocc.compiler.lower.written import OPAQUE, PATTERN, REQUEST, WRITTEN
from heterocc.compiler.operators.layers.recurrent import GATES, GRU, LSTM, RNN, STATES


def recurrent_request(layer: Layer) -> tirx.PrimFunc:
    """A kernel without a body, with the arguments of the layer."""
    with IRBuilder() as builder, build.prim_func(s_tir=True):
        build.func_name(layer.kind.lower())
        request = {"kind": RECURRENT, "layer": layer.text()}
        build.func_attr({"tirx.noalias": True, WRITTEN: True, PATTERN: OPAQUE, REQUEST: request})
        known = {
            name: tirx.Var(name, "int64") if size is None else tirx.IntImm("int64", size)
            for name, size in (("steps", layer.steps), ("batch", layer.batch))
        }
        for name, (shape, dtype) in layer.arguments().items():
            dims = [known[d] if isinstance(d, str) else tirx.IntImm("int64", d) for d in shape]
            build.arg(name, build.Buffer(tuple(dims), dtype))
        build.evaluate(tirx.const(0))
    return builder.get().without_attr("global_symbol")


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


@converter("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(
    ctx: Context, data: relax.Expr, weight: relax.Expr, recurrence: relax.Expr, *rest: relax.Expr | None
) -> list[relax.Expr]:
    """An LSTM with weights of 8-bit integers, and of its data rounded to 8 bits by their range.

    The products are of integers where the device computes with these. The state is rounded to 8 bits at each step, by
    the range of all rows, as in ONNX Runtime on one thread; on several it takes that of rows computed together.
    """
    bias, lengths, hidden, cell, peephole, *quantisers = (*rest, *(None,) * 9)[:9]
    inputs, states = (_known(ctx, w, *quantisers[2 * n : 2 * n + 2]) for n, w in enumerate((weight, recurrence)))
    levels, scale, zero = (ctx.bb.emit(v) for v in dynamic_quantize_linear(ctx, data))

    def project(flat: relax.Expr, number: int) -> relax.Expr:
        whole, factor, middle = (part[number] for part in inputs)
        sums = integer_product(ctx, flat, zero, whole, middle)
        if sums is None:
            centred = op.subtract(as_dtype(flat, "float32"), as_dtype(zero, "float32"))
            exact = whole.astype(np.float32) - middle.astype(np.float32)
            sums = op.matmul(ctx.bb.emit(centred), constant(exact))
        factors = ctx.bb.emit(op.multiply(scale, constant(factor)))
        return ctx.bb.emit(op.multiply(as_dtype(ctx.bb.emit(sums), "float32"), factors))

    recurrences = _in_bytes(*states)
    return layer_of(ctx, LSTM, levels, project, recurrences, bias, lengths, hidden, cell, peephole, dtype="float32")


_Quantised = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Weights [directions, rows, 4 · hidden], and their scales and zero points [directions, 4 · hidden]."""


def _known(ctx: Context, weight: relax.Expr, scale: relax.Expr | None, zero: relax.Expr | None) -> _Quantised:
    """Constant weights, quantised by direction or column."""
    whole, factor = ctx.array(weight), None if scale is None else ctx.array(scale)
    middle = np.zeros(1, np.int8) if zero is None else ctx.array(zero)
    if whole is None or factor is None or middle is None:
        raise NotImplementedError("the weights, scales and zero points must be constant")
    shape = (whole.shape[0], whole.shape[2])
    spread = [np.broadcast_to(n if n.size == 1 else n.reshape(shape[0], -1), shape) for n in (factor, middle)]
    return whole, np.ascontiguousarray(spread[0], np.float32), np.ascontiguousarray(spread[1])


def _in_bytes(whole: np.ndarray, factor: np.ndarray, middle: np.ndarray) -> Recurrence:
    """The weights as int8, with their scales, and with these times zero points that do not go into the weights."""
    weight, rest = signed_weight(whole, middle[:, None, :])
    turned = constant(np.ascontiguousarray(weight.transpose(0, 2, 1)))
    offsets = rest.reshape(factor.shape).astype(np.float32) * factor
    totals = constant(weight.sum(axis=1, dtype=np.int32))
    return Recurrence(turned, constant(factor), totals, constant(offsets) if np.any(offsets) else None)

"""Layers with a state of fixed size in place of past keys: LinearAttention, and CausalConvWithState before it."""

from __future__ import annotations

import math

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.registry import MICROSOFT, Context, converter
from heterocc.compiler.lower.converters.requested import has_positive_sizes, requested
from heterocc.compiler.lower.converters.values import as_dtype, dims_of, dtype_of, fixed_size, rank_of, scalar, shape_of
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.lower.variables import as_int64

op = relax.op

_MOST_TAPS = 64
"""The most terms of a convolution that are written one by one."""


@converter("CausalConvWithState", domain=MICROSOFT)
def causal_conv(
    ctx: Context,
    data: relax.Expr,
    weight: relax.Expr,
    bias: relax.Expr | None = None,
    past: relax.Expr | None = None,
) -> list[relax.Expr]:
    """A convolution of each channel along past and new steps; the last of these are the state."""
    last = bool(ctx.attrs.get("channels_last", 0))
    if ctx.attrs.get("ndim", 1) != 1 or ctx.attrs.get("state_window", 0):
        raise NotImplementedError("only convolutions along one axis, with the state after the last step, are supported")
    dilation, taps = ctx.attrs.get("dilation", 1), fixed_size(weight, 2)
    more = (taps - 1) * dilation
    if not more > 0 or taps > _MOST_TAPS:
        raise NotImplementedError(f"{taps} taps are not supported")
    batch, *inner = dims_of(data)
    steps, channels = (inner[0], shape_of(data, 2)) if last else (inner[1], (fixed_size(data, 1),))
    every = math.prod(channels)
    axis, dtype = 1 if last else 2, dtype_of(data)
    shape = (batch, steps, every) if last else (batch, every, steps)
    state = (batch, more, every) if last else (batch, every, more)
    wide = ctx.bb.normalize(as_dtype(data, "float32"))
    flat = ctx.bb.normalize(op.reshape(wide, shape)) if rank_of(data) > len(shape) else wide
    zeros = op.zeros([as_int64(n) for n in state], "float32")
    old = zeros if past is None else op.reshape(as_dtype(past, "float32"), state)
    every_step = (batch, steps + more, every) if last else (batch, every, steps + more)

    def joining(tensors: list[te.Tensor], _: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
        before, new = tensors

        def at(*place: tirx.Var) -> tirx.Expr:
            own = shifted(list(place), tirx.const(-more, "int64"))
            return tirx.if_then_else(place[axis] < tirx.const(more, "int64"), before(*place), new(*own))

        return te.compute(wanted, at, name="joining")

    def shifted(place: list[tirx.Var], by: tirx.Expr) -> list[tirx.Expr]:
        return [n + by if number == axis else n for number, n in enumerate(place)]

    def convolved(tensors: list[te.Tensor], _: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
        both, factors, *offset = tensors

        def at(*place: tirx.Var) -> tirx.Expr:
            channel = place[2 if last else 1]
            total = offset[0](channel) if offset else tirx.const(0.0, "float32")
            for tap in range(taps):
                step = tirx.const(tap * dilation, "int64")
                total = total + factors(channel, tirx.const(0, "int64"), tirx.const(tap, "int64")) * both(
                    *shifted(list(place), step)
                )
            return total

        return te.compute(wanted, at, name="convolved")

    def kept(tensors: list[te.Tensor], sizes: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
        return te.compute(wanted, lambda *place: tensors[0](*shifted(list(place), sizes[0])), name="kept")

    # Not a Concat: TVM compares its shape, 3 + n, with n + 3 term by term where it fuses kernels.
    parts = [ctx.bb.normalize(old), flat]
    joined = emit_sized(ctx.bb, joining, parts, [], every_step, "float32", "conv_steps", opaque=True)
    factors = [as_dtype(value, "float32") for value in (weight, bias) if value is not None]
    result = emit_sized(ctx.bb, convolved, [joined, *factors], [], shape, "float32", "causal_conv")
    if ctx.text("activation", "none") != "none":
        result = op.nn.silu(result)
    present = emit_sized(ctx.bb, kept, [joined], [steps], state, "float32", "conv_state", opaque=True)
    ends = [as_int64(n) for n in ((batch, more, *channels) if last else state)]
    made = [op.reshape(ctx.bb.normalize(result), data.ty.shape), op.reshape(present, ends)]
    return [as_dtype(ctx.bb.normalize(value), dtype) for value in made][: ctx.outputs]


@converter("LinearAttention", domain=MICROSOFT)
def linear_attention(
    ctx: Context,
    query: relax.Expr,
    key: relax.Expr,
    value: relax.Expr,
    past: relax.Expr | None = None,
    decay: relax.Expr | None = None,
    rate: relax.Expr | None = None,
) -> list[relax.Expr]:
    """Attention by a state for each head, which each step multiplies by its decay and adds its keys and values to."""
    if ctx.backend != "cpu":
        raise NotImplementedError("only the CPU has a kernel with a state")
    rule = ctx.text("update_rule", "gated_delta")
    heads, key_value_heads = ctx.attrs["q_num_heads"], ctx.attrs["kv_num_heads"]
    if ctx.attrs.get("state_window", 0):
        raise NotImplementedError("only the state after the last step is supported")
    decay, rate = (decay if "gated" in rule else None), (rate if "delta" in rule else None)
    if (decay is None) != ("gated" not in rule) or (rate is None) != ("delta" not in rule):
        raise NotImplementedError(f"inputs that {rule} needs are missing")
    given = [ctx.bb.normalize(as_dtype(v, "float32")) for v in (query, key, value)]
    size, columns = fixed_size(query, 2) // heads, fixed_size(value, 2) // key_value_heads
    key_heads = fixed_size(key, 2) // size
    if max(heads, key_value_heads) % min(heads, key_value_heads) or key_value_heads % key_heads:
        raise NotImplementedError("numbers of heads that do not divide each other are not supported")
    if not all(map(has_positive_sizes, given)):
        raise NotImplementedError("a sequence without steps is not supported")
    if past is not None:
        given.append(ctx.bb.normalize(as_dtype(past, "float32")))
    if decay is not None:
        given.append(ctx.bb.normalize(op.exp(as_dtype(decay, "float32"))))
    if rate is not None:
        given.append(ctx.bb.normalize(as_dtype(rate, "float32")))
    for gate in (decay, rate):
        if gate is not None:
            fixed_size(gate, 2)
    batch, steps, _ = dims_of(query)
    results = [
        ((batch, steps, max(heads, key_value_heads) * columns), "float32"),
        ((batch, key_value_heads, size, columns), "float32"),
    ]
    scale = float(ctx.attrs.get("scale", 0.0)) or 1 / math.sqrt(size)
    options = {"past": past, "factors": decay, "rates": rate}
    found = requested(
        ctx,
        "linear_attention",
        given,
        results,
        query_heads=heads,
        scale=repr(scale),
        **{name: int(v is not None) for name, v in options.items()},
    )
    wanted = [dtype_of(query), dtype_of(query if past is None else past)]
    made = [ctx.bb.emit(relax.TupleGetItem(found, n)) for n in range(2)]
    return [as_dtype(v, dtype) for v, dtype in zip(made, wanted, strict=True)][: ctx.outputs]


@converter("LinearAttentionGate", domain=MICROSOFT)
def linear_attention_gate(
    ctx: Context, data: relax.Expr, bias: relax.Expr, factor: relax.Expr, rate: relax.Expr | None = None
) -> list[relax.Expr]:
    """The decay of LinearAttention, scale · softplus(data + bias), and the sigmoid of its rate."""
    dtype = dtype_of(data)
    wide = ctx.bb.emit(op.add(as_dtype(data, "float32"), as_dtype(bias, "float32")))
    zero, one = scalar(0.0, "float32"), scalar(1.0, "float32")
    # The exponential of a large number is infinite.
    low = op.exp(op.negative(op.abs(wide)))
    softplus = op.add(op.maximum(wide, zero), op.log(op.add(one, low)))
    made = [op.multiply(as_dtype(factor, "float32"), softplus)]
    if rate is not None:
        made.append(op.sigmoid(as_dtype(rate, "float32")))
    return [as_dtype(ctx.bb.normalize(value), dtype) for value in made][: ctx.outputs]


@converter("GatedRMSNorm", domain=MICROSOFT)
def gated_rms_norm(ctx: Context, data: relax.Expr, scale: relax.Expr, gate: relax.Expr) -> relax.Expr:
    """Groups of numbers over the root of their mean square, times a scale and the activation of a gate."""
    dtype, count = dtype_of(data), fixed_size(scale, 0)
    *outer, width = dims_of(data)
    groups = [as_int64(n) for n in (*outer, fixed_size(data, rank_of(data) - 1) // count, count)]
    if isinstance(width, int) and width % count:
        raise NotImplementedError("the last dimension is not a multiple of the scale's")
    apart = ctx.bb.normalize(op.reshape(as_dtype(data, "float32"), groups))
    axis = len(groups) - 1
    normed = op.nn.rms_norm(apart, as_dtype(scale, "float32"), [axis], float(ctx.attrs.get("epsilon", 1e-5)))
    wide = as_dtype(gate, "float32")
    active = op.sigmoid(wide) if ctx.text("activation", "silu") == "sigmoid" else op.nn.silu(wide)
    whole = op.reshape(ctx.bb.normalize(normed), data.ty.shape)
    return as_dtype(ctx.bb.normalize(op.multiply(whole, active)), dtype)

"""Converters of ONNX Runtime's attention operators (domain com.microsoft), which exporters and optimisers write.

Masked scores have `mask_filter_value` added, as in ONNX Runtime; keys that follow a query are left out entirely.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.attention.attention_operators import (
    Masking,
    Scores,
    attend,
    causal_table,
    head_size,
    heads_apart,
    heads_joined,
)
from heterocc.compiler.lower.converters.checked import asserted
from heterocc.compiler.lower.converters.checked_places import checked_places
from heterocc.compiler.lower.converters.computed.numbers import loop, table, whole
from heterocc.compiler.lower.converters.registry import MICROSOFT, Context, converter
from heterocc.compiler.lower.converters.values import (
    as_dtype,
    dims_of,
    dtype_of,
    fixed_size,
    rank_of,
    scalar,
    shape_of,
)
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.lower.straight import constant
from heterocc.compiler.lower.variables import Extent, as_int64, same

op = relax.op


def scale(ctx: Context, size: Extent) -> float | None:
    """The factor of the scores; 0 stands for the default, which is None for a size that only the run knows."""
    given = float(ctx.attrs.get("scale", 0.0))
    return given or (1 / math.sqrt(size) if isinstance(size, int) else None)


def refuse(ctx: Context, *names: str) -> None:
    """Refuse attributes that are set."""
    for name in names:
        if ctx.attrs.get(name, 0) not in (0, -1, 0.0, None):
            raise NotImplementedError(f"the attribute {name} is not supported")


def part(ctx: Context, value: relax.Expr, axis: int, begin: Extent, end: Extent) -> relax.Expr:
    """The elements of a tensor from `begin` to `end` along an axis."""
    return ctx.bb.emit(op.strided_slice(value, [axis], [as_int64(begin)], [as_int64(end)], assume_inbound=True))


def parts(ctx: Context, value: relax.Expr, axis: int, sizes: Sequence[Extent]) -> list[relax.Expr]:
    """A tensor cut into parts of these sizes along an axis."""
    ends = list(accumulate(sizes, initial=0))
    return [part(ctx, value, axis, begin, end) for begin, end in pairwise(ends)]


def rotated(
    ctx: Context, data: relax.Expr, cos: relax.Expr, sin: relax.Expr, positions: relax.Expr, interleaved: bool
) -> relax.Expr:
    """[batch, heads, sequence, size] whose first numbers are turned, in pairs, by the angle of their position.

    `positions` are [batch or 1, sequence]. (Su et al., RoFormer, https://arxiv.org/abs/2104.09864)
    """
    rows, steps = dims_of(positions)
    flat = ctx.bb.emit(op.reshape(as_dtype(positions, "int64"), (rows * steps,)))
    angles = (ctx.bb.emit(op.take(v, flat, axis=0, mode="clip")) for v in (cos, sin))
    wide = (rows, 1, steps, dims_of(cos)[1])
    c, s = (ctx.bb.emit(op.reshape(as_dtype(v, dtype_of(data)), wide)) for v in angles)
    return turned_by(ctx, data, c, s, interleaved)


def turned_by(ctx: Context, data: relax.Expr, c: relax.Expr, s: relax.Expr, interleaved: bool) -> relax.Expr:
    """The same with the cosines and sines [batch or 1, 1, sequence, half] of all places."""
    batch, heads, steps, size = dims_of(data)
    half = dims_of(c)[3]
    if isinstance(size, int) and isinstance(half, int) and 2 * half > size:
        raise NotImplementedError(f"a rotation of {2 * half} of {size} numbers is not possible")
    every = same((2 * half,), (size,))
    turned = data if every else part(ctx, data, 3, 0, 2 * half)
    if interleaved:
        pairs = ctx.bb.emit(op.reshape(turned, (batch, heads, steps, half, 2)))
        sides = [part(ctx, pairs, 4, n, n + 1) for n in (0, 1)]
        x, y = (ctx.bb.emit(op.reshape(v, (batch, heads, steps, half))) for v in sides)
    else:
        x, y = part(ctx, turned, 3, 0, half), part(ctx, turned, 3, half, 2 * half)
    real = ctx.bb.emit(op.subtract(op.multiply(c, x), op.multiply(s, y)))
    imaginary = ctx.bb.emit(op.add(op.multiply(s, x), op.multiply(c, y)))
    if interleaved:
        parts = [ctx.bb.emit(op.expand_dims(v, 4)) for v in (real, imaginary)]
        joined = ctx.bb.emit(op.reshape(op.concat(parts, 4), (batch, heads, steps, 2 * half)))
    else:
        joined = ctx.bb.emit(op.concat([real, imaginary], 3))
    if every:
        return joined
    return ctx.bb.emit(op.concat([joined, part(ctx, data, 3, 2 * half, size)], 3))


@converter("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(
    ctx: Context, data: relax.Expr, positions: relax.Expr, cos: relax.Expr, sin: relax.Expr
) -> relax.Expr:
    """Rotary position embedding of [batch, sequence, heads · size] or [batch, heads, sequence, size]."""
    refuse(ctx, "is_packed_batching")
    if ctx.attrs.get("scale", 1.0) != 1.0:
        raise NotImplementedError("the attribute scale is not supported")
    shape = dims_of(data)
    turned = ctx.attrs.get("rotary_embedding_dim", 0)
    heads = ctx.attrs.get("num_heads", 0)
    if len(shape) == 3 and not heads:
        if turned:
            raise NotImplementedError("a partial rotation needs num_heads")
        heads = shape_of(data, 2)[0] // (2 * fixed_size(cos, 1))
    apart = heads_apart(ctx, data, heads)
    batch, _, steps, _ = dims_of(apart)
    if same(dims_of(positions), (batch, steps)):
        places = positions
    else:
        first = ctx.bb.emit(op.reshape(as_dtype(positions, "int64"), (1, 1)))
        places = ctx.bb.emit(op.add(first, numbers(ctx, steps, (1, steps))))
    places = checked_places(ctx, places, [dims_of(cos)[0]], from_end=False)
    result = rotated(ctx, apart, cos, sin, places, bool(ctx.attrs.get("interleaved", 0)))
    if len(shape) == 4:
        return result
    return op.reshape(ctx.bb.emit(op.permute_dims(result, [0, 2, 1, 3])), shape)


def numbers(ctx: Context, count: Extent, shape: tuple[Extent, ...]) -> relax.Expr:
    """The numbers 0, 1, … along the last axis of a shape whose other dimensions are 1."""
    if isinstance(count, int):
        return constant(np.arange(count, dtype=np.int64).reshape(shape))
    return emit_sized(
        ctx.bb,
        lambda _tensors, _extents, wanted: te.compute(wanted, lambda *i: i[-1].astype("int64"), name="numbers"),
        [],
        [],
        shape,
        "int64",
        "numbers",
    )


@converter("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(
    ctx: Context,
    query: relax.Expr,
    key: relax.Expr | None = None,
    value: relax.Expr | None = None,
    bias: relax.Expr | None = None,
    padding: relax.Expr | None = None,
    added: relax.Expr | None = None,
    past_key: relax.Expr | None = None,
    past_value: relax.Expr | None = None,
    *rest: relax.Expr | None,
) -> relax.Expr | list[relax.Expr]:
    """Attention of separate queries, keys and values."""
    if key is None or value is None or rank_of(query) != 3 or any(v is not None for v in rest):
        raise NotImplementedError("packed queries, keys and values, and beams, are not supported")
    if ctx.outputs > 3:
        raise NotImplementedError("the output of scores is not supported")
    heads = ctx.attrs["num_heads"]
    if bias is not None:
        if rank_of(key) == 4:
            raise NotImplementedError("a bias with keys of rank 4 is not supported")
        biases = parts(ctx, bias, 0, [dims_of(v)[2] for v in (query, key, value)])
        query, key, value = (ctx.bb.emit(op.add(v, p)) for v, p in zip((query, key, value), biases, strict=True))
    size = head_size((past_key, heads), (query, heads), (key, heads))
    query, key = (heads_apart(ctx, v, heads, size) for v in (query, key))
    value = heads_apart(ctx, value, heads, head_size((past_value, heads), (value, heads)))
    if past_key is not None and past_value is not None:
        key, value = (ctx.bb.emit(op.concat([p, v], 2)) for p, v in ((past_key, key), (past_value, value)))
    past = 0 if past_key is None else dims_of(past_key)[2]
    scores = _filtered(ctx, query, key, value, padding, added, past)
    result = heads_joined(ctx, scores.result)
    return [result, key, value][: ctx.outputs] if ctx.outputs > 1 else result


@converter("Attention", domain=MICROSOFT)
def packed_attention(
    ctx: Context,
    data: relax.Expr,
    weights: relax.Expr,
    bias: relax.Expr | None = None,
    padding: relax.Expr | None = None,
    past: relax.Expr | None = None,
    added: relax.Expr | None = None,
    *rest: relax.Expr | None,
) -> relax.Expr | list[relax.Expr]:
    """Attention of an input that weights make queries, keys and values of."""
    refuse(ctx, "do_rotary", "past_present_share_buffer", "rotary_embedding_dim")
    if any(v is not None for v in rest):
        raise NotImplementedError("a shared buffer of past keys is not supported")
    heads = ctx.attrs["num_heads"]
    sizes = ctx.attrs.get("qkv_hidden_sizes") or [dims_of(weights)[1] // 3] * 3
    packed = ctx.bb.emit(op.matmul(data, weights))
    packed = packed if bias is None else ctx.bb.emit(op.add(packed, bias))
    size = None if past is None else dims_of(past)[4]
    query, key, value = (heads_apart(ctx, v, heads, size) for v in parts(ctx, packed, 2, sizes))
    if past is not None:
        old = [ctx.bb.emit(op.squeeze(part(ctx, past, 0, n, n + 1), [0])) for n in (0, 1)]
        key, value = (ctx.bb.emit(op.concat([p, v], 2)) for p, v in zip(old, (key, value), strict=True))
    scores = _filtered(ctx, query, key, value, padding, added, 0 if past is None else dims_of(past)[3])
    result = heads_joined(ctx, scores.result, sizes[2])
    if ctx.outputs == 1:
        return result
    present = [ctx.bb.emit(op.expand_dims(v, 0)) for v in (key, value)]
    return [result, op.concat(present, 0)]


def _filtered(
    ctx: Context,
    query: relax.Expr,
    key: relax.Expr,
    value: relax.Expr,
    padding: relax.Expr | None,
    added: relax.Expr | None,
    past: Extent,
) -> Scores:
    """Attention in which the scores of padding have a large negative number added."""
    batch, _, rows, _ = dims_of(query)
    keys, size = dims_of(key)[2], dims_of(query)[3]
    dtype = dtype_of(query)
    if added is not None and rank_of(added) == 4 and not same(dims_of(added)[2:], (rows, keys)):
        # They are equal, as a run has checked.
        added = ctx.bb.emit(op.reshape(added, [as_int64(n) for n in (*dims_of(added)[:2], rows, keys)]))
    allowed = None
    if ctx.attrs.get("unidirectional", 0):
        allowed = causal_table(ctx, rows, keys, past)
    if padding is not None:
        valid = _valid(ctx, padding, (batch, rows, keys))
        filter_value = scalar(ctx.attrs.get("mask_filter_value", -10000.0), dtype)
        numbers = ctx.bb.emit(op.where(valid, scalar(0, dtype), filter_value))
        added = numbers if added is None else ctx.bb.emit(op.add(numbers, added))
    return attend(ctx, query, key, value, scale(ctx, size), Masking(added, allowed))


def _valid(ctx: Context, padding: relax.Expr, sizes: tuple[Extent, Extent, Extent]) -> relax.Expr:
    """Which keys are not padding, as booleans that broadcast to [batch, heads, queries, keys]."""
    batch, rows, keys = sizes
    shape = dims_of(padding)
    whole = ctx.bb.emit(as_dtype(padding, "int64"))
    if len(shape) == 1:
        return _between(ctx, whole, (batch, keys))
    if _may_be(shape, (batch, keys)):
        whole = ctx.bb.emit(op.reshape(whole, (batch, 1, 1, keys)))
    elif _may_be(shape, (batch, rows, keys)):
        whole = ctx.bb.emit(op.reshape(whole, (batch, 1, rows, keys)))
    else:
        raise NotImplementedError(f"a mask of shape {list(shape)} is not supported")
    return ctx.bb.emit(op.greater(whole, scalar(0, "int64")))


def _between(ctx: Context, mask: relax.Expr, sizes: tuple[Extent, Extent]) -> relax.Expr:
    """Which keys are before the end of their item and, where the starts of all follow the ends, not before its start.

    A third form of the mask, of 3 · batch + 2 numbers, begins with ends, too. Starts, and the check that ends are not
    negative, are those of Attention only, as in ONNX Runtime.
    """
    batch, keys = sizes
    starts = ctx.node.op_type == "Attention"
    ends = mask if ctx.backend != "cpu" else _checked_ends(ctx, mask, batch, starts)

    def compute(given: list[te.Tensor], extents: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        items = extents[0].astype("int64")
        two = tirx.all(tirx.const(starts), given[1].shape[0].astype("int64") == whole(2) * items)

        def at(b: tirx.Var, _h: tirx.Var, _q: tirx.Var, k: tirx.Var) -> tirx.Expr:
            key, item = k.astype("int64"), b.astype("int64")
            started = tirx.if_then_else(two, key >= given[1](tirx.Select(two, item + items, item)), True)
            return tirx.all(key < given[0](item), started)

        return te.compute(shape, at, name="between")

    return emit_sized(ctx.bb, compute, [ends, mask], [batch], [batch, 1, 1, keys], "bool", "between")


def _checked_ends(ctx: Context, mask: relax.Expr, batch: Extent, starts: bool) -> relax.Expr:
    """The ends that a mask of one dimension begins with, of a run that ends with an error if it cannot be one."""

    def write(ins: Sequence[tirx.Buffer], ends: tirx.Buffer) -> tirx.Stmt:
        length, items = ins[0].shape[0].astype("int64"), ends.shape[0].astype("int64")
        counts = [items, *([whole(2) * items] if starts else []), whole(3) * items + whole(2)]
        text = (
            f"a mask of one dimension needs 1 {'or 2 numbers' if starts else 'number'} for each item, or 3 and 2 more"
        )
        right = asserted(ctx, tirx.any(*(length == count for count in counts)), text)

        def copied(i: tirx.Var) -> tirx.Stmt:
            store = tirx.BufferStore(ends, ins[0][i], [i])
            if not starts:
                return store
            return tirx.SeqStmt([asserted(ctx, ins[0][i] >= whole(0), "an end of keys in the mask is negative"), store])

        return tirx.SeqStmt([right, loop(items, copied)])

    return table(ctx, [mask], [batch], write, name="ends")


def _may_be(shape: Sequence[Extent], wanted: Sequence[Extent]) -> bool:
    """Whether a shape may be another one: their numbers are equal. The run checks sizes of different names."""
    pairs = zip(shape, wanted, strict=False)
    numbers = [(a, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int)]
    return len(shape) == len(wanted) and all(a == b for a, b in numbers)

"""Converters of ONNX Runtime's attention operators (domain com.microsoft), which exporters and optimisers write.

Masked scores have `mask_filter_value` added, as in ONNX Runtime; keys that follow a query are left out entirely.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.attention.operators import Masking, Scores, attend, heads_apart, heads_joined
from heterocc.compiler.lower.converters.registry import MICROSOFT, Context, converter
from heterocc.compiler.lower.converters.values import as_dtype, dtype_of, fixed, is_float, rank_of, scalar, shape_of
from heterocc.compiler.lower.straight import constant

op = relax.op


def _scale(ctx: Context, size: int) -> float:
    """The factor of the scores; 0 stands for the default."""
    return float(ctx.attrs.get("scale", 0.0)) or 1 / math.sqrt(size)


def _refuse(ctx: Context, *names: str) -> None:
    """Refuse attributes that are set."""
    for name in names:
        if ctx.attrs.get(name, 0) not in (0, -1, 0.0, None):
            raise NotImplementedError(f"the attribute {name} is not supported")


def _slice(ctx: Context, value: relax.Expr, axis: int, begin: int, end: int) -> relax.Expr:
    return ctx.bb.emit(op.strided_slice(value, [axis], [begin], [end]))


def _rotated(
    ctx: Context, data: relax.Expr, cos: relax.Expr, sin: relax.Expr, positions: relax.Expr, interleaved: bool
) -> relax.Expr:
    """[batch, heads, sequence, size] whose first numbers are turned, in pairs, by the angle of their position.

    `positions` are [batch or 1, sequence]. (Su et al., RoFormer, https://arxiv.org/abs/2104.09864)
    """
    batch, heads, steps, size = shape_of(data)
    half = shape_of(cos)[1]
    if 2 * half > size:
        raise NotImplementedError(f"a rotation of {2 * half} of {size} numbers is not possible")
    rows = shape_of(positions)[0]
    flat = ctx.bb.emit(op.reshape(as_dtype(positions, "int64"), (rows * steps,)))
    angles = (ctx.bb.emit(op.take(v, flat, axis=0, mode="clip")) for v in (cos, sin))
    wide = (rows, 1, steps, half)
    c, s = (ctx.bb.emit(op.reshape(as_dtype(v, dtype_of(data)), wide)) for v in angles)
    turned = data if 2 * half == size else _slice(ctx, data, 3, 0, 2 * half)
    if interleaved:
        pairs = ctx.bb.emit(op.reshape(turned, (batch, heads, steps, half, 2)))
        sides = [_slice(ctx, pairs, 4, n, n + 1) for n in (0, 1)]
        x, y = (ctx.bb.emit(op.reshape(v, (batch, heads, steps, half))) for v in sides)
    else:
        x, y = _slice(ctx, turned, 3, 0, half), _slice(ctx, turned, 3, half, 2 * half)
    real = ctx.bb.emit(op.subtract(op.multiply(c, x), op.multiply(s, y)))
    imaginary = ctx.bb.emit(op.add(op.multiply(s, x), op.multiply(c, y)))
    if interleaved:
        parts = [ctx.bb.emit(op.expand_dims(v, 4)) for v in (real, imaginary)]
        joined = ctx.bb.emit(op.reshape(op.concat(parts, 4), (batch, heads, steps, 2 * half)))
    else:
        joined = ctx.bb.emit(op.concat([real, imaginary], 3))
    if 2 * half == size:
        return joined
    return ctx.bb.emit(op.concat([joined, _slice(ctx, data, 3, 2 * half, size)], 3))


@converter("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(
    ctx: Context, data: relax.Expr, positions: relax.Expr, cos: relax.Expr, sin: relax.Expr
) -> relax.Expr:
    """Rotary position embedding of [batch, sequence, heads · size] or [batch, heads, sequence, size]."""
    _refuse(ctx, "is_packed_batching")
    if ctx.attrs.get("scale", 1.0) != 1.0:
        raise NotImplementedError("the attribute scale is not supported")
    shape = shape_of(data)
    turned = ctx.attrs.get("rotary_embedding_dim", 0)
    heads = ctx.attrs.get("num_heads", 0)
    if len(shape) == 3 and not heads:
        if turned:
            raise NotImplementedError("a partial rotation needs num_heads")
        heads = shape[2] // (2 * shape_of(cos)[1])
    apart = heads_apart(ctx, data, heads)
    batch, _, steps, _ = shape_of(apart)
    if shape_of(positions) == (batch, steps):
        places = positions
    else:
        first = ctx.bb.emit(op.reshape(as_dtype(positions, "int64"), (1, 1)))
        places = ctx.bb.emit(op.add(first, constant(np.arange(steps, dtype=np.int64).reshape(1, steps))))
    result = _rotated(ctx, apart, cos, sin, places, bool(ctx.attrs.get("interleaved", 0)))
    return result if len(shape) == 4 else _joined(ctx, result)


def _joined(ctx: Context, value: relax.Expr) -> relax.Expr:
    batch, heads, steps, size = shape_of(value)
    return op.reshape(ctx.bb.emit(op.permute_dims(value, [0, 2, 1, 3])), (batch, steps, heads * size))


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
        sizes = np.cumsum([0, *(shape_of(v)[2] for v in (query, key, value))])
        parts = [_slice(ctx, bias, 0, int(b), int(e)) for b, e in pairwise(sizes)]
        query, key, value = (ctx.bb.emit(op.add(v, p)) for v, p in zip((query, key, value), parts, strict=True))
    query, key, value = (heads_apart(ctx, v, heads) for v in (query, key, value))
    if past_key is not None and past_value is not None:
        key, value = (ctx.bb.emit(op.concat([p, v], 2)) for p, v in ((past_key, key), (past_value, value)))
    past = 0 if past_key is None else shape_of(past_key)[2]
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
    _refuse(ctx, "do_rotary", "past_present_share_buffer", "rotary_embedding_dim")
    if any(v is not None for v in rest):
        raise NotImplementedError("a shared buffer of past keys is not supported")
    heads = ctx.attrs["num_heads"]
    third = shape_of(weights)[1] // 3
    sizes = np.cumsum([0, *(ctx.attrs.get("qkv_hidden_sizes") or [third] * 3)])
    packed = ctx.bb.emit(op.matmul(data, weights))
    packed = packed if bias is None else ctx.bb.emit(op.add(packed, bias))
    parts = [_slice(ctx, packed, 2, int(b), int(e)) for b, e in pairwise(sizes)]
    query, key, value = (heads_apart(ctx, v, heads) for v in parts)
    if past is not None:
        old = [ctx.bb.emit(op.squeeze(_slice(ctx, past, 0, n, n + 1), [0])) for n in (0, 1)]
        key, value = (ctx.bb.emit(op.concat([p, v], 2)) for p, v in zip(old, (key, value), strict=True))
    scores = _filtered(ctx, query, key, value, padding, added, 0 if past is None else shape_of(past)[3])
    result = heads_joined(ctx, scores.result)
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
    past: int,
) -> Scores:
    """Attention in which the scores of padding have a large negative number added."""
    batch, _, rows, size = shape_of(query)
    keys = shape_of(key)[2]
    dtype = dtype_of(query)
    allowed = None
    if ctx.attrs.get("unidirectional", 0):
        table = np.tri(rows, keys, past, dtype=bool)
        allowed = None if table.all() else constant(table)
    if padding is not None:
        valid = _valid(ctx, padding, (batch, rows, keys))
        filter_value = scalar(ctx.attrs.get("mask_filter_value", -10000.0), dtype)
        numbers = ctx.bb.emit(op.where(valid, scalar(0, dtype), filter_value))
        added = numbers if added is None else ctx.bb.emit(op.add(numbers, added))
    return attend(ctx, query, key, value, _scale(ctx, size), Masking(added, allowed))


def _valid(ctx: Context, padding: relax.Expr, sizes: tuple[int, int, int]) -> relax.Expr:
    """Which keys are not padding, as booleans that broadcast to [batch, heads, queries, keys]."""
    batch, rows, keys = sizes
    shape = shape_of(padding)
    whole = ctx.bb.emit(as_dtype(padding, "int64"))
    if shape == (batch,):
        count = ctx.bb.emit(op.reshape(whole, (batch, 1, 1, 1)))
        return ctx.bb.emit(op.less(constant(np.arange(keys, dtype=np.int64).reshape(1, 1, 1, keys)), count))
    if shape == (batch, keys):
        whole = ctx.bb.emit(op.reshape(whole, (batch, 1, 1, keys)))
    elif shape == (batch, rows, keys):
        whole = ctx.bb.emit(op.reshape(whole, (batch, 1, rows, keys)))
    else:
        raise NotImplementedError(f"a mask of shape {list(shape)} is not supported")
    return ctx.bb.emit(op.greater(whole, scalar(0, "int64")))


@converter("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(
    ctx: Context,
    query: relax.Expr,
    key: relax.Expr | None,
    value: relax.Expr | None,
    past_key: relax.Expr | None,
    past_value: relax.Expr | None,
    lengths: relax.Expr,
    total: relax.Expr,
    cos: relax.Expr | None = None,
    sin: relax.Expr | None = None,
    positions: relax.Expr | None = None,
    added: relax.Expr | None = None,
    *rest: relax.Expr | None,
) -> list[relax.Expr]:
    """Causal attention with a cache, whose valid length may differ from sample to sample."""
    _refuse(ctx, "smooth_softmax", "qk_output", "kv_cache_bit_width")
    if any(v is not None for v in rest) or ctx.outputs > 3 or not is_float(query):
        raise NotImplementedError("sinks, quantised caches and the output of scores are not supported")
    window = ctx.attrs.get("local_window_size", -1)
    heads, key_heads = ctx.attrs["num_heads"], ctx.attrs["kv_num_heads"]
    if key is None or value is None:
        size = shape_of(query)[2] // (heads + 2 * key_heads)
        ends = np.cumsum([0, heads * size, key_heads * size, key_heads * size])
        query, key, value = (_slice(ctx, query, 2, int(b), int(e)) for b, e in pairwise(ends))
    query = heads_apart(ctx, query, heads)
    key, value = (heads_apart(ctx, v, key_heads) for v in (key, value))
    batch, _, rows, size = shape_of(query)
    known = fixed(total)
    if known is None:
        raise NotImplementedError("the total sequence length must be constant")
    most = int(known.flat[0])
    valid = ctx.bb.emit(op.reshape(as_dtype(lengths, "int64"), (batch, 1)))
    if most == rows:
        before = constant(np.zeros((batch, 1), np.int64))
    else:
        before = ctx.bb.emit(op.maximum(op.add(valid, scalar(1 - rows, "int64")), scalar(0, "int64")))
    if ctx.attrs.get("do_rotary", 0):
        if cos is None or sin is None:
            raise NotImplementedError("a rotation needs both tables of angles")
        if positions is None:
            steps = constant(np.arange(rows, dtype=np.int64).reshape(1, rows))
            positions = ctx.bb.emit(op.add(before, steps))
        interleaved = bool(ctx.attrs.get("rotary_interleaved", 0))
        query, key = (_rotated(ctx, v, cos, sin, positions, interleaved) for v in (query, key))
    old = 0 if past_key is None else shape_of(past_key)[2]
    keys = max(most, old)
    if keys != rows or past_key is not None:
        starts = ctx.bb.emit(op.reshape(before, (batch,)))
        key, value = (_present(ctx, p, v, starts, keys) for p, v in ((past_key, key), (past_value, value)))
    ahead = np.arange(keys).reshape(1, keys) - np.arange(rows).reshape(rows, 1)
    offset = ctx.bb.emit(op.reshape(before, (batch, 1, 1, 1)))
    table = constant(ahead.reshape(1, 1, rows, keys).astype(np.int64))
    allowed = ctx.bb.emit(op.less_equal(table, offset))
    if most == rows:  # the samples of a prompt may end in padding
        numbers = constant(np.arange(keys, dtype=np.int64).reshape(1, 1, 1, keys))
        inside = ctx.bb.emit(op.less_equal(numbers, ctx.bb.emit(op.reshape(valid, (batch, 1, 1, 1)))))
        allowed = ctx.bb.emit(op.logical_and(allowed, inside))
    if window > 0:
        near = ctx.bb.emit(op.greater(table, op.subtract(offset, scalar(window, "int64"))))
        allowed = ctx.bb.emit(op.logical_and(allowed, near))
    softcap = float(ctx.attrs.get("softcap", 0.0))
    scores = attend(ctx, query, key, value, _scale(ctx, size), Masking(added, allowed), softcap)
    return [heads_joined(ctx, scores.result), key, value][: ctx.outputs]


def _present(ctx: Context, past: relax.Expr | None, new: relax.Expr, starts: relax.Expr, keys: int) -> relax.Expr:
    """A cache of `keys` rows: the past ones, the new ones from each sample's start on, then zeros."""
    batch, heads, rows, size = shape_of(new)
    old = 0 if past is None else shape_of(past)[2]

    def compute(x: te.Tensor, begin: te.Tensor, *cache: te.Tensor) -> te.Tensor:
        def at(b: tirx.Var, h: tirx.Var, t: tirx.Var, d: tirx.Var) -> tirx.Expr:
            zero = tirx.const(0, "int64")
            place = t.astype("int64") - begin[b]
            nothing = tirx.const(0, dtype_of(new))
            fresh = tirx.if_then_else(place < rows, x(b, h, tirx.max(zero, place), d), nothing)
            if not cache:
                return tirx.if_then_else(place >= 0, fresh, nothing)
            kept = tirx.if_then_else(t < old, cache[0](b, h, t, d), nothing) if old < keys else cache[0](b, h, t, d)
            return tirx.if_then_else(place < 0, kept, fresh)

        return te.compute((batch, heads, keys, size), at, name="present")

    given = [] if past is None or old == 0 else [past]
    return ctx.bb.emit_te(compute, new, starts, *given, primfunc_name_hint="present")

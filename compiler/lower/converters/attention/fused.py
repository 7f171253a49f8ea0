"""Converters of ONNX Runtime's attention operators (domain com.microsoft), which exporters and optimisers write.

Masked scores have `mask_filter_value` added, as in ONNX Runtime; keys that follow a query are left out entirely.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.attention.operators import (
    Masking,
    Scores,
    attend,
    causal_table,
    heads_apart,
    heads_joined,
)
from heterocc.compiler.lower.converters.registry import MICROSOFT, Context, converter
from heterocc.compiler.lower.converters.values import (
    as_dtype,
    dims_of,
    dtype_of,
    fixed,
    is_float,
    rank_of,
    scalar,
    shape_of,
)
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.lower.straight import constant
from heterocc.compiler.lower.variables import Extent, as_int64, same

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
    return ctx.bb.emit(op.strided_slice(value, [axis], [begin], [end], assume_inbound=True))


def _rotated(
    ctx: Context, data: relax.Expr, cos: relax.Expr, sin: relax.Expr, positions: relax.Expr, interleaved: bool
) -> relax.Expr:
    """[batch, heads, sequence, size] whose first numbers are turned, in pairs, by the angle of their position.

    `positions` are [batch or 1, sequence]. (Su et al., RoFormer, https://arxiv.org/abs/2104.09864)
    """
    batch, heads, steps, _ = dims_of(data)
    size, half = shape_of(data, 3)[0], shape_of(cos)[1]
    if 2 * half > size:
        raise NotImplementedError(f"a rotation of {2 * half} of {size} numbers is not possible")
    rows = dims_of(positions)[0]
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
    shape = dims_of(data)
    turned = ctx.attrs.get("rotary_embedding_dim", 0)
    heads = ctx.attrs.get("num_heads", 0)
    if len(shape) == 3 and not heads:
        if turned:
            raise NotImplementedError("a partial rotation needs num_heads")
        heads = shape_of(data, 2)[0] // (2 * shape_of(cos)[1])
    apart = heads_apart(ctx, data, heads)
    batch, _, steps, _ = dims_of(apart)
    if same(dims_of(positions), (batch, steps)):
        places = positions
    else:
        first = ctx.bb.emit(op.reshape(as_dtype(positions, "int64"), (1, 1)))
        places = ctx.bb.emit(op.add(first, _numbers(ctx, steps, (1, steps))))
    result = _rotated(ctx, apart, cos, sin, places, bool(ctx.attrs.get("interleaved", 0)))
    return result if len(shape) == 4 else _joined(ctx, result)


def _joined(ctx: Context, value: relax.Expr) -> relax.Expr:
    batch, heads, steps, size = dims_of(value)
    return op.reshape(ctx.bb.emit(op.permute_dims(value, [0, 2, 1, 3])), (batch, steps, heads * size))


def _numbers(ctx: Context, count: Extent, shape: tuple[Extent, ...]) -> relax.Expr:
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
        sizes = np.cumsum([0, *(shape_of(v, 2)[0] for v in (query, key, value))])
        parts = [_slice(ctx, bias, 0, int(b), int(e)) for b, e in pairwise(sizes)]
        query, key, value = (ctx.bb.emit(op.add(v, p)) for v, p in zip((query, key, value), parts, strict=True))
    query, key, value = (heads_apart(ctx, v, heads) for v in (query, key, value))
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
    scores = _filtered(ctx, query, key, value, padding, added, 0 if past is None else dims_of(past)[3])
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
    past: Extent,
) -> Scores:
    """Attention in which the scores of padding have a large negative number added."""
    batch, _, rows, _ = dims_of(query)
    keys, size = dims_of(key)[2], shape_of(query, 3)[0]
    dtype = dtype_of(query)
    allowed = None
    if ctx.attrs.get("unidirectional", 0):
        allowed = causal_table(ctx, rows, keys, past)
    if padding is not None:
        valid = _valid(ctx, padding, (batch, rows, keys))
        filter_value = scalar(ctx.attrs.get("mask_filter_value", -10000.0), dtype)
        numbers = ctx.bb.emit(op.where(valid, scalar(0, dtype), filter_value))
        added = numbers if added is None else ctx.bb.emit(op.add(numbers, added))
    return attend(ctx, query, key, value, _scale(ctx, size), Masking(added, allowed))


def _valid(ctx: Context, padding: relax.Expr, sizes: tuple[Extent, Extent, Extent]) -> relax.Expr:
    """Which keys are not padding, as booleans that broadcast to [batch, heads, queries, keys]."""
    batch, rows, keys = sizes
    shape = dims_of(padding)
    whole = ctx.bb.emit(as_dtype(padding, "int64"))
    if same(shape, (batch,)):
        count = ctx.bb.emit(op.reshape(whole, (batch, 1, 1, 1)))
        return ctx.bb.emit(op.less(_numbers(ctx, keys, (1, 1, 1, keys)), count))
    if same(shape, (batch, keys)):
        whole = ctx.bb.emit(op.reshape(whole, (batch, 1, 1, keys)))
    elif same(shape, (batch, rows, keys)):
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
        size = shape_of(query, 2)[0] // (heads + 2 * key_heads)
        ends = np.cumsum([0, heads * size, key_heads * size, key_heads * size])
        query, key, value = (_slice(ctx, query, 2, int(b), int(e)) for b, e in pairwise(ends))
    query = heads_apart(ctx, query, heads)
    key, value = (heads_apart(ctx, v, key_heads) for v in (key, value))
    batch, _, rows, _ = dims_of(query)
    size = shape_of(query, 3)[0]
    most = _total(ctx, total)
    prompt = isinstance(most, int) and isinstance(rows, int) and most == rows
    valid = ctx.bb.emit(op.reshape(as_dtype(lengths, "int64"), (batch, 1)))
    if prompt and isinstance(batch, int):
        before = constant(np.zeros((batch, 1), np.int64))
    else:
        before = _before(ctx, valid, batch, rows)
    if ctx.attrs.get("do_rotary", 0):
        if cos is None or sin is None:
            raise NotImplementedError("a rotation needs both tables of angles")
        if positions is None:
            positions = ctx.bb.emit(op.add(before, _numbers(ctx, rows, (1, rows))))
        interleaved = bool(ctx.attrs.get("rotary_interleaved", 0))
        query, key = (_rotated(ctx, v, cos, sin, positions, interleaved) for v in (query, key))
    old = 0 if past_key is None else dims_of(past_key)[2]
    keys = _larger(most, old)
    if past_key is not None or not same((keys,), (rows,)):
        starts = ctx.bb.emit(op.reshape(before, (batch,)))
        key, value = (_present(ctx, p, v, starts, keys) for p, v in ((past_key, key), (past_value, value)))
    allowed = _attended(ctx, before, valid, (batch, 1, rows, keys), window)
    softcap = float(ctx.attrs.get("softcap", 0.0))
    scores = attend(ctx, query, key, value, _scale(ctx, size), Masking(added, allowed), softcap)
    return [heads_joined(ctx, scores.result), key, value][: ctx.outputs]


def _total(ctx: Context, total: relax.Expr) -> Extent:
    """The most tokens of a sample, with those in the cache; exporters compute it from the shape of a mask."""
    known = fixed(total)
    if known is not None:
        return int(known.flat[0])
    found = ctx.sizes(6)
    if found is None or len(found) != 1:
        raise NotImplementedError("the total sequence length must be constant or the size of a dimension")
    return found[0]


def _larger(one: Extent, other: Extent) -> Extent:
    if isinstance(one, int) and isinstance(other, int):
        return max(one, other)
    if isinstance(other, int) and other == 0:
        return one
    return one if same((one,), (other,)) else tirx.max(as_int64(one), as_int64(other))


def _before(ctx: Context, valid: relax.Expr, batch: Extent, rows: Extent) -> relax.Expr:
    """The number of each sample's tokens in the cache, [batch, 1]; `valid` are the places of the last tokens."""

    def compute(tensors: list[te.Tensor], extents: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        zero = tirx.const(0, "int64")
        return te.compute(shape, lambda b, _: tirx.max(tensors[0](b, zero) + 1 - extents[0], zero), name="before")

    return emit_sized(ctx.bb, compute, [valid], [rows], [batch, 1], "int64", "before")


def _attended(
    ctx: Context, before: relax.Expr, valid: relax.Expr, shape: tuple[Extent, ...], window: int
) -> relax.Expr:
    """Which keys each query of a sample attends to, as booleans [batch, 1, queries, keys]."""

    def compute(tensors: list[te.Tensor], _: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
        zero = tirx.const(0, "int64")

        def at(b: tirx.Var, _: tirx.Var, i: tirx.Var, j: tirx.Var) -> tirx.Expr:
            key, place = j.astype("int64"), i.astype("int64") + tensors[0](b, zero)
            parts = [key <= place, key <= tensors[1](b, zero)]  # the samples of a prompt may end in padding
            return tirx.all(*parts, *([key > place - window] if window > 0 else []))

        return te.compute(wanted, at, name="attended")

    return emit_sized(ctx.bb, compute, [before, valid], [], shape, "bool", "attended")


def _present(ctx: Context, past: relax.Expr | None, new: relax.Expr, starts: relax.Expr, keys: Extent) -> relax.Expr:
    """A cache of `keys` rows: the past ones, the new ones from each sample's start on, then zeros."""
    batch, heads, rows, size = dims_of(new)
    old: Extent = 0 if past is None else dims_of(past)[2]
    whole = past is not None and same((old,), (keys,))
    empty = past is None or (isinstance(old, int) and old == 0)

    def compute(tensors: list[te.Tensor], extents: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        x, begin, *cache = tensors
        steps, room = extents

        def at(b: tirx.Var, h: tirx.Var, t: tirx.Var, d: tirx.Var) -> tirx.Expr:
            zero = tirx.const(0, "int64")
            place = t.astype("int64") - begin[b]
            nothing = tirx.const(0, dtype_of(new))
            fresh = tirx.if_then_else(place < steps, x(b, h, tirx.max(zero, place), d), nothing)
            if not cache:
                return tirx.if_then_else(place >= 0, fresh, nothing)
            kept = cache[0](b, h, t, d)
            kept = kept if whole else tirx.if_then_else(t.astype("int64") < room, kept, nothing)
            return tirx.if_then_else(place < 0, kept, fresh)

        return te.compute(shape, at, name="present")

    given = [] if empty else [past]
    wanted = [batch, heads, keys, size]
    return emit_sized(ctx.bb, compute, [new, starts, *given], [rows, old], wanted, dtype_of(new), "present")

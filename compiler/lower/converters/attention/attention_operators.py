"""Converters of attention as two matrix products around a softmax.

Heads are an axis of their own: [batch, heads, sequence, size]. If several query heads share a key head, the queries are
[batch, key heads, queries per key head, sequence, size], so that no key is copied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from onnx import helper
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.arrays.filling import from_sizes
from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import as_dtype, dims_of, dtype_of, is_float, rank_of, scalar, shape_of
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.lower.straight import constant
from heterocc.compiler.lower.variables import Extent, as_int64, same

op = relax.op


@dataclass(frozen=True, slots=True)
class Masking:
    """The keys that each query attends to.

    `added` are numbers that are added to the scores, `allowed` booleans; both are of shapes that broadcast to the
    scores. `whole` promises that every query attends to at least one key.
    """

    added: relax.Expr | None = None
    allowed: relax.Expr | None = None
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Band:
    """How many keys before and behind its own place each query attends to; None for any number."""

    left: int | None = None
    right: int | None = None

    def parts(self, place: tirx.Expr, key: tirx.Expr) -> list[tirx.Expr]:
        """The conditions that a key is in the band of the query at a place."""
        after = [] if self.left is None else [key >= place - tirx.IntImm("int64", self.left)]
        return after + ([] if self.right is None else [key <= place + tirx.IntImm("int64", self.right)])


@dataclass(frozen=True, slots=True)
class Scores:
    """The steps of an attention, each of shape [batch, query heads, queries, keys] but the result.

    The result is [batch, key heads, queries per key head, queries, size], or without the third axis if that is 1.
    """

    product: relax.Expr
    capped: relax.Expr
    masked: relax.Expr
    shares: relax.Expr
    result: relax.Expr


def heads_apart(ctx: Context, value: relax.Expr, heads: int, size: Extent | None = None) -> relax.Expr:
    """[batch, sequence, heads · size] as [batch, heads, sequence, size]; a value of rank 4 as it is."""
    shape = dims_of(value)
    if len(shape) == 4:
        return value
    split = ctx.bb.emit(op.reshape(value, (*shape[:2], heads, shape[2] // heads if size is None else size)))
    return ctx.bb.emit(op.permute_dims(split, [0, 2, 1, 3]))


def head_size(*values: tuple[relax.Expr | None, int]) -> Extent | None:
    """The size of the heads that values have in common, each given with its heads; a number if one shows it."""
    found = []
    for value, heads in values:
        if value is not None:
            shape = dims_of(value)
            found.append(shape[3] if len(shape) == 4 else shape[2] // heads)
    return next((size for size in found if isinstance(size, int)), found[0])


def heads_joined(ctx: Context, result: relax.Expr, width: Extent | None = None) -> relax.Expr:
    """A result of `attend` as [batch, sequence, heads · size], which is `width`."""
    shape = dims_of(result)
    inner = len(shape) - 2
    moved = ctx.bb.emit(op.permute_dims(result, [0, inner, *range(1, inner), inner + 1]))
    width = math.prod(shape[1:inner]) * shape[-1] if width is None else width
    return op.reshape(moved, (shape[0], shape[inner], width))


def attend(
    ctx: Context,
    query: relax.Expr,
    key: relax.Expr,
    value: relax.Expr,
    scale: float | None,
    masking: Masking,
    softcap: float = 0.0,
    softmax_dtype: str | None = None,
    sinks: relax.Expr | None = None,
) -> Scores:
    """Attention of [batch, heads, sequence, size] tensors; the number of query heads is a multiple of the key heads.

    Without a `scale` it is the inverse of the root of the size. `sinks`, [heads], are scores of one more key of each
    head, whose value is zero.
    """
    batch, heads, rows, size = dims_of(query)
    key_heads, keys = dims_of(key)[1:3]
    if same((heads, key_heads), (key_heads, dims_of(value)[1])):
        group = 1
    elif not all(isinstance(count, int) for count in (heads, key_heads, dims_of(value)[1])):
        raise NotImplementedError("the number of heads is known only at run time")
    elif heads % key_heads or dims_of(value)[1] != key_heads:
        raise NotImplementedError(f"{heads} query heads cannot share {key_heads} key heads")
    else:
        group = heads // key_heads
    dtype = dtype_of(query)
    flat = (batch, heads, rows, keys)
    if group > 1:
        query = ctx.bb.emit(op.reshape(query, (batch, key_heads, group, rows, size)))
        key, value = (ctx.bb.emit(op.expand_dims(v, 2)) for v in (key, value))
    rank = rank_of(key)
    across = ctx.bb.emit(op.permute_dims(key, [*range(rank - 2), rank - 1, rank - 2]))
    if scale is None and isinstance(size, int):
        scale = 1 / math.sqrt(size)
    root = _fourth_root(ctx, size, dtype) if scale is None else scalar(math.sqrt(scale), dtype)
    if scale != 1:
        query, across = (ctx.bb.emit(op.multiply(v, root)) for v in (query, across))
    product = ctx.bb.emit(op.matmul(query, across))
    capped = product
    if softcap:
        capped = ctx.bb.emit(op.divide(capped, scalar(softcap, dtype)))
        capped = ctx.bb.emit(op.multiply(op.tanh(capped), scalar(softcap, dtype)))
    added = None if masking.added is None else _grouped(ctx, masking.added, key_heads, group)
    allowed = None if masking.allowed is None else _grouped(ctx, masking.allowed, key_heads, group)
    masked = capped if added is None else ctx.bb.emit(op.add(capped, added))
    if allowed is not None:
        masked = ctx.bb.emit(op.where(allowed, masked, scalar(-math.inf, dtype)))
    wide = masked if softmax_dtype is None else ctx.bb.emit(as_dtype(masked, softmax_dtype))
    shares = ctx.bb.emit(op.nn.softmax(wide if sinks is None else _with_sinks(ctx, wide, sinks), -1))
    if sinks is not None:
        shares = ctx.bb.emit(op.strided_slice(shares, [rank - 1], [0], [as_int64(keys)], assume_inbound=True))
    if not masking.whole:
        shares = ctx.bb.emit(op.where(_empty_rows(ctx, added, allowed), scalar(0, dtype_of(shares)), shares))
    shares = as_dtype(shares, dtype)
    result = ctx.bb.emit(op.matmul(ctx.bb.normalize(shares), value))
    if group == 1:
        return Scores(product, capped, masked, shares, result)

    def whole(value: relax.Expr) -> relax.Expr:
        return ctx.bb.normalize(op.reshape(ctx.bb.normalize(value), flat))

    return Scores(whole(product), whole(capped), whole(masked), whole(shares), result)


def _with_sinks(ctx: Context, scores: relax.Expr, sinks: relax.Expr) -> relax.Expr:
    """Scores [batch, heads or key heads and queries of each, queries, keys] with one more column, that of the sinks."""
    shape = dims_of(scores)
    column = ctx.bb.emit(op.reshape(as_dtype(sinks, dtype_of(scores)), (1, *shape[1:-2], 1, 1)))
    return ctx.bb.emit(op.concat([scores, op.broadcast_to(column, (*shape[:-1], 1))], -1))


def _fourth_root(ctx: Context, size: Extent, dtype: str) -> relax.Expr:
    """The inverse of the fourth root of a size that only the run knows."""
    number = ctx.bb.emit(from_sizes(ctx.bb, (size,), (), "float32"))
    return ctx.bb.emit(op.astype(ctx.bb.emit(op.power(number, scalar(-0.25, "float32"))), dtype))


def _grouped(ctx: Context, mask: relax.Expr, key_heads: int, group: int) -> relax.Expr:
    """A mask that broadcasts to [batch, heads, queries, keys], for scores whose heads are two axes."""
    if group == 1:
        return mask
    shape = (1,) * (4 - rank_of(mask)) + dims_of(mask)
    apart = (1, 1) if shape[1] == 1 else (key_heads, group)
    return ctx.bb.emit(op.reshape(mask, (shape[0], *apart, *shape[2:])))


def _empty_rows(ctx: Context, added: relax.Expr | None, allowed: relax.Expr | None) -> relax.Expr:
    """Whether a query attends to no key: each is forbidden, or has minus infinity added to its score."""
    if added is None:
        most = ctx.bb.emit(op.max(op.astype(allowed, "int32"), -1, True))
        return ctx.bb.emit(op.equal(most, scalar(0, "int32")))
    nothing = scalar(-math.inf, dtype_of(added))
    if allowed is not None:
        added = ctx.bb.emit(op.where(allowed, added, nothing))
    return ctx.bb.emit(op.equal(ctx.bb.emit(op.max(added, -1, True)), nothing))


@converter("Attention")
def attention(
    ctx: Context,
    query: relax.Expr,
    key: relax.Expr,
    value: relax.Expr,
    mask: relax.Expr | None = None,
    past_key: relax.Expr | None = None,
    past_value: relax.Expr | None = None,
    lengths: relax.Expr | None = None,
) -> list[relax.Expr]:
    """Attention with the outputs result, present keys, present values, and one of the steps between."""
    joined = rank_of(query) == 3
    heads = ctx.attrs.get("q_num_heads", 0)
    key_heads = ctx.attrs.get("kv_num_heads", heads)
    size = head_size((past_key, key_heads), (query, heads), (key, key_heads))
    query, key = heads_apart(ctx, query, heads, size), heads_apart(ctx, key, key_heads, size)
    value = heads_apart(ctx, value, key_heads, head_size((past_value, key_heads), (value, key_heads)))
    if past_key is not None and past_value is not None:
        key, value = (ctx.bb.emit(op.concat([p, v], 2)) for p, v in ((past_key, key), (past_value, value)))
    past = 0 if past_key is None else dims_of(past_key)[2]
    masking = _masking(ctx, (dims_of(query)[2], dims_of(key)[2]), mask, past, lengths)
    precision = ctx.attrs.get("softmax_precision", 0)
    scores = attend(
        ctx,
        query,
        key,
        value,
        float(ctx.attrs["scale"]) if "scale" in ctx.attrs else None,
        masking,
        float(ctx.attrs.get("softcap", 0.0)),
        helper.tensor_dtype_to_np_dtype(precision).name if precision else None,
    )
    batch, heads, rows, _ = dims_of(query)
    if joined:
        result = heads_joined(ctx, scores.result)
    else:
        shape = (batch, heads, rows, dims_of(value)[3])
        result = scores.result if rank_of(scores.result) == 4 else op.reshape(scores.result, shape)
    step = (scores.product, scores.capped, scores.masked, scores.shares)[ctx.attrs.get("qk_matmul_output_mode", 0)]
    if ctx.outputs > 3 and ctx.node.output[3]:
        step = op.broadcast_to(step, (batch, heads, rows, dims_of(key)[2]))
    return [result, key, value, step][: ctx.outputs]


def _masking(
    ctx: Context, size: tuple[Extent, Extent], mask: relax.Expr | None, past: Extent, lengths: relax.Expr | None
) -> Masking:
    """The keys that ONNX's Attention allows, of `size` queries and keys."""
    rows, keys = size
    added, allowed, whole = None, [], True
    if mask is not None:
        mask = padded(ctx, mask, keys)
        whole = False
        if is_float(mask):
            added = mask
        else:
            allowed.append(mask)
    band = _band(ctx)
    if lengths is not None:
        whole = False
        allowed.append(_valid(ctx, lengths, rows, keys, band))
    elif band != Band():
        table = band_table(ctx, rows, keys, past, band)
        if table is not None:
            allowed.append(table)
        whole = whole and _attends(band, rows, keys, past)
    together = None
    for part in allowed:
        together = part if together is None else ctx.bb.emit(op.logical_and(together, part))
    return Masking(added, together, whole)


def _band(ctx: Context) -> Band:
    """The band of keys of the node's attributes."""
    left, right = (ctx.attrs.get(name, -1) for name in ("left_window_size", "right_window_size"))
    behind = [0] if ctx.attrs.get("is_causal", 0) else []
    behind += [right] if right >= 0 else []
    return Band(left if left >= 0 else None, min(behind, default=None))


def _attends(band: Band, rows: Extent, keys: Extent, past: Extent) -> bool:
    """Whether each query's band surely has a key: without a limit on the left the first one, else that of the query."""
    if band.left is None or same((past + rows,), (keys,)):
        return True
    return all(isinstance(n, int) for n in (rows, keys, past)) and past + rows <= keys


def _valid(ctx: Context, lengths: relax.Expr, rows: Extent, keys: Extent, band: Band) -> relax.Expr:
    """The keys within each sample's number of valid ones and the band, as booleans [batch, 1, queries or 1, keys].

    The last query is that of the last valid key.
    """
    (batch,) = shape_of(lengths)

    def compute(tensors: list[te.Tensor], extents: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        def at(b: tirx.Var, _: tirx.Var, i: tirx.Var, j: tirx.Var) -> tirx.Expr:
            count, key = tensors[0](b).astype("int64"), j.astype("int64")
            return tirx.all(key < count, *band.parts(i.astype("int64") + count - extents[0], key))

        return te.compute(shape, at, name="valid")

    shown = 1 if band == Band() else rows
    return emit_sized(ctx.bb, compute, [lengths], [rows], [batch, 1, shown, keys], "bool", "valid")


def causal_table(ctx: Context, rows: Extent, keys: Extent, past: Extent) -> relax.Expr | None:
    """Which of the keys precede each query, as booleans [queries, keys]; None if all do. `past` keys precede all."""
    return band_table(ctx, rows, keys, past, Band(right=0))


def band_table(ctx: Context, rows: Extent, keys: Extent, past: Extent, band: Band) -> relax.Expr | None:
    """Which of the keys are in each query's band, as booleans [queries, keys]; None if all are.

    `past` keys precede that of the first query.
    """
    if isinstance(rows, int) and isinstance(keys, int) and isinstance(past, int):
        distance = np.arange(keys).reshape(1, keys) - np.arange(rows).reshape(rows, 1) - past
        table = np.ones((rows, keys), bool)
        if band.left is not None:
            table &= distance >= -band.left
        if band.right is not None:
            table &= distance <= band.right
        return None if table.all() else constant(table)

    def compute(_: list[te.Tensor], extents: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        def at(i: tirx.Var, j: tirx.Var) -> tirx.Expr:
            parts = band.parts(i.astype("int64") + extents[0], j.astype("int64"))
            return tirx.all(*parts) if len(parts) > 1 else parts[0]

        return te.compute(shape, at, name="causal")

    return emit_sized(ctx.bb, compute, [], [past], [rows, keys], "bool", "causal")


def padded(ctx: Context, mask: relax.Expr, keys: Extent) -> relax.Expr:
    """A mask with entries for all keys; those that it lacks are forbidden. One of one column holds for all keys."""
    shape = dims_of(mask)
    if (isinstance(shape[-1], int) and shape[-1] == 1) or same(shape[-1:], (keys,)):
        return mask
    fill = tirx.const(-math.inf if is_float(mask) else False, dtype_of(mask))

    def compute(tensors: list[te.Tensor], _: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
        columns = tensors[0].shape[-1].astype("int64")
        one = columns == tirx.IntImm("int64", 1)

        def at(*i: tirx.Var) -> tirx.Expr:
            place = i[-1].astype("int64")
            if isinstance(shape[-1], int):
                return tirx.if_then_else(place < columns, tensors[0](*i), fill)
            read = tensors[0](*i[:-1], tirx.Select(one, tirx.IntImm("int64", 0), place))
            return tirx.if_then_else(tirx.any(one, place < columns), read, fill)

        return te.compute(wanted, at, name="padded")

    return emit_sized(ctx.bb, compute, [mask], [], [*shape[:-1], keys], dtype_of(mask), "padded")

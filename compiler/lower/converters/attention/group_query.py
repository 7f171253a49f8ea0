"""GroupQueryAttention: causal attention with a cache of keys and values, as language models use it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.attention.attention_operators import (
    Masking,
    attend,
    heads_apart,
    heads_joined,
    padded,
)
from heterocc.compiler.lower.converters.attention.fused import numbers, parts, refuse, rotated, scale
from heterocc.compiler.lower.converters.attention.quantised_cache import QuantisedCache
from heterocc.compiler.lower.converters.attention.window_cache import (
    checked_window,
    kept_rows,
    less_dropped,
    tokens_before,
)
from heterocc.compiler.lower.converters.checked import asserted
from heterocc.compiler.lower.converters.checked_places import checked_places
from heterocc.compiler.lower.converters.computed.numbers import element, loop, results, sizes, statements, vector, whole
from heterocc.compiler.lower.converters.registry import MICROSOFT, RESULTS, Context, converter
from heterocc.compiler.lower.converters.values import (
    as_dtype,
    dims_of,
    dtype_of,
    fixed,
    is_float,
)
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.lower.straight import constant
from heterocc.compiler.lower.variables import Extent, as_int64, same
from heterocc.compiler.lower.written import JOINS_AT

op = relax.op


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
    sinks: relax.Expr | None = None,
    key_scale: relax.Expr | None = None,
    value_scale: relax.Expr | None = None,
    *rest: relax.Expr | None,
) -> list[relax.Expr]:
    """Causal attention with a cache, whose valid length may differ from sample to sample."""
    refuse(ctx, "qk_output")
    if any(v is not None for v in rest) or ctx.outputs > 3 or not is_float(query):
        raise NotImplementedError(
            "norms of queries and keys, padded queries and the output of scores are not supported"
        )
    window = ctx.attrs.get("local_window_size", -1)
    heads, key_heads = ctx.attrs["num_heads"], ctx.attrs["kv_num_heads"]
    if key is None or value is None:
        size = dims_of(query)[2] // (heads + 2 * key_heads)
        query, key, value = parts(ctx, query, 2, [count * size for count in (heads, key_heads, key_heads)])
    query = heads_apart(ctx, query, heads)
    batch, _, rows, size = dims_of(query)
    key, value = (heads_apart(ctx, v, key_heads, size) for v in (key, value))
    quantised = QuantisedCache.of(ctx, past_key, size, key_scale, value_scale)
    computed = ctx.part == RESULTS
    lengths = ctx.bb.emit(op.reshape(as_dtype(lengths, "int64"), (batch, 1)))
    slides = bool(ctx.attrs.get("sliding_window_cache", 0))
    if slides:
        if past_key is None or past_value is None or added is not None or window < 1:
            raise NotImplementedError("the cache of a window needs past keys and values, and no attention_bias")
        room = dims_of(past_key)[2]
        keys = room + rows
        angles = dims_of(cos)[0] if cos is not None and ctx.attrs.get("do_rotary", 0) else 2**31 - 1
        valid = checked_window(_reader_of(ctx, 5), lengths, room, angles)
        before = tokens_before(ctx, valid, batch, rows)
        starts, last = (less_dropped(ctx, places, before, room) for places in (before, valid))
    else:
        most = _total(ctx, total)
        keys = ctx.result(1)[2] if computed else _larger(most, 0 if past_key is None else dims_of(past_key)[2])
        valid = _checked_lengths(_reader_of(ctx, 5), lengths, (rows, keys, most), total if computed else None)
        if isinstance(most, int) and isinstance(rows, int) and most == rows and isinstance(batch, int):
            before = constant(np.zeros((batch, 1), np.int64))
        else:
            before = _before(ctx, valid, batch, rows, total if computed else None)
        starts, last = before, valid
    if ctx.attrs.get("do_rotary", 0):
        if cos is None or sin is None:
            raise NotImplementedError("a rotation needs both tables of angles")
        if positions is None:
            positions = ctx.bb.emit(op.add(before, numbers(ctx, rows, (1, rows))))
        else:
            positions = checked_places(_reader_of(ctx, 9), positions, [dims_of(cos)[0]], from_end=False)
        interleaved = bool(ctx.attrs.get("rotary_interleaved", 0))
        query, key = (rotated(ctx, v, cos, sin, positions, interleaved) for v in (query, key))
    if quantised is not None:
        key, value = quantised.rounded(ctx, key, quantised.keys), quantised.rounded(ctx, value, quantised.values)
    if past_key is not None or not same((keys,), (rows,)):
        first = ctx.bb.emit(op.reshape(starts, (batch,)))
        key, value = (_present(ctx, p, v, first, keys) for p, v in ((past_key, key), (past_value, value)))
    if added is not None:  # a cache with more room than tokens has more columns
        added = padded(ctx, added, keys)
    masking = Masking(added, _attended(ctx, starts, last, (batch, 1, rows, keys), window))
    if sinks is None and ctx.attrs.get("smooth_softmax", 0):
        sinks = constant(np.zeros(heads, dtype_of(query)))
    softcap = float(ctx.attrs.get("softcap", 0.0))
    read_key, read_value = key, value
    if quantised is not None:
        query = quantised.scaled_queries(ctx, query)
        read_key, read_value = (quantised.integers(ctx, v, size) for v in (key, value))
    result = attend(ctx, query, read_key, read_value, scale(ctx, size), masking, softcap, sinks=sinks).result
    if quantised is not None:
        result = quantised.scaled_result(ctx, result)
    if slides:
        key, value = (kept_rows(ctx, joined, before, valid, room) for joined in (key, value))
    if computed and ctx.outputs > 2:  # its length has a name of its own
        value = ctx.bb.emit(op.reshape(value, [as_int64(n) for n in ctx.result(2)]))
    return [heads_joined(ctx, result), key, value][: ctx.outputs]


def _reader_of(ctx: Context, place: int) -> Context:
    """The context of errors about an input. It names the input, not the node, so that layers share what they check."""
    node = onnx.NodeProto()
    node.CopyFrom(ctx.node)
    node.name = ctx.node.input[place]
    return dataclasses.replace(ctx, node=node)


def _total(ctx: Context, total: relax.Expr) -> Extent:
    """The most tokens of a sample, with those in the cache; exporters compute it from the shape of a mask."""
    known = fixed(total)
    if known is not None:
        return int(known.flat[0])
    found = ctx.sizes(6)
    if found is not None and len(found) == 1:
        return found[0]
    if ctx.part != RESULTS:
        raise NotImplementedError("a total sequence length that is computed needs an output of the keys")
    return ctx.result(1)[2]


@sizes("GroupQueryAttention", domain=MICROSOFT)
def _cache_sizes(
    ctx: Context,
    query: relax.Expr,
    _key: relax.Expr | None,
    _value: relax.Expr | None,
    past_key: relax.Expr | None,
    _past_value: relax.Expr | None,
    _lengths: relax.Expr,
    total: relax.Expr,
    cos: relax.Expr | None = None,
    *_rest: relax.Expr | None,
) -> list[relax.Expr]:
    """The sizes of the caches, for a total length that the run gets as an input; those of the result are known."""
    tensors = [query, total, *(v for v in (past_key,) if v is not None), *(v for v in (cos,) if v is not None)]

    def cache(ins: Sequence[tirx.Buffer]) -> list[tirx.Expr]:
        keys = element(ins[1])
        if past_key is not None:
            keys = tirx.max(keys, ins[2].shape[2].astype("int64"))
        known = [ins[0].shape[0].astype("int64"), whole(ctx.attrs["kv_num_heads"])]
        return [*known, keys, ins[2].shape[3].astype("int64") if past_key is not None else whole(0)]

    def check(ins: Sequence[tirx.Buffer]) -> list[tuple[tirx.Expr, str]]:
        old = whole(0) if past_key is None else ins[2].shape[2].astype("int64")
        total = element(ins[1])
        grown = total == old + ins[0].shape[1].astype("int64")
        text = "total_sequence_length is neither the number of past and new keys nor one that past_key has room for"
        found = [(tirx.any(grown, tirx.all(total > whole(0), total <= old)), text)]
        batch, rows = (ins[0].shape[axis].astype("int64") for axis in (0, 1))
        alone = tirx.any(batch == whole(1), rows == whole(1), total == rows)
        found.append((alone, "several items with several new keys each have past ones"))
        if cos is not None and ctx.attrs.get("do_rotary", 0):
            most = ins[-1].shape[0].astype("int64")
            found.append((total <= most, "total_sequence_length exceeds dimension 0 of cos_cache"))
        return found

    caches = vector(ctx, tensors, 4, cache, check)
    return [caches, caches, caches]


results("GroupQueryAttention", domain=MICROSOFT)(group_query_attention)


def _larger(one: Extent, other: Extent) -> Extent:
    if isinstance(one, int) and isinstance(other, int):
        return max(one, other)
    if isinstance(other, int) and other == 0:
        return one
    return one if same((one,), (other,)) else tirx.max(as_int64(one), as_int64(other))


def _before(ctx: Context, valid: relax.Expr, batch: Extent, rows: Extent, total: relax.Expr | None) -> relax.Expr:
    """The number of each sample's tokens in the cache, [batch, 1]; `valid` are the places of the last tokens.

    `total` is given if only the run knows whether it is that of a prompt, before which there are none.
    """
    given = [valid] if total is None else [valid, ctx.bb.emit(op.reshape(as_dtype(total, "int64"), (1,)))]

    def compute(tensors: list[te.Tensor], extents: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        zero = tirx.const(0, "int64")

        def at(b: tirx.Var, _: tirx.Var) -> tirx.Expr:
            count = tirx.max(tensors[0](b, zero) + 1 - extents[0], zero)
            return count if total is None else tirx.Select(tensors[1](zero) == extents[0], zero, count)

        return te.compute(shape, at, name="before")

    return emit_sized(ctx.bb, compute, given, [rows], [batch, 1], "int64", "before")


def _checked_lengths(
    ctx: Context, lengths: relax.Expr, sizes: tuple[Extent, Extent, Extent], total: relax.Expr | None
) -> relax.Expr:
    """The places of the last tokens in a cache, of a run that ends with an error if one is outside.

    The new keys end there, unless they are a prompt. `sizes` are the numbers of new keys, of those in the cache, and of
    all; `total` is given if only the run knows the last. Checked on CPUs only.
    """
    if ctx.backend != "cpu":
        return lengths
    given = [lengths] if total is None else [lengths, ctx.bb.emit(op.reshape(as_dtype(total, "int64"), (1,)))]

    def compute(tensors: list[te.Tensor], extents: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        new, stop, most = (extent.astype("int64") for extent in extents)

        def body(ins: Sequence[tirx.Buffer], outs: Sequence[tirx.Buffer]) -> tirx.Stmt:
            prompt = (most if total is None else element(ins[1])) == new
            least = tirx.Select(prompt, whole(0), new - whole(1))

            def checked(item: tirx.Var) -> tirx.Stmt:
                last = ins[0][item, whole(0)]
                right = tirx.all(last >= least, last < stop)
                text = "the place of a last token is before that of the new ones, or outside of the cache"
                return tirx.SeqStmt([asserted(ctx, right, text), tirx.BufferStore(outs[0], last, [item, whole(0)])])

            return loop(shape[0], checked)

        return statements(tensors, shape, body, "lengths", "int64")

    return emit_sized(ctx.bb, compute, given, sizes, dims_of(lengths), "int64", "lengths", opaque=True)


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
    # One that is longer than the past can lie in its memory (lower/cpu/concatenations/appended.py).
    grows = given and not whole and ctx.part != RESULTS and not ctx.attrs.get("sliding_window_cache", 0)
    attrs = {JOINS_AT: 2} if grows else None
    return emit_sized(
        ctx.bb, compute, [new, starts, *given], [rows, old], wanted, dtype_of(new), "present", attrs=attrs
    )

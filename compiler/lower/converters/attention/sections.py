"""Rotary positions of which parts of a head have their own: MRotaryEmbedding, of models that read images and videos."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tvm import relax

from heterocc.compiler.lower.converters.attention.attention_operators import heads_apart
from heterocc.compiler.lower.converters.attention.fused import part, refuse, turned_by
from heterocc.compiler.lower.converters.checked_places import checked_places
from heterocc.compiler.lower.converters.registry import MICROSOFT, Context, converter
from heterocc.compiler.lower.converters.values import as_dtype, dims_of, dtype_of, fixed_size, rank_of
from heterocc.compiler.lower.straight import constant

op = relax.op

_STREAMS = 3
"""Time, height and width."""


@converter("MRotaryEmbedding", domain=MICROSOFT)
def mrotary_embedding(
    ctx: Context, data: relax.Expr, positions: relax.Expr, cos: relax.Expr, sin: relax.Expr
) -> relax.Expr:
    """As RotaryEmbedding, with positions [3, batch, sequence], of which each pair of numbers has one."""
    refuse(ctx, "is_packed_batching")
    if ctx.attrs.get("scale", 1.0) != 1.0:
        raise NotImplementedError("the attribute scale is not supported")
    shape, half = dims_of(data), fixed_size(cos, 1)
    ctx.attrs.get("rotary_embedding_dim", 0)  # twice the tables' width
    heads = ctx.attrs.get("num_heads", 0)
    if rank_of(data) == _STREAMS and not heads:
        raise NotImplementedError("num_heads is missing")
    apart = heads_apart(ctx, data, heads)
    streams = _streams(ctx.attrs["mrope_section"], half, alternate=bool(ctx.attrs.get("mrope_layout", 0)))
    _, batch, steps = dims_of(positions)
    places = checked_places(ctx, positions, [dims_of(cos)[0]], from_end=False)
    flat = ctx.bb.emit(op.reshape(as_dtype(places, "int64"), (_STREAMS * batch * steps,)))
    angles = []
    for table in (cos, sin):
        found = ctx.bb.emit(op.take(as_dtype(table, dtype_of(data)), flat, axis=0, mode="clip"))
        every = ctx.bb.emit(op.reshape(found, (_STREAMS, batch, steps, half)))
        chosen = None
        for stream in range(_STREAMS):
            one = ctx.bb.emit(op.reshape(part(ctx, every, 0, stream, stream + 1), (batch, 1, steps, half)))
            chosen = one if chosen is None else op.where(constant(streams == stream), one, chosen)
        angles.append(ctx.bb.emit(chosen))
    result = turned_by(ctx, apart, angles[0], angles[1], bool(ctx.attrs.get("interleaved", 0)))
    if rank_of(data) > _STREAMS:
        return result
    return op.reshape(ctx.bb.emit(op.permute_dims(result, [0, 2, 1, 3])), shape)


def _streams(sections: Sequence[int], half: int, *, alternate: bool) -> np.ndarray:
    """The stream that each pair has its position from: one after the other, or in turns until a section ends."""
    if sum(sections) != half or len(sections) != _STREAMS:
        raise NotImplementedError(f"sections of {list(sections)} for {half} pairs are not supported")
    if not alternate:
        return np.repeat(np.arange(_STREAMS), sections)
    found = np.zeros(half, np.int64)
    for stream in (1, 2):
        found[stream : sections[stream] * _STREAMS : _STREAMS] = stream
    return found


@converter("GatedAdd", domain=MICROSOFT)
def gated_add(
    ctx: Context, first: relax.Expr, second: relax.Expr, gate: relax.Expr, weight: relax.Expr | None = None
) -> relax.Expr:
    """A sum whose second part each row multiplies by its gate."""
    if weight is not None:
        raise NotImplementedError("a gate that is computed from a weight is not supported")
    return ctx.bb.normalize(op.add(first, op.multiply(second, gate)))

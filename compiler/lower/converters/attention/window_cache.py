"""Caches of a window: GroupQueryAttention with sliding_window_cache, as exporters write it for Gemma 2 and others.

A cache of C rows, of which a query attends to the last W, keeps the newest keys from row 0 on. When it is full, the
oldest C - W + 1 are dropped at a time, so that the rows depend on the number of tokens alone: ONNX Runtime's schema of
the operator has the formula. Rows without a key are zero.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.checked import asserted
from heterocc.compiler.lower.converters.computed.numbers import loop, statements, whole
from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.converters.values import dims_of, dtype_of
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.lower.variables import Extent


def dropped(tokens: tirx.Expr, room: tirx.Expr, window: int) -> tirx.Expr:
    """How many of the first `tokens` a cache of `room` rows has dropped."""
    step = tirx.max(room - whole(window - 1), whole(1))
    over = tirx.max(tokens - room, whole(0))
    return tirx.floordiv(over + step - whole(1), step) * step


def tokens_before(ctx: Context, last: relax.Expr, batch: Extent, rows: Extent) -> relax.Expr:
    """The number of each item's tokens before the new ones, [batch, 1]; `last` are the places of the last tokens."""

    def compute(tensors: list[te.Tensor], extents: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        return te.compute(
            shape, lambda b, o: tirx.max(tensors[0](b, o) + whole(1) - extents[0].astype("int64"), whole(0))
        )

    return emit_sized(ctx.bb, compute, [last], [rows], [batch, 1], "int64", "before")


def checked_window(ctx: Context, last: relax.Expr, room: Extent, angles: Extent) -> relax.Expr:
    """The places of the last tokens, of a run that ends with an error if one is outside of the text.

    `room` are the rows of the cache, `angles` the most tokens that can be rotated.
    """
    if ctx.backend != "cpu":
        return last
    window = ctx.attrs["local_window_size"]

    def compute(tensors: list[te.Tensor], extents: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        rows, most = (extent.astype("int64") for extent in extents)

        def body(ins: Sequence[tirx.Buffer], outs: Sequence[tirx.Buffer]) -> tirx.Stmt:
            fits = asserted(ctx, rows >= whole(window), f"the cache has fewer rows than local_window_size, {window}")

            def checked(item: tirx.Var) -> tirx.Stmt:
                place = ins[0][item, whole(0)]
                right = tirx.all(place >= whole(0), place < most)
                text = "the place of a last token is negative, or not below dimension 0 of cos_cache"
                return tirx.SeqStmt([asserted(ctx, right, text), tirx.BufferStore(outs[0], place, [item, whole(0)])])

            return tirx.SeqStmt([fits, loop(shape[0], checked)])

        return statements(tensors, shape, body, "lengths", "int64")

    return emit_sized(ctx.bb, compute, [last], [room, angles], dims_of(last), "int64", "lengths", opaque=True)


def less_dropped(ctx: Context, places: relax.Expr, before: relax.Expr, room: Extent) -> relax.Expr:
    """Places in the text, [batch, 1], as places among the rows of the cache before the run and the new ones."""
    window = ctx.attrs["local_window_size"]

    def compute(tensors: list[te.Tensor], extents: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        rows = extents[0].astype("int64")
        return te.compute(shape, lambda b, o: tensors[0](b, o) - dropped(tensors[1](b, o), rows, window))

    return emit_sized(ctx.bb, compute, [places, before], [room], dims_of(places), "int64", "in_cache")


def kept_rows(ctx: Context, joined: relax.Expr, before: relax.Expr, last: relax.Expr, room: Extent) -> relax.Expr:
    """The cache after a run: the rows that stay, from `joined`, those before it and the new ones, then zeros."""
    batch, heads, _, size = dims_of(joined)
    window = ctx.attrs["local_window_size"]

    def compute(tensors: list[te.Tensor], extents: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        rows, both = (extent.astype("int64") for extent in extents)

        def at(b: tirx.Var, h: tirx.Var, t: tirx.Var, d: tirx.Var) -> tirx.Expr:
            tokens = tensors[2](b, whole(0)) + whole(1)
            gone = dropped(tokens, rows, window)
            row = t.astype("int64") + gone - dropped(tensors[1](b, whole(0)), rows, window)
            read = tensors[0](b, h, tirx.min(row, both - whole(1)), d)
            return tirx.if_then_else(t.astype("int64") < tokens - gone, read, tirx.const(0, dtype_of(joined)))

        return te.compute(shape, at, name="kept")

    wanted = [batch, heads, room, size]
    extents = [room, dims_of(joined)[2]]
    return emit_sized(ctx.bb, compute, [joined, before, last], extents, wanted, dtype_of(joined), "kept")

"""Places and lengths along dimensions that a run computes, which code for CPUs compares with the sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.checked import asserted, nest
from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, fixed
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.lower.variables import Extent, as_int64


def checked_places(ctx: Context, places: relax.Expr, sizes: Sequence[Extent], *, from_end: bool = True) -> relax.Expr:
    """The places, counted from the start, of a run that ends with an error if one is outside.

    Of several `sizes`, there is one for each number along the last axis of `places`, as GatherND and ScatterND have it.
    Negative ones count `from_end`, or are outside. Only code for CPUs can end a run: for other devices, and if all
    places are known to be inside, the places are returned as they are.
    """
    if ctx.backend != "cpu" or _are_inside(fixed(places), sizes, from_end):
        return places

    def ranges(counts: Sequence[tirx.Expr]) -> list[_Range]:
        return [_Range(-n if from_end else as_int64(0), n) for n in counts]

    (known,) = sizes if len(sizes) == 1 else ("",)
    where = f" for a dimension of {known}" if isinstance(known, int) else ""
    return _checked(ctx, places, sizes, ranges, f"an index is out of range{where}")


def checked_lengths(ctx: Context, lengths: relax.Expr, size: Extent) -> relax.Expr:
    """The lengths of a run that ends with an error if one is not from 0 to `size`; checked on CPUs only."""
    if ctx.backend != "cpu":
        return lengths
    up_to = f"{size}" if isinstance(size, int) else "the size of the dimension"
    text = f"a length of a sequence is not from 0 to {up_to}"
    return _checked(ctx, lengths, [size], lambda counts: [_Range(as_int64(0), counts[0] + as_int64(1))], text)


def checked_starts(ctx: Context, starts: relax.Expr, stop: Extent) -> relax.Expr:
    """The starts of a run that ends with an error if one is not from 0 to before `stop`; checked on CPUs only."""
    if ctx.backend != "cpu":
        return starts
    text = "a start is negative, or leaves no room for what is written"
    return _checked(ctx, starts, [stop], lambda counts: [_Range(as_int64(0), counts[0])], text)


@dataclass(frozen=True, slots=True)
class _Range:
    """The numbers from `first` to before `stop`."""

    first: tirx.Expr
    stop: tirx.Expr


def _are_inside(known: np.ndarray | None, sizes: Sequence[Extent], from_end: bool) -> bool:
    """Whether constant places are inside of dimensions of any size from 1."""
    if known is None:
        return False
    columns = known.reshape(-1, len(sizes)).T if len(sizes) > 1 else [known.reshape(-1)]
    least = [size if isinstance(size, int) else 1 for size in sizes]
    return all(
        c.size == 0 or (c.min() >= (-n if from_end else 0) and c.max() < n) for c, n in zip(columns, least, strict=True)
    )


def _checked(
    ctx: Context,
    table: relax.Expr,
    sizes: Sequence[Extent],
    ranges: Callable[[Sequence[tirx.Expr]], list[_Range]],
    text: str,
) -> relax.Expr:
    """A copy of whole numbers, of which negative ones have the size added; `text` is what is wrong with others."""
    dtype = dtype_of(table)

    def compute(given: list[te.Tensor], counts: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        read = tirx.decl_buffer(given[0].shape, dtype, "given")
        written = tirx.decl_buffer(shape, dtype, "checked")

        def body(ins: Sequence[tirx.Buffer], outs: Sequence[tirx.Buffer]) -> tirx.Stmt:
            return _body(ins[0], outs[0], counts, ranges(counts), lambda right: asserted(ctx, right, text))

        buffers = {"in_buffers": [read], "out_buffers": [written]}
        return te.extern([tuple(shape)], given, body, name="checked", dtype=[dtype], **buffers)

    return emit_sized(ctx.bb, compute, [table], sizes, dims_of(table), dtype, "checked_places", opaque=True)


def _body(
    table: tirx.Buffer,
    found: tirx.Buffer,
    counts: Sequence[tirx.Expr],
    ranges: Sequence[_Range],
    check: Callable[[tirx.Expr], tirx.Stmt],
) -> tirx.Stmt:
    """The least and the greatest number of each column, their check, and the numbers counted from the start.

    The check stands between two loops, so that LLVM makes vectors of both.
    """
    columns = range(len(counts))
    least, greatest = (tirx.decl_buffer([len(counts)], "int64", name, scope="local") for name in ("least", "greatest"))
    outer = table.shape[:-1] if len(counts) > 1 else table.shape

    def at(i: Sequence[tirx.Var], column: int) -> list[tirx.Expr]:
        return [*i, as_int64(column)] if len(counts) > 1 else list(i)

    def number(i: Sequence[tirx.Var], column: int) -> tirx.Expr:
        return tirx.BufferLoad(table, at(i, column)).astype("int64")

    def widened(i: Sequence[tirx.Var], c: int) -> list[tirx.Stmt]:
        low, high = tirx.min(least[c], number(i, c)), tirx.max(greatest[c], number(i, c))
        return [tirx.BufferStore(least, low, [c]), tirx.BufferStore(greatest, high, [c])]

    def counted(i: Sequence[tirx.Var], c: int) -> list[tirx.Stmt]:
        place = tirx.Select(number(i, c) < as_int64(0), number(i, c) + counts[c], number(i, c))
        return [tirx.BufferStore(found, place.astype(str(table.dtype)), at(i, c))]

    right = [tirx.all(least[c] >= ranges[c].first, greatest[c] < ranges[c].stop) for c in columns]
    return tirx.SeqStmt(
        [
            tirx.AllocBuffer(least),
            tirx.AllocBuffer(greatest),
            *(tirx.BufferStore(least, as_int64(0), [c]) for c in columns),
            *(tirx.BufferStore(greatest, as_int64(-1), [c]) for c in columns),
            nest(outer, lambda i: [line for c in columns for line in widened(i, c)]),
            check(tirx.all(*right)),
            nest(outer, lambda i: [line for c in columns for line in counted(i, c)]),
        ]
    )

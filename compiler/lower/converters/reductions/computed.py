"""Reductions along axes that are computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.arrays.axes import entry_of, is_there, left_sizes, most_entries, right_axes
from heterocc.compiler.lower.converters.computed.numbers import (
    elements,
    loop,
    product,
    results,
    sizes,
    table,
    unravelled,
    vector,
    whole,
)
from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, rank_of
from heterocc.compiler.operators.record import Operator

Buffers = Sequence[tirx.Buffer]
Rule = Callable[[tirx.Expr, tirx.Expr, tirx.Expr], tirx.Expr]
"""From a total, an element and another number of its place to the next total."""


def _reduces(operator: Operator) -> bool:
    return operator.reduces is not None


def _is_reduced(ctx: Context, axes: tirx.Buffer, axis: int, rank: int) -> tirx.Expr:
    """Whether an axis is among the computed ones. No axes are all, or none with `noop_with_empty_axes`."""
    found = [(n, entry_of(axes, n)) for n in range(most_entries(axes, rank))]
    named = [tirx.all(is_there(axes, n), tirx.any(f == whole(axis), f == whole(axis - rank))) for n, f in found]
    if not ctx.attrs.get("noop_with_empty_axes", 0):
        named.append(axes.shape[0].astype("int64") == whole(0))
    return tirx.any(*named, tirx.const(False, "bool"))


def _require_count(ctx: Context, axes: relax.Expr) -> int:
    """The number of axes that are left out of the result, if any are."""
    count = dims_of(axes)[0]
    if isinstance(count, int) and count:
        return count
    if isinstance(count, int) or not ctx.attrs.get("keepdims", 1):
        raise NotImplementedError("the number of axes depends on data")
    return 0


@sizes(_reduces)
def _sizes(ctx: Context, data: relax.Expr, axes: relax.Expr) -> relax.Expr:
    rank, count = rank_of(data), _require_count(ctx, axes)
    kept = bool(ctx.attrs.get("keepdims", 1))

    def numbers(ins: Buffers) -> list[tirx.Expr]:
        reduced = [_is_reduced(ctx, ins[1], axis, rank) for axis in range(rank)]
        dims = [d.astype("int64") for d in ins[0].shape]
        if kept:
            return [tirx.Select(r, whole(1), d) for r, d in zip(reduced, dims, strict=True)]
        return left_sizes(dims, reduced, rank - count)

    def check(ins: Buffers) -> list[tuple[tirx.Expr, str]]:
        return right_axes(ins[1], rank, distinct=not kept)

    return vector(ctx, [data, axes], rank if kept else rank - count, numbers, check)


@results(_reduces)
def _reduced(ctx: Context, data: relax.Expr, axes: relax.Expr) -> relax.Expr:
    kind, dtype = ctx.record.reduces, dtype_of(data)
    _require_count(ctx, axes)
    exact = ("float32", "float64", "int32", "int64")
    work = dtype if dtype in exact else "float32" if dtype.startswith(("float", "bfloat")) else "int64"
    if kind == "log sum exp" and "int" in work:
        work = "float64"
    zero, one = tirx.const(0, work), tirx.const(1, work)
    if kind == "log sum exp":
        lowest = -tirx.infinity(work)
        top = _accumulated(ctx, data, axes, lowest, _larger, work, from_first=True)
        total = _accumulated(ctx, data, axes, zero, lambda t, x, top: t + tirx.exp(x - _finite(top)), work, top)
        return _finished(ctx, [total, top], data, lambda t, _: tirx.log(t[0]) + _finite(t[1]), dtype)
    extreme = kind in ("largest", "smallest")
    rule: Rule
    if extreme:
        rule = _larger if kind == "largest" else _smaller
        if dtype == "bool":
            first = zero if kind == "largest" else one
        elif work.startswith("float"):
            first = -tirx.infinity(work) if kind == "largest" else tirx.infinity(work)
        else:
            first = tirx.min_value(work) if kind == "largest" else tirx.max_value(work)
    elif kind == "product":
        first, rule = one, _multiplied
    else:
        first, rule = zero, _ADDED.get(str(kind), _added)
    total = _accumulated(ctx, data, axes, first, rule, work, from_first=extreme)

    def end(values: list[tirx.Expr], count: tirx.Expr) -> tirx.Expr:
        value = values[0]
        if kind == "mean":
            # The mean of nothing is 0, as in ONNX Runtime; ONNX leaves it undefined.
            divisor = tirx.max(count, whole(1)).astype(work)
            return tirx.truncdiv(value, divisor) if "int" in work else value / divisor
        if kind in ("norm", "log sum"):
            value = value.astype("float64") if "int" in work else value
            return tirx.sqrt(value) if kind == "norm" else tirx.log(value)
        return value

    return _finished(ctx, [total], data, end, dtype)


def _larger(total: tirx.Expr, x: tirx.Expr, _: tirx.Expr) -> tirx.Expr:
    """The larger one; the total if the other is NaN, as on CPUs everywhere (decision 7)."""
    return tirx.Select(x > total, x, total)


def _smaller(total: tirx.Expr, x: tirx.Expr, _: tirx.Expr) -> tirx.Expr:
    return tirx.Select(x < total, x, total)


def _finite(top: tirx.Expr) -> tirx.Expr:
    """What is subtracted from exponents: 0 in place of infinity, as inf - inf is NaN."""
    return tirx.Select(tirx.abs(top) == tirx.infinity(top.ty.dtype), tirx.const(0, top.ty.dtype), top)


def _multiplied(total: tirx.Expr, x: tirx.Expr, _: tirx.Expr) -> tirx.Expr:
    return total * x


def _added(total: tirx.Expr, x: tirx.Expr, _: tirx.Expr) -> tirx.Expr:
    return total + x


def _with_square(total: tirx.Expr, x: tirx.Expr, _: tirx.Expr) -> tirx.Expr:
    return total + x * x


_ADDED: Mapping[str, Rule] = {
    "norm": _with_square,
    "square sum": _with_square,
    "absolute sum": lambda total, x, _: total + tirx.max(x, -x),
}
"""What an element adds to a total, where that is not the element."""


def _accumulated(
    ctx: Context,
    data: relax.Expr,
    axes: relax.Expr,
    start: tirx.Expr,
    rule: Rule,
    work: str,
    other: relax.Expr | None = None,
    *,
    from_first: bool = False,
) -> relax.Expr:
    """`rule(total, element, other)` over all elements, each at the place that is left of its own.

    Totals are `start` before, or with `from_first` their first elements, if they have any.
    """

    def write(ins: Buffers, out: tirx.Buffer) -> tirx.Stmt:
        x, rank = ins[0], len(ins[0].shape)

        def begin(i: tirx.Var) -> tirx.Stmt:
            return tirx.BufferStore(out, start, unravelled(i, out.shape))

        def add(i: tirx.Var) -> tirx.Stmt:
            spots = unravelled(i, x.shape)
            place, behind = whole(0), []
            for axis, (spot, size) in enumerate(zip(spots, x.shape, strict=True)):
                reduced = _is_reduced(ctx, ins[1], axis, rank)
                place = tirx.Select(reduced, place, place * size.astype("int64") + spot)
                behind.append(tirx.all(reduced, spot > whole(0)))
            at = unravelled(place, out.shape)
            element = x[tuple(spots)].astype(work)
            value = rule(out[tuple(at)], element, zero if other is None else ins[2][tuple(at)])
            return tirx.BufferStore(out, tirx.Select(tirx.any(*behind), value, element) if from_first else value, at)

        return tirx.SeqStmt([loop(product(out.shape), begin), loop(product(x.shape), add)])

    zero = tirx.const(0, work)
    return table(ctx, [data, axes, *([] if other is None else [other])], ctx.result(), write, work, "reduce")


def _finished(ctx: Context, totals: list[relax.Expr], data: relax.Expr, end: object, dtype: str) -> relax.Expr:
    """`end(totals, number of elements of each)`, element by element."""

    def at(given: list[te.Tensor], shape: Sequence[tirx.Expr], i: list[tirx.Var]) -> tirx.Expr:
        count = tirx.floordiv(product(given[-1].shape), tirx.max(product(shape), whole(1)))
        return end([t(*i) for t in given[:-1]], count).astype(dtype)  # type: ignore[operator]

    return elements(ctx, [*totals, data], at, dtype, "reduced")

"""Reshape, Flatten, Expand, Unsqueeze, Squeeze and Tile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.arrays.axes import count_of, left_sizes, on_axis, right_axes
from heterocc.compiler.lower.converters.computed.numbers import element, product, results, sizes, vector, whole
from heterocc.compiler.lower.converters.registry import RESULTS, Context, converter
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, fixed, rank_of
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.lower.variables import Extent, as_int64, same
from heterocc.compiler.lower.written import RESHAPES

op = relax.op
Buffers = Sequence[tirx.Buffer]


@converter("Reshape", "Flatten")
def _reshape(ctx: Context, data: relax.Expr, shape: relax.Expr | None = None) -> relax.Expr:
    """Reshape and Flatten. TVM's converters infer no product of several sizes."""
    if not ctx.is_symbolic(0):
        return ctx.original(data) if shape is None else ctx.original(data, shape)
    if ctx.is_assumed():
        return reshaped(ctx.bb, data, ctx.result())
    return op.reshape(data, [as_int64(n) for n in ctx.result()])


def reshaped(bb: relax.BlockBuilder, data: relax.Expr, shape: Sequence[Extent]) -> relax.Expr:
    """The data with another shape, whose dimensions are equal to its own in each run."""

    def compute(given: list[te.Tensor], _: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        return te.compute(shape, lambda *i: given[0](*i), name="reshaped")

    return emit_sized(bb, compute, [data], [], tuple(shape), dtype_of(data), "reshaped", attrs={RESHAPES: True})


@converter("Expand")
@converter("Expand", domain=RESULTS)
def _expand(ctx: Context, data: relax.Expr, shape: relax.Expr) -> relax.Expr:
    if not ctx.is_symbolic(0) and not ctx.is_symbolic_data(data):
        return ctx.original(data, shape)
    return expanded(ctx, data, ctx.result())


def expanded(ctx: Context, data: relax.Expr, wanted: Sequence[Extent]) -> relax.Expr:
    """The data broadcast to a shape, of which a run may show whether its sizes are 1."""
    own = dims_of(data)
    kept = wanted[len(wanted) - len(own) :]
    chosen = [not (isinstance(a, int) and a == 1) and not same((a,), (b,)) for a, b in zip(own, kept, strict=True)]
    if not any(chosen):
        return op.broadcast_to(data, [as_int64(n) for n in wanted])

    def compute(tensors: list[te.Tensor], sizes: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        def at(*i: tirx.Var) -> tirx.Expr:
            places = []
            for place, size, open_ in zip(i[len(wanted) - len(own) :], sizes, chosen, strict=True):
                place, zero = place.astype("int64"), as_int64(0)
                known = zero if isinstance(size, tirx.IntImm) and int(size) == 1 else place
                places.append(tirx.Select(tirx.EQ(size, as_int64(1)), zero, place) if open_ else known)
            return tensors[0](*places)

        return te.compute(shape, at, name="expand")

    return emit_sized(ctx.bb, compute, [data], own, wanted, dtype_of(data), "expand")


def spread(ctx: Context, parameter: relax.Expr, shape: Sequence[Extent]) -> relax.Expr:
    """A parameter beside data of a shape: expanded to its last sizes, if only a run knows which of its own are 1."""
    own = dims_of(parameter)
    kept = shape[len(shape) - len(own) :]
    if all(a == 1 or isinstance(a, int) or same((a,), (b,)) for a, b in zip(own, kept, strict=True)):
        return parameter
    return expanded(ctx, parameter, kept)


@sizes("Reshape")
def _reshape_sizes(ctx: Context, data: relax.Expr, shape: relax.Expr) -> relax.Expr:
    """The sizes of a Reshape: 0 copies a size, unless `allowzero` is set, and -1 is what is left."""
    count, rank = count_of(shape, "the rank of the result"), rank_of(data)
    copies = not ctx.attrs.get("allowzero", 0)

    def asked(ins: Buffers) -> list[tirx.Expr]:
        found = []
        for axis in range(count):
            size = element(ins[1], axis)
            if copies and axis < rank:
                size = tirx.Select(size == whole(0), ins[0].shape[axis].astype("int64"), size)
            found.append(size)
        return found

    def known(ins: Buffers) -> tirx.Expr:
        return product([tirx.Select(size == whole(-1), whole(1), size) for size in asked(ins)])

    def numbers(ins: Buffers) -> list[tirx.Expr]:
        rest = tirx.floordiv(product(ins[0].shape), tirx.max(known(ins), whole(1)))
        return [tirx.Select(size == whole(-1), rest, size) for size in asked(ins)]

    def check(ins: Buffers) -> list[tuple[tirx.Expr, str]]:
        wanted, rest = asked(ins), known(ins)
        open_ = reduce(add, [tirx.Select(size == whole(-1), whole(1), whole(0)) for size in wanted], whole(0))
        # What is left for a -1 beside a 0 is not known, and a 0 behind the input's dimensions copies none.
        left = tirx.any(open_ == whole(0), tirx.all(open_ == whole(1), rest != whole(0)))
        copied = [size != whole(0) for axis, size in enumerate(wanted) if copies and axis >= rank]
        least = [size >= whole(-1) for size in wanted]
        right = product(numbers(ins)) == product(ins[0].shape)
        return [(tirx.all(right, left, *least, *copied), "the input cannot have the shape that it is given")]

    return vector(ctx, [data, shape], count, numbers, check)


@results("Reshape", "Unsqueeze", "Squeeze")
def _reshaped_to(ctx: Context, data: relax.Expr, _numbers: relax.Expr) -> relax.Expr:
    return op.reshape(data, [as_int64(n) for n in ctx.result()])


@sizes("Expand")
def _expand_sizes(ctx: Context, data: relax.Expr, shape: relax.Expr) -> relax.Expr:
    count, rank = count_of(shape, "the rank of the result"), rank_of(data)
    full = max(count, rank)

    def pairs(ins: Buffers) -> list[tuple[tirx.Expr, tirx.Expr]]:
        own = [whole(1)] * (full - rank) + [d.astype("int64") for d in ins[0].shape]
        asked = [whole(1)] * (full - count) + [element(ins[1], i) for i in range(count)]
        return list(zip(own, asked, strict=True))

    def numbers(ins: Buffers) -> list[tirx.Expr]:
        return [tirx.Select(a == whole(1), b, a) for a, b in pairs(ins)]

    def check(ins: Buffers) -> list[tuple[tirx.Expr, str]]:
        fits = [tirx.all(b >= whole(0), tirx.any(a == b, a == whole(1), b == whole(1))) for a, b in pairs(ins)]
        return [(tirx.all(*fits, whole(0) == whole(0)), "the input cannot be expanded to the shape that it is given")]

    return vector(ctx, [data, shape], full, numbers, check)


@converter("Unsqueeze")
def _unsqueeze(ctx: Context, data: relax.Expr, axes: relax.Expr | None = None) -> relax.Expr:
    """Unsqueeze, whose only axis may be a scalar as in ONNX Runtime."""
    if axes is None:
        return ctx.original(data)
    if rank_of(axes) or not ctx.is_known(axes):
        return ctx.original(data, axes)
    return op.expand_dims(data, int(ctx.known(axes)))


@sizes("Unsqueeze")
def _unsqueeze_sizes(ctx: Context, data: relax.Expr, axes: relax.Expr) -> relax.Expr:
    rank = rank_of(data) + count_of(axes)

    def numbers(ins: Buffers) -> list[tirx.Expr]:
        added = [_any_entry(ins[1], axis, rank) for axis in range(rank)]
        return _dealt(added, [d.astype("int64") for d in ins[0].shape])

    return vector(ctx, [data, axes], rank, numbers, lambda ins: right_axes(ins[1], rank))


@sizes("Squeeze")
def _squeeze_sizes(ctx: Context, data: relax.Expr, axes: relax.Expr) -> relax.Expr:
    rank = rank_of(data)

    def gone(ins: Buffers) -> list[tirx.Expr]:
        return [_any_entry(ins[1], axis, rank) for axis in range(rank)]

    def numbers(ins: Buffers) -> list[tirx.Expr]:
        return left_sizes(ins[0].shape, gone(ins), rank - count_of(axes))

    def check(ins: Buffers) -> list[tuple[tirx.Expr, str]]:
        total, left = whole(1), whole(1)
        for d in ins[0].shape:
            total = total * d.astype("int64")
        for size in numbers(ins):
            left = left * size
        text = "an axis that is removed has more than one element"
        return [*right_axes(ins[1], rank), (total == left, text)]

    return vector(ctx, [data, axes], rank - count_of(axes), numbers, check)


def _any_entry(axes: tirx.Buffer, axis: int, rank: int) -> tirx.Expr:
    return tirx.any(*(on_axis(axes, entry, axis, rank) for entry in range(int(axes.shape[0]))))


def _dealt(added: list[tirx.Expr], dims: list[tirx.Expr]) -> list[tirx.Expr]:
    """1 for each added axis, and the dimensions in order for the others."""
    found, used = [], whole(0)
    for one in added:
        size = whole(1)
        for place, dim in enumerate(dims):
            size = tirx.Select(used == whole(place), dim, size)
        found.append(tirx.Select(one, whole(1), size))
        used = used + tirx.Select(one, whole(0), whole(1))
    return found


@converter("Tile")
@converter("Tile", domain=RESULTS)
def _tile(ctx: Context, data: relax.Expr, times: relax.Expr) -> relax.Expr:
    counts = fixed(times)
    if not ctx.is_symbolic(0) or (ctx.backend == "cpu" and counts is not None and all(counts > 0)):
        return tiled(ctx, data, times)
    once = [axis for axis, (a, b) in enumerate(zip(dims_of(data), ctx.result(), strict=True)) if same([a], [b])]

    def compute(given: list[te.Tensor], _: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        def at(*place: tirx.Var) -> tirx.Expr:
            sizes = enumerate(zip(place, given[0].shape, strict=True))
            return given[0](*(i if axis in once else tirx.floormod(i, size) for axis, (i, size) in sizes))

        return te.compute(shape, at, name="tile")

    return emit_sized(ctx.bb, compute, [data], [], ctx.result(), dtype_of(data), "tile")


def tiled(ctx: Context, data: relax.Expr, repeats: relax.Expr) -> relax.Expr:
    """Tile as a broadcast along axes of its own, and a view of that.

    Repetitions of single elements are a broadcast that operators behind it do not wait for.
    """
    shape, times = dims_of(data), fixed(repeats)
    has_elements = all(n > 0 for n in shape if isinstance(n, int))
    if ctx.backend != "cpu" or not has_elements or times is None or len(times) != len(shape) or not all(times > 0):
        return ctx.original(data, repeats)
    if all(times == 1):
        return data
    result = [n * int(count) for n, count in zip(shape, times, strict=True)]
    if all(count == 1 or (isinstance(n, int) and n == 1) for n, count in zip(shape, times, strict=True)):
        return op.broadcast_to(data, result)
    apart = [n for pair in zip(map(int, times), shape, strict=True) for n in pair]

    def compute(given: list[te.Tensor], _: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
        return te.compute(wanted, lambda *place: given[0](*place[1::2]), name="tile")

    # Fused with the view, it would divide the place of each element.
    made = emit_sized(ctx.bb, compute, [data], [], apart, dtype_of(data), "tile", opaque=True)
    return op.reshape(made, [as_int64(n) for n in result])

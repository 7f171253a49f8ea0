"""Converters of operators whose result's shape is computed from sizes of the inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.registry import RESULTS, Context, converter
from heterocc.compiler.lower.converters.shapes import tiled
from heterocc.compiler.lower.converters.values import cropped_place, dims_of, dtype_of, filled, fixed, rank_of
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.lower.straight import constant
from heterocc.compiler.lower.variables import Extent, as_int64, same

op = relax.op


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

    return emit_sized(bb, compute, [data], [], tuple(shape), dtype_of(data), "reshaped")


@converter("Expand")
@converter("Expand", domain=RESULTS)
def _expand(ctx: Context, data: relax.Expr, shape: relax.Expr) -> relax.Expr:
    if not ctx.is_symbolic(0) and not ctx.is_symbolic_data(data):
        return ctx.original(data, shape)
    wanted = ctx.result()
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


@converter("ConstantOfShape")
@converter("ConstantOfShape", domain=RESULTS)
def _constant_of_shape(ctx: Context, shape: relax.Expr) -> relax.Expr:
    if not ctx.is_symbolic(0):
        return ctx.original(shape)
    attribute = ctx.attrs.get("value")
    value = np.zeros(1, np.float32) if attribute is None else onnx.numpy_helper.to_array(attribute)
    return filled(ctx.result(), value)


@converter("Range")
def _range(ctx: Context, start: relax.Expr, limit: relax.Expr, delta: relax.Expr) -> relax.Expr:
    """Range between integers that follow from sizes."""
    if not ctx.is_symbolic(0):
        return ctx.original(start, limit, delta)
    known = [ctx.sizes(index) or _whole_constant(value) for index, value in enumerate((start, limit, delta))]
    if any(k is None for k in known):
        raise NotImplementedError("the ends of the range are computed from data")
    dtype = dtype_of(start)

    def compute(_: list[te.Tensor], ends: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        first, step = ends
        return te.compute(shape, lambda i: (first + i.astype("int64") * step).astype(dtype), name="range")

    ends = [k[0] for k in known if k is not None]
    return emit_sized(ctx.bb, compute, [], [ends[0], ends[2]], ctx.result(), dtype, "range")


def _whole_constant(value: relax.Expr) -> tuple[int] | None:
    """The element of a constant of one whole number."""
    array = fixed(value)
    return None if array is None or array.size != 1 or not float(array.flat[0]).is_integer() else (int(array.flat[0]),)


@converter("Slice")
def _slice(ctx: Context, data: relax.Expr, *ends: relax.Expr | None) -> relax.Expr:
    """Slice. A request that is larger than the model allows may have an end beyond the data."""
    if not ctx.is_symbolic(0) and not ctx.is_symbolic_data(data):
        return ctx.original(data, *ends)
    if ctx.opset < 10:
        raise NotImplementedError("slices of dimensions without a fixed size need operator set 10")
    starts, axes = ctx.sizes(1), ctx.sizes(3)
    steps = ctx.sizes(4) if len(ends) > 3 and ends[3] is not None else None
    if starts is None or (len(ends) > 2 and ends[2] is not None and axes is None):
        raise NotImplementedError("the start of the slice is computed from data")
    sizes = dims_of(data)
    places = [int(a) for a in axes] if axes is not None else list(range(len(starts)))
    result = ctx.result()
    stride: dict[int, int] = {}
    begin: dict[int, Extent] = {}
    for index, (axis, start) in enumerate(zip(places, starts, strict=True)):
        step = int(steps[index]) if steps is not None else 1
        axis %= len(sizes)
        if step == 1 and same([result[axis]], [sizes[axis]]):
            continue  # all of the axis
        from_back = isinstance(start, int) and start < 0
        begin[axis] = tirx.max(tirx.const(0, "int64"), as_int64(sizes[axis]) + start) if from_back else start
        if step < 0 and not from_back:
            begin[axis] = tirx.min(as_int64(start), as_int64(sizes[axis]) - 1)
        stride[axis] = step

    def compute(given: list[te.Tensor], starts: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        data = given[0]
        first = dict(zip(begin, starts, strict=True))

        def place(axis: int, index: tirx.Var) -> tirx.Expr:
            if axis not in first:
                return index
            last = data.shape[axis] - tirx.const(1, "int64")
            return tirx.min(first[axis] + index * tirx.const(stride[axis], "int64"), last)

        return te.compute(shape, lambda *i: data(*map(place, range(len(i)), i)), name="slice")

    return emit_sized(ctx.bb, compute, [data], list(begin.values()), result, dtype_of(data), "slice")


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


@converter("Pad")
def _pad(
    ctx: Context,
    data: relax.Expr,
    pads: relax.Expr | None = None,
    value: relax.Expr | None = None,
    axes: relax.Expr | None = None,
) -> relax.Expr:
    """Pad by numbers that follow from sizes, such as those that make a side a multiple of a window's."""
    given = (pads, value, axes)[: max(len(ctx.node.input) - 1, 0)]
    if pads is None or ctx.is_known(pads):
        return _padded_by_numbers(ctx, data, pads, *given[1:])
    known, mode = ctx.sizes(1), ctx.text("mode", "constant")
    places = ctx.sizes(3) if axes is not None else range(len(ctx.result()))
    if known is None or places is None or any(not isinstance(a, int) for a in places):
        raise NotImplementedError("the padding is computed from data")
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise NotImplementedError(f"mode {mode} is not supported")
    axes_padded = [int(axis) % len(ctx.result()) for axis in places]
    count = len(axes_padded)

    def compute(tensors: list[te.Tensor], numbers: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        sides = {axis: (numbers[n], numbers[n + count]) for n, axis in enumerate(axes_padded)}

        def at(*i: tirx.Var) -> tirx.Expr:
            found = {
                axis: cropped_place(i[axis].astype("int64"), tensors[0].shape[axis].astype("int64"), *both, mode)
                for axis, both in sides.items()
            }
            inside = [is_inside for _, is_inside in found.values()]
            read = tensors[0](*(found[a][0] if a in found else v for a, v in enumerate(i)))
            if mode != "constant":
                return read
            fill = tensors[1](*[as_int64(0)] * len(tensors[1].shape)) if value is not None else None
            zero = tirx.const(0, dtype_of(data))
            return tirx.if_then_else(tirx.all(*inside), read, zero if fill is None else fill)

        return te.compute(shape, at, name="pad")

    tensors = [data, *([] if value is None or mode != "constant" else [value])]
    return emit_sized(ctx.bb, compute, tensors, list(known), ctx.result(), dtype_of(data), "pad")


def _padded_by_numbers(
    ctx: Context, data: relax.Expr, pads: relax.Expr | None, *others: relax.Expr | None
) -> relax.Expr:
    """TVM's padding. Negative numbers of other modes than `constant` crop the data first, as in ONNX Runtime."""
    numbers = [int(n) for n in (ctx.attrs.get("pads", ()) if pads is None else ctx.known(pads))]
    if ctx.text("mode", "constant") == "constant" or not any(n < 0 for n in numbers) or pads is None:
        return ctx.original(data, *([] if pads is None else [pads]), *others)
    axes, count = others[1] if len(others) > 1 else None, len(numbers) // 2
    places = range(count) if axes is None else [int(a) % rank_of(data) for a in ctx.known(axes)]
    cut = {axis: (max(-numbers[n], 0), max(-numbers[n + count], 0)) for n, axis in enumerate(places)}

    def compute(x: te.Tensor) -> te.Tensor:
        shape = [size - sum(cut.get(axis, (0, 0))) for axis, size in enumerate(x.shape)]
        return te.compute(shape, lambda *i: x(*(v + cut.get(axis, (0, 0))[0] for axis, v in enumerate(i))), name="crop")

    cropped = ctx.bb.emit_te(compute, data, primfunc_name_hint="crop")
    return ctx.original(cropped, constant(np.array([max(n, 0) for n in numbers], np.int64)), *others)


def from_sizes(bb: relax.BlockBuilder, elements: tuple[Extent, ...], shape: tuple[int, ...], dtype: str) -> relax.Expr:
    """A tensor of integers that follow from sizes."""
    if all(isinstance(e, int) for e in elements):
        return constant(np.array(elements, dtype).reshape(shape))

    def compute(_: list[te.Tensor], elements: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        def at(*i: tirx.Var) -> tirx.Expr:
            place = tirx.const(0, "int64")
            for n, v in zip(shape, i, strict=True):
                place = place * n + v.astype("int64")
            found = elements[-1]
            for index in range(len(elements) - 2, -1, -1):
                found = tirx.Select(place == tirx.const(index, "int64"), elements[index], found)
            return found.astype(dtype)

        return te.compute(shape, at, name="sizes")

    return emit_sized(bb, compute, [], elements, shape, dtype, "sizes")

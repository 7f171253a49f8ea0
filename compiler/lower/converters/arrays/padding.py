"""Pad: by numbers that are known or follow from sizes, and by numbers that are data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.arrays.axes import count_of, on_axis, right_axes
from heterocc.compiler.lower.converters.computed.numbers import (
    LARGEST,
    element,
    elements,
    results,
    sizes,
    vector,
    whole,
)
from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import cropped_place, dtype_of, rank_of
from heterocc.compiler.lower.sized import emit_sized
from heterocc.compiler.lower.straight import constant

Buffers = Sequence[tirx.Buffer]


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
            return _read(tensors[0], tensors[1] if len(tensors) > 1 else None, i, found, mode)

        return te.compute(shape, at, name="pad")

    tensors = [data, *([] if value is None or mode != "constant" else [value])]
    return emit_sized(ctx.bb, compute, tensors, list(known), ctx.result(), dtype_of(data), "pad")


def _padded_by_numbers(
    ctx: Context, data: relax.Expr, pads: relax.Expr | None, *others: relax.Expr | None
) -> relax.Expr:
    """Padding by known numbers. Where it is TVM's, negative ones crop the data first, as in ONNX Runtime."""
    numbers = [int(n) for n in (ctx.attrs.get("pads", ()) if pads is None else ctx.known(pads))]
    value, axes = others[0] if others else None, others[1] if len(others) > 1 else None
    count, mode = len(numbers) // 2, ctx.text("mode", "constant")
    places = range(count) if axes is None else [int(a) % rank_of(data) for a in ctx.known(axes)]
    if mode == "wrap" or (mode == "constant" and value is not None and not ctx.is_known(value)):
        sides = {axis: (numbers[n], numbers[n + count]) for n, axis in enumerate(places)}
        return _padded_by_elements(ctx, [data, *([] if mode == "wrap" or value is None else [value])], sides, mode)
    if mode == "constant" or not any(n < 0 for n in numbers) or pads is None:
        return ctx.original(data, *([] if pads is None else [pads]), *others)
    cut = {axis: (max(-numbers[n], 0), max(-numbers[n + count], 0)) for n, axis in enumerate(places)}

    def compute(x: te.Tensor) -> te.Tensor:
        shape = [size - sum(cut.get(axis, (0, 0))) for axis, size in enumerate(x.shape)]
        return te.compute(shape, lambda *i: x(*(v + cut.get(axis, (0, 0))[0] for axis, v in enumerate(i))), name="crop")

    cropped = ctx.bb.emit_te(compute, data, primfunc_name_hint="crop")
    return ctx.original(cropped, constant(np.array([max(n, 0) for n in numbers], np.int64)), *others)


def _padded_by_elements(
    ctx: Context, tensors: Sequence[relax.Expr], numbers: Mapping[int, tuple[int, int]], mode: str
) -> relax.Expr:
    """Data, the first of tensors, padded by known numbers around axes; for a constant, the second is this element."""
    sides = {axis: (whole(before), whole(after)) for axis, (before, after) in numbers.items() if before or after}

    def at(given: list[te.Tensor], _: Sequence[tirx.Expr], i: list[tirx.Var]) -> tirx.Expr:
        sizes = [size.astype("int64") for size in given[0].shape]
        found = {axis: cropped_place(i[axis], sizes[axis], *both, mode) for axis, both in sides.items()}
        return _read(given[0], given[1] if len(given) > 1 else None, i, found, mode)

    return elements(ctx, tensors, at, dtype_of(tensors[0]), "pad")


def _read(
    data: te.Tensor,
    value: te.Tensor | None,
    i: Sequence[tirx.Var],
    found: Mapping[int, tuple[tirx.Expr, tirx.Expr]],
    mode: str,
) -> tirx.Expr:
    """An element of padded data. For axes that are padded, `found` has the place in the data, and whether it is one."""
    read = data(*(found[axis][0] if axis in found else v for axis, v in enumerate(i)))
    if mode != "constant" or not found:
        return read
    fill = tirx.const(0, data.dtype) if value is None else value(*[whole(0)] * len(value.shape))
    return tirx.if_then_else(tirx.all(*(inside for _, inside in found.values())), read, fill)


def _pads(ins: Sequence[tirx.Buffer | te.Tensor], has_axes: bool, count: int, axis: int) -> list[tirx.Expr]:
    """The padding before and after an axis."""
    rank = len(ins[0].shape)
    found = [whole(0), whole(0)]
    for entry in range(count):
        here = on_axis(ins[2] if has_axes else None, entry, axis, rank)
        for side in (0, 1):
            number = ins[1][(whole(entry + side * count),)].astype("int64")
            found[side] = tirx.Select(here, number, found[side])
    return found


@sizes("Pad")
def _pad_sizes(
    ctx: Context, data: relax.Expr, pads: relax.Expr, _value: object = None, axes: object = None
) -> relax.Expr:
    rank, count = rank_of(data), count_of(pads) // 2
    tensors = [data, pads, *([] if axes is None else [axes])]

    def numbers(ins: Buffers) -> list[tirx.Expr]:
        found = []
        for axis in range(rank):
            before, after = _pads(ins, axes is not None, count, axis)
            found.append(ins[0].shape[axis].astype("int64") + before + after)
        return found

    def check(ins: Buffers) -> list[tuple[tirx.Expr, str]]:
        numbers = [element(ins[1], entry) for entry in range(2 * count)]
        inside = [tirx.all(n <= whole(LARGEST), n >= whole(-LARGEST)) for n in numbers]
        limited = (tirx.all(whole(0) == whole(0), *inside), f"a padding exceeds {LARGEST} elements, the limit")
        return [limited, *(() if axes is None else right_axes(ins[2], rank)), *enough(ins)]

    def enough(ins: Buffers) -> list[tuple[tirx.Expr, str]]:
        """What is changed has an element left, and one more than a reflection repeats."""
        if mode == "constant":
            return []
        right = []
        for axis in range(rank):
            before, after = _pads(ins, axes is not None, count, axis)
            cut = tirx.min(before, whole(0)) + tirx.min(after, whole(0))
            added = tirx.max(tirx.max(before, after), whole(0))
            changed = tirx.Select(tirx.any(added > whole(0), cut < whole(0)), whole(1), whole(0))
            least = changed + (added if mode == "reflect" else whole(0))
            right.append(ins[0].shape[axis].astype("int64") + cut >= least)
        return [(tirx.all(whole(0) == whole(0), *right), "a dimension is too small for its padding")]

    mode = ctx.text("mode", "constant")
    return vector(ctx, tensors, rank, numbers, check)


@results("Pad")
def _padded(
    ctx: Context, data: relax.Expr, pads: relax.Expr, value: relax.Expr | None = None, axes: relax.Expr | None = None
) -> relax.Expr:
    mode, count = ctx.text("mode", "constant"), count_of(pads) // 2
    tensors = [data, pads, *([] if axes is None else [axes]), *([] if value is None else [value])]
    if mode not in ("constant", "edge", "reflect", "wrap"):
        raise NotImplementedError(f"mode {mode} is not supported")

    def at(given: list[te.Tensor], _: Sequence[tirx.Expr], i: list[tirx.Var]) -> tirx.Expr:
        found = {}
        for axis, v in enumerate(i):
            size = given[0].shape[axis].astype("int64")
            before, after = _pads(given, axes is not None, count, axis)
            found[axis] = cropped_place(v, size, before, after, mode)
        return _read(given[0], None if value is None else given[-1], i, found, mode)

    return elements(ctx, tensors, at, dtype_of(data), "pad")

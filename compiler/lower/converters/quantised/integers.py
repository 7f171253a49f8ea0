"""Sums of products of 8-bit integers by constant weights, for devices that compute these in integers.

The products are of unsigned data and signed weights, the form of the instructions of CPUs; offsets and zero points
become terms that are added to the sums. Σ (a - p)(b - q) = Σ ab - p Σ b - q Σ (a - p).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.converters.values import (
    dims_of,
    dtype_of,
    fixed,
    fixed_size,
    is_known_empty,
    rank_of,
    shape_of,
)
from heterocc.compiler.lower.straight import constant
from heterocc.compiler.lower.variables import Extent
from heterocc.compiler.lower.written import INJECTIVE, PATTERN

op = relax.op

"""TVM's pattern of a kernel that moves elements, which is not fused with a product before it."""


def integer_product(
    ctx: Context,
    left: relax.Expr,
    left_zero: relax.Expr | np.ndarray | None,
    right: np.ndarray,
    right_zero: np.ndarray | None,
) -> relax.Expr | None:
    """left · right in int32, exactly: `left` […, rows, terms] of 8 bits, `right` [terms, columns].

    Zero points are None for zero; `left_zero` has one element or one a row, `right_zero` one or one a column. None if
    the device does not compute in integers, or the operands are of another form.
    """
    if not ctx.integers or right.ndim != 2 or 0 in right.shape or is_known_empty(left) or rank_of(left) < 2:
        return None
    weight, shift = signed_weight(right, right_zero)
    data, zero = unsigned(ctx, left, left_zero)
    sums = ctx.bb.emit(ctx.bb.call_te(_matmul, data, constant(weight), primfunc_name_hint="integer_matmul"))
    columns = weight.astype(np.int64).sum(axis=0).astype(np.int32)
    sums = without_offset(ctx, sums, zero, columns)
    if np.any(shift):
        rows = op.sum(op.astype(data, "int32"), -1, keepdims=True)
        rows = without_offset(ctx, rows, zero, np.array([right.shape[0]], np.int32))
        sums = op.subtract(sums, op.multiply(rows, constant(shift)))
    return ctx.bb.normalize(sums)


def integer_convolution(
    ctx: Context,
    data: relax.Expr,
    data_zero: relax.Expr | np.ndarray | None,
    weight: np.ndarray,
    weight_zero: np.ndarray | None,
) -> relax.Expr | None:
    """The convolution by the node's attributes in int32, exactly; `weight` [out, in, rows, columns], data of 8 bits.

    It is computed with the channels last. None if the device does not compute in integers, or for groups of several
    channels, or another rank.
    """
    if not ctx.integers or weight.ndim != 4 or is_known_empty(data):
        return None
    groups, channels = int(ctx.attrs.get("group", 1)), fixed_size(data, 1)
    depthwise = groups > 1 and groups == channels == weight.shape[0]
    if groups != 1 and not depthwise:
        return None
    along = None if weight_zero is None else weight_zero.reshape((-1, 1, 1, 1) if weight_zero.size > 1 else ())
    kernel, shift = signed_weight(weight, along)
    window = _window(ctx, dims_of(data)[2:], weight.shape[2:])
    if window is None:
        return None
    number, zero = unsigned(ctx, data, data_zero)
    if int(np.prod(shape_of(zero))) != 1:
        return None
    last = ctx.bb.emit(op.permute_dims(number, [0, 2, 3, 1]))
    if any(window.before) or any(window.after):
        known = fixed(zero)
        if known is not None:
            value = constant(known.astype(np.uint8).reshape(1))
        else:
            value = ctx.bb.emit(op.astype(op.reshape(zero, (1,)), "uint8"))
        last = ctx.bb.emit(
            ctx.bb.call_te(
                lambda x, v: _padded(x, v, window),
                last,
                value,
                primfunc_name_hint="padded",
                primfunc_attrs={PATTERN: INJECTIVE},
            )
        )
    transposed = kernel.transpose(2, 3, 1, 0)
    sums = _sums(ctx, last, zero, transposed[:, :, 0] if depthwise else transposed, window)
    if np.any(shift):
        ones = np.ones((*transposed.shape[:2], channels, *(() if depthwise else (1,))), np.int8)
        every = _sums(ctx, last, zero, ones, window)
        sums = ctx.bb.emit(op.subtract(sums, op.multiply(every, constant(shift.reshape(-1)))))
    return ctx.bb.normalize(op.permute_dims(sums, [0, 3, 1, 2]))


def _sums(ctx: Context, data: relax.Expr, zero: relax.Expr, weight: np.ndarray, window: _Window) -> relax.Expr:
    """The sums of products of data less its zero point; channels are last, the weight [rows, columns, in, (out)]."""
    given = (data, constant(np.ascontiguousarray(weight)))
    name = "integer_convolution"
    sums = ctx.bb.emit(ctx.bb.call_te(lambda x, w: _convolution(x, w, window), *given, primfunc_name_hint=name))
    within = (0, 1) if weight.ndim == 3 else (0, 1, 2)
    return without_offset(ctx, sums, zero, weight.astype(np.int64).sum(axis=within).astype(np.int32))


@dataclass(frozen=True, slots=True)
class _Window:
    """The window of a convolution: sizes by dimension of the map."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    out: tuple[Extent, ...]


def _window(ctx: Context, sizes: Sequence[Extent], taps: Sequence[int]) -> _Window | None:
    rank = len(sizes)
    strides = tuple(ctx.attrs.get("strides", None) or [1] * rank)
    dilations = tuple(ctx.attrs.get("dilations", None) or [1] * rank)
    pads = list(ctx.attrs.get("pads", None) or [0] * 2 * rank)
    if ctx.text("auto_pad", "NOTSET") not in ("NOTSET", "") or rank != 2 or min(pads) < 0:
        return None
    before, after = tuple(pads[:rank]), tuple(pads[rank:])
    if not all(isinstance(size, int) for size in sizes):
        return _Window(strides, dilations, before, after, ctx.result()[2:])
    spans = [s + b + a - d * (t - 1) - 1 for s, b, a, d, t in zip(sizes, before, after, dilations, taps, strict=True)]
    out = tuple(span // stride + 1 for span, stride in zip(spans, strides, strict=True))
    return _Window(strides, dilations, before, after, out) if min(spans) >= 0 else None


def _padded(data: te.Tensor, value: te.Tensor, window: _Window) -> te.Tensor:
    batch, rows, columns, channels = data.shape
    (top, left), (bottom, right) = window.before, window.after

    def element(n: tirx.Var, y: tirx.Var, x: tirx.Var, c: tirx.Var) -> tirx.Expr:
        inside = tirx.all(y >= top, y < rows + top, x >= left, x < columns + left)
        return tirx.if_then_else(inside, data[n, y - top, x - left, c], value[0])

    return te.compute((batch, rows + top + bottom, columns + left + right, channels), element, name="padded")


def _convolution(data: te.Tensor, weight: te.Tensor, window: _Window) -> te.Tensor:
    """The sums over a window, of all channels unless each has weights of its own."""
    rank = len(weight.shape) - 1
    terms = [te.reduce_axis((0, weight.shape[i]), name) for i, name in enumerate(("row", "column", "channel")[:rank])]
    (down, right), (apart_down, apart_right) = window.strides, window.dilations

    def value(n: tirx.Var, y: tirx.Var, x: tirx.Var, o: tirx.Var) -> tirx.Expr:
        row, column, *channel = terms
        number = data[(n, y * down + row * apart_down, x * right + column * apart_right, *(channel or [o]))]
        return te.sum(number.astype("int32") * weight[(*terms, o)].astype("int32"), axis=terms)

    name = "integer_convolution" if rank == 3 else "integer_depthwise"
    return te.compute((data.shape[0], *window.out, weight.shape[rank]), value, name=name)


def signed_weight(weight: np.ndarray, zero: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """The weight minus its zero point as int8, and what is left to subtract of it, in int32: zeros where it fits."""
    offset = np.zeros((), np.int16) if zero is None else zero.astype(np.int16)
    centred = weight.astype(np.int16) - offset
    if centred.size and centred.min() >= -128 and centred.max() <= 127:
        return centred.astype(np.int8), np.zeros(offset.shape, np.int32)
    shift = 128 if weight.dtype == np.uint8 else 0
    return (weight.astype(np.int16) - shift).astype(np.int8), (offset - shift).astype(np.int32)


def unsigned(ctx: Context, data: relax.Expr, zero: relax.Expr | np.ndarray | None) -> tuple[relax.Expr, relax.Expr]:
    """Data of 8 bits as uint8, and its zero point in int32, changed alike."""
    known = zero if isinstance(zero, np.ndarray) else None if zero is None else fixed(zero)
    if zero is None:
        known = np.zeros((), np.int32)
    offset = constant(known.astype(np.int32)) if known is not None else op.astype(zero, "int32")
    if dtype_of(data) == "uint8":
        return data, ctx.bb.normalize(offset)
    more = constant(np.array(128, np.int16))
    data = ctx.bb.emit(op.astype(op.add(op.astype(data, "int16"), more), "uint8"))
    if known is not None:
        return data, constant(known.astype(np.int32) + np.int32(128))
    return data, ctx.bb.normalize(op.add(offset, constant(np.array(128, np.int32))))


def without_offset(ctx: Context, sums: relax.Expr, zero: relax.Expr, weights: np.ndarray) -> relax.Expr:
    """Sums of unsigned data minus the zero point times the sums of the weights, which broadcast against them."""
    known = fixed(zero)
    if known is not None and not np.any(known):
        return sums
    if known is not None and known.size == 1:
        return ctx.bb.emit(op.subtract(sums, constant(known.reshape(()) * weights)))
    shape = shape_of(zero)
    if int(np.prod(shape)) == 1:
        zero = op.reshape(zero, ())
    elif len(shape) == 1:
        zero = op.reshape(zero, (-1, 1))
    return ctx.bb.emit(op.subtract(sums, op.multiply(zero, constant(weights))))


def _matmul(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
    term = te.reduce_axis((0, weight.shape[0]), "term")

    def value(*place: tirx.Var) -> tirx.Expr:
        factors = data[(*place[:-1], term)], weight[term, place[-1]]
        return te.sum(factors[0].astype("int32") * factors[1].astype("int32"), axis=term)

    return te.compute((*data.shape[:-1], weight.shape[1]), value, name="integer_matmul")

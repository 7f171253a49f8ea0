"""Converters of integer and quantised operators.

Products by constant weights are computed in integers on devices that have instructions for them (integers.py), others
in floating point if the error is zero or far below a step: vector units without such instructions multiply 32-bit
floats much faster than 32-bit integers. A sum of integer products is exact in float32 if it stays below 2**24, and in
float64 if below 2**53. The bound of the sum is computed from the constant weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from heterocc.compiler.lower.converters.quantised.dequantised import is_read_in_blocks, note_dequantised
from heterocc.compiler.lower.converters.quantised.integers import integer_convolution, integer_product
from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.requested import has_positive_sizes, requested
from heterocc.compiler.lower.converters.values import (
    as_dtype,
    clipped,
    dims_of,
    dtype_of,
    fixed_size,
    rank_of,
    scalar,
    shape_of,
)
from heterocc.compiler.lower.straight import constant

op = relax.op

_EXACT = 1 << 24
"""Integers below this are exact in float32."""


@converter("DynamicQuantizeLinear")
def dynamic_quantize_linear(ctx: Context, data: relax.Expr) -> list[relax.Expr]:
    """DynamicQuantizeLinear: uint8 by the range of the tensor, extended to contain zero."""
    dtype = dtype_of(data)
    if ctx.backend == "cpu" and dtype == "float32" and has_positive_sizes(data):
        found = requested(ctx, "byte_range", [data], [((), dtype), ((), "uint8")])
        scale, offset = (ctx.bb.emit(relax.TupleGetItem(found, n)) for n in range(2))
        whole = op.add(op.round(op.divide(data, scale)), op.astype(offset, dtype))
        return [op.astype(clipped(whole, 0, 255, dtype), "uint8"), scale, offset]
    zero, levels = scalar(0, dtype), scalar(255, dtype)
    low = op.minimum(zero, op.min(data))
    high = op.maximum(zero, op.max(data))
    span = ctx.bb.emit(op.subtract(high, low))
    # For a tensor of zeros ONNX Runtime uses the scale 1.
    scale = ctx.bb.emit(op.where(op.equal(span, zero), scalar(1, dtype), op.divide(span, levels)))
    offset = ctx.bb.emit(clipped(op.round(op.negative(op.divide(low, scale))), 0, 255, dtype))
    quantised = clipped(op.add(op.round(op.divide(data, scale)), offset), 0, 255, dtype)
    return [op.astype(quantised, "uint8"), scale, op.astype(offset, "uint8")]


@converter("QuantizeLinear")
def quantize_linear(
    ctx: Context, data: relax.Expr, scale: relax.Expr, zero_point: relax.Expr | None = None
) -> relax.Expr:
    """QuantizeLinear per tensor, axis or block."""
    if not ctx.attrs.get("block_size", 0):
        return ctx.original(data, scale, zero_point)
    kind = ctx.attrs.get("output_dtype", 0)
    usual = dtype_of(zero_point) if zero_point is not None else "uint8"
    dtype = helper.tensor_dtype_to_np_dtype(kind).name if kind else usual
    limits = np.iinfo(dtype)
    return op.astype(levels(ctx, data, scale, zero_point, limits.min, limits.max), dtype)


def levels(
    ctx: Context, data: relax.Expr, scale: relax.Expr, zero_point: relax.Expr | None, low: int, high: int
) -> relax.Expr:
    """The whole numbers of QuantizeLinear in float32, limited to `low` and `high`."""
    number = op.round(steps(ctx, data, scale))
    if zero_point is not None:
        wide = spread(ctx, zero_point, dims_of(data), ctx.attrs.get("axis", 1))
        number = op.add(number, as_dtype(wide, "float32"))
    return ctx.bb.emit(clipped(number, low, high, "float32"))


def steps(ctx: Context, data: relax.Expr, scale: relax.Expr) -> relax.Expr:
    """The data in steps of its scale per tensor, axis or block."""
    wide = as_dtype(spread(ctx, scale, dims_of(data), ctx.attrs.get("axis", 1)), "float32")
    return ctx.bb.emit(op.divide(as_dtype(data, "float32"), ctx.bb.normalize(wide)))


@converter("DequantizeLinear")
def dequantize_linear(
    ctx: Context, data: relax.Expr, scale: relax.Expr, zero_point: relax.Expr | None = None
) -> relax.Expr:
    """DequantizeLinear per tensor, axis or block. A constant input is dequantised when compiling."""
    note_dequantised(ctx, data, scale, zero_point)
    dtype = dtype_of(scale)
    if is_read_in_blocks(ctx):  # in variables, constants are not computed with here
        data, scale = (ctx.bb.emit(op.astype(value, dtype_of(value))) for value in (data, scale))
        zero_point = None if zero_point is None else ctx.bb.emit(op.astype(zero_point, dtype_of(zero_point)))
    shape, axis = dims_of(data), ctx.attrs.get("axis", 1)
    values = []
    for value in (scale, zero_point):
        values.append(None if value is None else spread(ctx, value, shape, axis))
    wide, offset = values
    number = _cast(ctx, data, dtype)
    if offset is not None:
        number = _arithmetic(ctx, np.subtract, op.subtract, number, _cast(ctx, offset, dtype))
    return _arithmetic(ctx, np.multiply, op.multiply, number, wide)


@converter("ConvInteger")
def conv_integer(
    ctx: Context,
    data: relax.Expr,
    weight: relax.Expr,
    data_zero: relax.Expr | None = None,
    weight_zero: relax.Expr | None = None,
) -> relax.Expr:
    """Convolution of 8-bit integers to 32-bit integers."""
    exact = _in_integers(integer_convolution, ctx, data, data_zero, weight, weight_zero)
    if exact is not None:
        return exact
    kernel = _weight(ctx, weight, weight_zero, axis=0)
    dtype = _exact_dtype(ctx, data, kernel)
    number = _centred(ctx, data, data_zero, dtype)
    return op.astype(op.round(_convolve(ctx, number, _cast(ctx, kernel, dtype))), "int32")


@converter("MatMulInteger")
def matmul_integer(
    ctx: Context,
    left: relax.Expr,
    right: relax.Expr,
    left_zero: relax.Expr | None = None,
    right_zero: relax.Expr | None = None,
) -> relax.Expr:
    """Matrix product of 8-bit integers to 32-bit integers."""
    exact = _in_integers(integer_product, ctx, left, left_zero, right, right_zero)
    if exact is not None:
        return exact
    kernel = _weight(ctx, right, right_zero, axis=rank_of(right) - 1)
    dtype = _exact_dtype(ctx, left, kernel, axis=-2)
    number = _centred(ctx, left, left_zero, dtype, rows=True)
    return op.astype(op.round(op.matmul(number, _cast(ctx, kernel, dtype))), "int32")


@converter("QLinearConv")
def qlinear_conv(
    ctx: Context,
    data: relax.Expr,
    data_scale: relax.Expr,
    data_zero: relax.Expr,
    weight: relax.Expr,
    weight_scale: relax.Expr,
    weight_zero: relax.Expr,
    scale: relax.Expr,
    zero: relax.Expr,
    bias: relax.Expr | None = None,
) -> relax.Expr:
    """Quantised convolution, in integers or in float32, whose error is far below one step."""
    channels = (1, -1, *[1] * (rank_of(data) - 2))
    exact = _in_integers(integer_convolution, ctx, data, data_zero, weight, weight_zero)
    if exact is not None:
        sums = exact if bias is None else op.add(exact, _reshaped(ctx, bias, channels))
        result = op.astype(sums, "float32")
    else:
        kernel = _cast(ctx, _weight(ctx, weight, weight_zero, axis=0), "float32")
        result = _convolve(ctx, _centred(ctx, data, data_zero, "float32"), kernel)
        if bias is not None:
            result = op.add(result, op.reshape(_cast(ctx, bias, "float32"), channels))
    factor = _arithmetic(ctx, np.multiply, op.multiply, data_scale, weight_scale)
    factor = _arithmetic(ctx, np.divide, op.divide, factor, scale)
    if _size(factor) > 1:
        factor = _reshaped(ctx, factor, channels)
    return _requantised(ctx, result, factor, zero)


@converter("QLinearMatMul")
def qlinear_matmul(
    ctx: Context,
    left: relax.Expr,
    left_scale: relax.Expr,
    left_zero: relax.Expr,
    right: relax.Expr,
    right_scale: relax.Expr,
    right_zero: relax.Expr,
    scale: relax.Expr,
    zero: relax.Expr,
) -> relax.Expr:
    """Quantised matrix product, in integers or in float32."""
    exact = _in_integers(integer_product, ctx, left, left_zero, right, right_zero)
    if exact is not None:
        result = op.astype(exact, "float32")
    else:
        kernel = _cast(ctx, _weight(ctx, right, right_zero, axis=rank_of(right) - 1), "float32")
        result = op.matmul(_centred(ctx, left, left_zero, "float32", rows=True), kernel)
    if _size(left_scale) > 1:
        left_scale = _reshaped(ctx, left_scale, (-1, 1))
    factor = _arithmetic(ctx, np.multiply, op.multiply, left_scale, right_scale)
    factor = _arithmetic(ctx, np.divide, op.divide, factor, scale)
    return _requantised(ctx, result, factor, zero)


def _in_integers(
    compute: Callable[[Context, relax.Expr, relax.Expr | None, np.ndarray, np.ndarray | None], relax.Expr | None],
    ctx: Context,
    data: relax.Expr,
    data_zero: relax.Expr | None,
    weight: relax.Expr,
    weight_zero: relax.Expr | None,
) -> relax.Expr | None:
    """The sums in int32 if `compute` has a form for them, which takes a constant weight; None if it has not."""
    array = ctx.array(weight)
    zero = None if weight_zero is None else ctx.array(weight_zero)
    if array is None or (weight_zero is not None and zero is None):
        return None
    return compute(ctx, data, data_zero, array, zero)


def _requantised(ctx: Context, result: relax.Expr, factor: relax.Expr, zero: relax.Expr) -> relax.Expr:
    dtype = dtype_of(zero)
    limits = np.iinfo(dtype)
    if _size(factor) == 1:
        factor = _cast(ctx, _flat(ctx, factor), "float32")
    offset = _cast(ctx, _flat(ctx, zero), "float32")
    number = op.add(op.round(op.multiply(result, factor)), offset)
    return op.astype(clipped(number, limits.min, limits.max, "float32"), dtype)


def _convolve(ctx: Context, data: relax.Expr, kernel: relax.Expr) -> relax.Expr:
    convert = onnx_frontend._get_convert_map()["Conv"].get_converter(ctx.opset)
    attrs = ctx.attrs.changed({"kernel_shape": list(shape_of(kernel)[2:])})
    return convert(ctx.bb, onnx_frontend.onnx_input([ctx.bb.normalize(data), kernel, None]), attrs, list(ctx.tables))


def _weight(ctx: Context, weight: relax.Expr, zero: relax.Expr | None, axis: int) -> relax.Expr:
    """The weight minus its zero point, in 16 bits. The result is a constant if both operands are."""
    if zero is None:
        return weight
    if _size(zero) > 1:
        along = [1] * rank_of(weight)
        along[axis] = -1
        zero = _reshaped(ctx, zero, tuple(along))
    else:
        zero = _flat(ctx, zero)
    return _arithmetic(ctx, np.subtract, op.subtract, _cast(ctx, weight, "int16"), _cast(ctx, zero, "int16"))


def _centred(ctx: Context, data: relax.Expr, zero: relax.Expr | None, dtype: str, rows: bool = False) -> relax.Expr:
    number = _cast(ctx, data, dtype)
    if zero is None or (ctx.array(zero) is not None and not np.any(ctx.array(zero))):
        return number
    if _size(zero) == 1:
        zero = _flat(ctx, zero)
    elif rows and rank_of(zero) == 1:
        zero = op.reshape(zero, (-1, 1))
    return op.subtract(number, _cast(ctx, zero, dtype))


def _exact_dtype(ctx: Context, data: relax.Expr, kernel: relax.Expr, axis: int | None = None) -> str:
    """The narrowest floating-point dtype in which all sums are exact."""
    known = ctx.array(kernel)
    if known is None:
        sizes = dims_of(kernel)[1:] if axis is None else dims_of(kernel)[axis:][:1]
        if not all(isinstance(size, int) for size in sizes):
            return "float64"  # no memory has enough terms for a sum that is not exact
        most = 255 * 255 * math.prod(sizes)
    else:
        magnitude = np.abs(known.astype(np.int64))
        sums = magnitude.reshape(len(known), -1).sum(axis=1) if axis is None else magnitude.sum(axis=axis)
        most = 255 * int(sums.max(initial=0))
    return "float32" if most < _EXACT else "float64"


def spread(ctx: Context, value: relax.Expr, shape: tuple[Any, ...], axis: int) -> relax.Expr:
    """A scale or zero point reshaped to broadcast against data of `shape`, or repeated for blocks along an axis."""
    block = ctx.attrs.get("block_size", 0)
    if block:
        known, along = ctx.array(value), axis % len(shape)
        if not isinstance(shape[axis], int):
            raise NotImplementedError("blocks along a dimension without a fixed size are not supported")
        if known is not None:
            wide = np.repeat(known, block, axis=axis)
            return constant(np.ascontiguousarray(wide.take(range(shape[axis]), axis)))
        wide = ctx.bb.normalize(op.repeat(value, block, along))
        if fixed_size(wide, along) == shape[axis]:
            return wide
        return ctx.bb.normalize(op.strided_slice(wide, [along], [0], [shape[axis]], assume_inbound=True))
    if _size(value) == 1:
        return _flat(ctx, value)
    sizes = [1] * len(shape)
    sizes[axis] = -1
    return _reshaped(ctx, value, tuple(sizes))


def _size(value: relax.Expr) -> int:
    return int(np.prod(shape_of(value), dtype=np.int64))


def _flat(ctx: Context, value: relax.Expr) -> relax.Expr:
    """A tensor of one element reshaped to a scalar."""
    known = ctx.array(value)
    if known is not None:
        return constant(known.reshape(()))
    return value if not shape_of(value) else ctx.bb.normalize(op.reshape(value, ()))


def _reshaped(ctx: Context, value: relax.Expr, shape: tuple[int, ...]) -> relax.Expr:
    known = ctx.array(value)
    return constant(known.reshape(shape)) if known is not None else ctx.bb.normalize(op.reshape(value, shape))


def _cast(ctx: Context, value: relax.Expr, dtype: str) -> relax.Expr:
    known = ctx.array(value)
    return constant(known.astype(dtype)) if known is not None else ctx.bb.normalize(as_dtype(value, dtype))


def _arithmetic(
    ctx: Context,
    exact: Callable[[np.ndarray, np.ndarray], np.ndarray],
    symbolic: Callable[[relax.Expr, relax.Expr], relax.Expr],
    left: relax.Expr,
    right: relax.Expr,
) -> relax.Expr:
    known = ctx.array(left), ctx.array(right)
    if known[0] is not None and known[1] is not None:
        return constant(np.asarray(exact(known[0], known[1]), dtype=known[0].dtype))
    return ctx.bb.normalize(symbolic(left, right))

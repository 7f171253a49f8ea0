"""Converters of ONNX Runtime's contrib operators (domain com.microsoft), which its optimisers and quantiser produce."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx
from tvm import relax

from heterocc.compiler.lower.converters.arrays.reshaping import spread
from heterocc.compiler.lower.converters.normalization import standardised
from heterocc.compiler.lower.converters.registry import MICROSOFT, Context, Converter, converter, own_converter
from heterocc.compiler.lower.converters.values import as_dtype, dims_of, dtype_of, rank_of, scalar, shape_of
from heterocc.compiler.lower.converters.windows.pooling import average_pool, rounded_up
from heterocc.compiler.lower.straight import constant

op = relax.op


def real(
    ctx: Context, data: relax.Expr, scale: relax.Expr, zero: relax.Expr | None, axis: int | None = None
) -> relax.Expr:
    """Dequantised data: (data - zero) * scale in float32. The result is a constant if all operands are."""
    arrays = [None if v is None else ctx.array(v) for v in (data, scale, zero)]
    rank = rank_of(data)

    def spread(array: np.ndarray) -> np.ndarray:
        if array.size == 1:
            return array.reshape(())
        return array.reshape([-1 if d == (axis or 0) % rank else 1 for d in range(rank)])

    if arrays[1] is None or (zero is not None and arrays[2] is None):
        if any(np.prod(shape_of(v)) != 1 for v in (scale, zero) if v is not None):
            raise NotImplementedError("scales that differ along an axis must be constant")
        parts = [op.reshape(v, ()) for v in (scale, zero) if v is not None]
        centred = as_dtype(data, "float32")
        if len(parts) > 1:
            centred = op.subtract(centred, op.astype(parts[1], "float32"))
        return ctx.bb.normalize(op.multiply(centred, parts[0]))
    factor = spread(arrays[1])
    offset = np.zeros((), np.float32) if arrays[2] is None else spread(arrays[2]).astype(np.float32)
    if arrays[0] is not None:
        return constant(((arrays[0].astype(np.float32) - offset) * factor).astype(np.float32))
    centred = as_dtype(data, "float32")
    if np.any(offset):
        centred = op.subtract(centred, constant(offset))
    return ctx.bb.normalize(op.multiply(centred, constant(factor.astype(np.float32))))


def quantised(
    ctx: Context, value: relax.Expr, scale: relax.Expr, zero: relax.Expr | None, dtype: str | None = None
) -> relax.Expr:
    """Quantised data: round(value / scale) + zero, saturated to the dtype of `zero` (else `dtype`, else uint8)."""
    name = dtype_of(zero) if zero is not None else dtype or "uint8"
    limits = np.iinfo(name)
    number = op.round(op.divide(value, op.reshape(scale, ())))
    if zero is not None:
        number = op.add(number, op.astype(op.reshape(zero, ()), "float32"))
    bounded = op.minimum(op.maximum(number, scalar(limits.min, "float32")), scalar(limits.max, "float32"))
    return op.astype(bounded, name)


def _qlinear_binary(function: Callable[[relax.Expr, relax.Expr], relax.Expr]) -> Converter:
    def convert(
        ctx: Context,
        a: relax.Expr,
        a_scale: relax.Expr,
        a_zero: relax.Expr,
        b: relax.Expr,
        b_scale: relax.Expr,
        b_zero: relax.Expr,
        scale: relax.Expr,
        zero: relax.Expr | None = None,
    ) -> relax.Expr:
        left, right = real(ctx, a, a_scale, a_zero), real(ctx, b, b_scale, b_zero)
        return quantised(ctx, function(left, right), scale, zero, dtype_of(a))

    return convert


def _qlinear_unary(function: Callable[[Context, relax.Expr], relax.Expr]) -> Converter:
    def convert(
        ctx: Context,
        data: relax.Expr,
        data_scale: relax.Expr,
        data_zero: relax.Expr,
        scale: relax.Expr,
        zero: relax.Expr | None = None,
    ) -> relax.Expr:
        value = function(ctx, real(ctx, data, data_scale, data_zero))
        return quantised(ctx, value, scale, zero, dtype_of(data))

    return convert


def _leaky_relu(ctx: Context, value: relax.Expr) -> relax.Expr:
    return op.nn.leakyrelu(value, float(ctx.attrs.get("alpha", 0.01)))


def _softmax(ctx: Context, value: relax.Expr) -> relax.Expr:
    rank = rank_of(value)
    axis = ctx.attrs.get("axis", -1) % rank
    if ctx.attrs.get("opset", 13) < 13 and axis != rank - 1:
        raise NotImplementedError("the definition of Softmax before operator set 13 is not supported")
    return op.nn.softmax(value, axis)


def _global_average(ctx: Context, value: relax.Expr) -> relax.Expr:
    rank = rank_of(value)
    first = 1 if ctx.attrs.get("channels_last", 0) else 2
    return op.mean(value, list(range(first, rank - 1 if first == 1 else rank)), keepdims=True)


def _average(ctx: Context, value: relax.Expr) -> relax.Expr:
    own, value = as_standard(ctx, "AveragePool"), ctx.bb.emit(value)
    if ctx.attrs.get("count_include_pad", 0):  # ONNX Runtime also counts what lies beyond the padding
        own = rounded_up(own, rank_of(value) - 2)
    if not ctx.attrs.get("channels_last", 0):
        return average_pool(own, value)
    last = rank_of(value) - 1
    pooled = average_pool(own, ctx.bb.emit(op.permute_dims(value, [0, last, *range(1, last)])))
    return op.permute_dims(pooled, [0, *range(2, last + 1), 1])


@converter("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(ctx: Context, scale: relax.Expr, zero: relax.Expr, *inputs: relax.Expr) -> relax.Expr:
    """Concatenation of tensors with different scales and zero points."""
    parts = [real(ctx, *inputs[i : i + 3]) for i in range(0, len(inputs), 3)]
    return quantised(ctx, op.concat(parts, ctx.attrs["axis"]), scale, zero)


@converter("QGemm", domain=MICROSOFT)
def qgemm(
    ctx: Context,
    a: relax.Expr,
    a_scale: relax.Expr,
    a_zero: relax.Expr,
    b: relax.Expr,
    b_scale: relax.Expr,
    b_zero: relax.Expr,
    bias: relax.Expr | None = None,
    scale: relax.Expr | None = None,
    zero: relax.Expr | None = None,
) -> relax.Expr:
    """Quantised Gemm. Without an output scale the result is float32."""
    by_row = bool(ctx.attrs.get("transB", 0))
    left = real(ctx, a, a_scale, a_zero)
    right = real(ctx, b, b_scale, b_zero, axis=0 if by_row else 1)
    if ctx.attrs.get("transA", 0):
        left = op.permute_dims(left)
    if by_row:
        right = op.permute_dims(right)
    product = op.matmul(left, right)
    if bias is not None:
        # The scale of the bias is the product of both scales.
        steps = op.multiply(
            op.reshape(a_scale, ()), b_scale if np.prod(shape_of(b_scale)) > 1 else op.reshape(b_scale, ())
        )
        product = op.add(product, op.multiply(op.astype(bias, "float32"), steps))
    alpha = float(ctx.attrs.get("alpha", 1.0))
    if alpha != 1.0:
        product = op.multiply(product, scalar(alpha, "float32"))
    return product if scale is None else quantised(ctx, product, scale, zero, dtype_of(a))


@converter("FusedMatMul", domain=MICROSOFT)
def fused_matmul(ctx: Context, a: relax.Expr, b: relax.Expr) -> relax.Expr:
    """Matrix product with optional transpositions and a factor."""
    if ctx.attrs.get("transBatchA", 0) or ctx.attrs.get("transBatchB", 0):
        raise NotImplementedError("transBatchA and transBatchB are not supported")
    a, b = (_transposed(v) if ctx.attrs.get(name, 0) else v for v, name in ((a, "transA"), (b, "transB")))
    product = ctx.bb.normalize(op.matmul(a, b))
    alpha = float(ctx.attrs.get("alpha", 1.0))
    return product if alpha == 1.0 else op.multiply(product, scalar(alpha, dtype_of(product)))


def _transposed(value: relax.Expr) -> relax.Expr:
    rank = rank_of(value)
    return value if rank < 2 else op.permute_dims(value, [*range(rank - 2), rank - 1, rank - 2])


@converter("QuickGelu", domain=MICROSOFT)
def quick_gelu(ctx: Context, data: relax.Expr) -> relax.Expr:
    """x * sigmoid(alpha * x)."""
    return op.multiply(data, op.sigmoid(op.multiply(data, scalar(ctx.attrs.get("alpha", 1.702), dtype_of(data)))))


@converter("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(
    ctx: Context,
    data: relax.Expr,
    skip: relax.Expr,
    scale: relax.Expr,
    beta: relax.Expr | None = None,
    bias: relax.Expr | None = None,
) -> relax.Expr:
    """LayerNormalization of a sum. The sum is the fourth output."""
    total = _skip_sum(ctx, data, skip, bias)
    return _with_sum(ctx, normalised(ctx, total, scale, beta), total)


def normalised(ctx: Context, total: relax.Expr, scale: relax.Expr, beta: relax.Expr | None) -> relax.Expr:
    """LayerNormalization along the last axis."""
    normal, *_ = standardised(ctx, total, [rank_of(total) - 1], "float32", 1e-12)
    scaled = op.multiply(as_dtype(normal, dtype_of(total)), scale)
    return scaled if beta is None else op.add(scaled, beta)


@converter("SimplifiedLayerNormalization")
def simplified_layer_normalization(ctx: Context, data: relax.Expr, scale: relax.Expr) -> relax.Expr:
    """RMS normalisation: division by the root of the mean square."""
    if ctx.outputs > 1:
        raise NotImplementedError("the outputs mean and inv_std_var are not supported")
    if ctx.attrs.get("stash_type", onnx.TensorProto.FLOAT) != onnx.TensorProto.FLOAT:
        raise NotImplementedError("a mean square in another type than float32 is not supported")
    rank = rank_of(data)
    axes = list(range(ctx.attrs.get("axis", -1) % rank, rank))
    return _rms(ctx, data, spread(ctx, scale, dims_of(data)), axes)


@converter("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_simplified_layer_normalization(
    ctx: Context, data: relax.Expr, skip: relax.Expr, scale: relax.Expr, bias: relax.Expr | None = None
) -> relax.Expr:
    """RMS normalisation of a sum. The sum is the fourth output."""
    total = _skip_sum(ctx, data, skip, bias)
    return _with_sum(ctx, _rms(ctx, total, scale, [rank_of(data) - 1]), total)


def _skip_sum(ctx: Context, data: relax.Expr, skip: relax.Expr, bias: relax.Expr | None) -> relax.Expr:
    """The sum that a skip normalisation normalises."""
    if any(ctx.node.output[1:3]):
        raise NotImplementedError("the outputs mean and inv_std_var are not supported")
    total = op.add(data, skip)
    return ctx.bb.emit(total if bias is None else op.add(total, bias))


def _with_sum(ctx: Context, normal: relax.Expr, total: relax.Expr) -> relax.Expr:
    """The outputs of a skip normalisation; the unused second and third are placeholders."""
    return [normal, total, total, total][: ctx.outputs] if ctx.outputs > 1 else normal


def _rms(ctx: Context, data: relax.Expr, scale: relax.Expr, axes: list[int]) -> relax.Expr:
    wide = as_dtype(data, "float32")
    squares = op.mean(op.multiply(wide, wide), axes, keepdims=True)
    root = op.sqrt(op.add(squares, scalar(ctx.attrs.get("epsilon", 1e-5), "float32")))
    return op.multiply(as_dtype(ctx.bb.normalize(op.divide(wide, root)), dtype_of(data)), scale)


def as_standard(ctx: Context, op_type: str) -> Context:
    """The context of a standard operator with this node's attributes and names."""
    node = onnx.NodeProto()
    node.CopyFrom(ctx.node)
    node.op_type, node.domain = op_type, ""
    return dataclasses.replace(ctx, node=node)


def standard(ctx: Context, op_type: str, *inputs: relax.Expr | None) -> relax.Expr:
    """The result of a standard operator with this node's attributes."""
    given = [None if v is None else ctx.bb.normalize(v) for v in inputs]
    own, convert = as_standard(ctx, op_type), own_converter("", op_type)
    return own.original(*given) if convert is None else convert(own, *given)


@converter("BiasGelu", "FastGelu", "Gelu", "MatMulInteger16", domain=MICROSOFT)
def _of_tvm(ctx: Context, *inputs: relax.Expr) -> relax.Expr:
    return ctx.original(*inputs)


_QLINEAR: dict[str, Converter] = {
    "QLinearAdd": _qlinear_binary(op.add),
    "QLinearMul": _qlinear_binary(op.multiply),
    "QLinearAveragePool": _qlinear_unary(_average),
    "QLinearGlobalAveragePool": _qlinear_unary(_global_average),
    "QLinearLeakyRelu": _qlinear_unary(_leaky_relu),
    "QLinearSigmoid": _qlinear_unary(lambda _ctx, value: op.sigmoid(value)),
    "QLinearSoftmax": _qlinear_unary(_softmax),
}
"""Converters of operators that dequantise their inputs, compute in float32 and quantise the result."""

for _name, _convert in _QLINEAR.items():
    converter(_name, domain=MICROSOFT)(_convert)

"""Converters of quantised operators of ONNX Runtime's own domain, which its quantiser and its optimiser write."""

from __future__ import annotations

import numpy as np
from tvm import relax

from heterocc.compiler.lower.converters.contrib.contrib_operators import quantised, real
from heterocc.compiler.lower.converters.quantised.quantised_operators import (
    dequantize_linear,
    dynamic_quantize_linear,
    levels,
    matmul_integer,
)
from heterocc.compiler.lower.converters.registry import MICROSOFT, Context, converter
from heterocc.compiler.lower.converters.values import dtype_of

op = relax.op


@converter("QuantizeLinear", domain=MICROSOFT)
def quantize_linear(
    ctx: Context, data: relax.Expr, scale: relax.Expr, zero_point: relax.Expr | None = None
) -> relax.Expr:
    """QuantizeLinear to 8 or 16 bits, which the standard domain has only since version 21."""
    dtype = "uint8" if zero_point is None else dtype_of(zero_point)
    limits = np.iinfo(dtype)
    return op.astype(levels(ctx, data, scale, zero_point, limits.min, limits.max), dtype)


converter("DequantizeLinear", domain=MICROSOFT)(dequantize_linear)


@converter("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(
    ctx: Context,
    left: relax.Expr,
    right: relax.Expr,
    left_scale: relax.Expr,
    right_scale: relax.Expr,
    left_zero: relax.Expr | None = None,
    right_zero: relax.Expr | None = None,
    bias: relax.Expr | None = None,
) -> relax.Expr:
    """Product of 8-bit integers times both scales."""
    sums = ctx.bb.emit(matmul_integer(ctx, left, right, left_zero, right_zero))
    factor = ctx.bb.emit(op.multiply(left_scale, right_scale))
    product = ctx.bb.emit(op.multiply(op.astype(sums, "float32"), factor))
    return product if bias is None else op.add(product, bias)


@converter("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(
    ctx: Context,
    left: relax.Expr,
    right: relax.Expr,
    right_scale: relax.Expr,
    right_zero: relax.Expr | None = None,
    bias: relax.Expr | None = None,
) -> relax.Expr:
    """Product of data, quantised by its range, with 8-bit weights."""
    data, scale, zero = (ctx.bb.emit(v) for v in dynamic_quantize_linear(ctx, left))
    return matmul_integer_to_float(ctx, data, right, scale, right_scale, zero, right_zero, bias)


@converter("QLinearWhere", domain=MICROSOFT)
def qlinear_where(
    ctx: Context,
    condition: relax.Expr,
    left: relax.Expr,
    left_scale: relax.Expr,
    left_zero: relax.Expr,
    right: relax.Expr,
    right_scale: relax.Expr,
    right_zero: relax.Expr,
    scale: relax.Expr,
    zero: relax.Expr,
) -> relax.Expr:
    """Choice between tensors with different scales and zero points."""
    chosen = op.where(condition, real(ctx, left, left_scale, left_zero), real(ctx, right, right_scale, right_zero))
    return quantised(ctx, chosen, scale, zero)

"""Converters of ONNX Runtime's operators (domain com.microsoft) that join an operator with what follows it."""

from __future__ import annotations

import math

from tvm import relax

from heterocc.compiler.lower.converters.checked_places import checked_places
from heterocc.compiler.lower.converters.contrib.contrib_operators import normalised, standard
from heterocc.compiler.lower.converters.registry import MICROSOFT, Context, converter
from heterocc.compiler.lower.converters.values import as_dtype, dims_of, dtype_of, scalar, shape_of

op = relax.op


def _activated(ctx: Context, value: relax.Expr, numbers: list[float]) -> relax.Expr:
    """The value after the activation that the attribute `activation` names, with its parameters."""
    name, dtype = ctx.text("activation", ""), dtype_of(value)
    if name == "":
        return value
    if name == "Relu":
        return op.nn.relu(value)
    if name == "Tanh":
        return op.tanh(value)
    if name == "Sigmoid":
        return op.sigmoid(value)
    if name == "LeakyRelu" and len(numbers) == 1:
        return op.nn.leakyrelu(value, numbers[0])
    if name == "Clip" and len(numbers) == 2:
        return op.minimum(op.maximum(value, scalar(numbers[0], dtype)), scalar(numbers[1], dtype))
    if name == "HardSigmoid" and len(numbers) == 2:
        line = op.add(op.multiply(value, scalar(numbers[0], dtype)), scalar(numbers[1], dtype))
        return op.minimum(op.maximum(line, scalar(0, dtype)), scalar(1, dtype))
    raise NotImplementedError(f"the activation {name} with {len(numbers)} parameters is not supported")


@converter("FusedConv", domain=MICROSOFT)
def fused_conv(
    ctx: Context,
    data: relax.Expr,
    weight: relax.Expr,
    bias: relax.Expr | None = None,
    added: relax.Expr | None = None,
) -> relax.Expr:
    """A convolution, the sum of it and another tensor, and an activation."""
    value = ctx.bb.emit(standard(ctx, "Conv", data, weight, bias))
    if added is not None:
        value = ctx.bb.emit(op.add(value, added))
    return _activated(ctx, value, list(ctx.attrs.get("activation_params", ())))


@converter("FusedGemm", domain=MICROSOFT)
def fused_gemm(ctx: Context, a: relax.Expr, b: relax.Expr, c: relax.Expr | None = None) -> relax.Expr:
    """A Gemm and an activation."""
    value = ctx.bb.emit(standard(ctx, "Gemm", a, b, c))
    names = ("activation_alpha", "activation_beta")
    return _activated(ctx, value, [float(ctx.attrs[n]) for n in names if n in ctx.attrs])


@converter("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(
    ctx: Context,
    tokens: relax.Expr,
    segments: relax.Expr | None,
    words: relax.Expr,
    places: relax.Expr,
    parts: relax.Expr | None,
    scale: relax.Expr,
    beta: relax.Expr,
    mask: relax.Expr | None = None,
    positions: relax.Expr | None = None,
) -> list[relax.Expr]:
    """The sum of the embeddings of words, positions and segments, normalised, and the number of tokens."""
    batch, steps = dims_of(tokens)
    if positions is None:
        positions = ctx.bb.emit(op.reshape(op.arange(0, steps, 1, "int64"), (1, steps)))
    total = op.add(_rows(ctx, words, tokens), _rows(ctx, places, positions))
    if segments is not None and parts is not None:
        total = op.add(ctx.bb.emit(total), _rows(ctx, parts, segments))
    total = ctx.bb.emit(total)
    normal = ctx.bb.emit(normalised(ctx, total, scale, beta))
    if ctx.attrs.get("mask_index_type", 1) == 0 or mask is None:
        count = op.zeros((batch,), "int32")
    else:
        count = op.sum(as_dtype(mask, "int32"), [1])
    return [normal, count, total][: ctx.outputs]


def _rows(ctx: Context, table: relax.Expr, indices: relax.Expr) -> relax.Expr:
    """The rows of a table that indices name. On GPUs an index out of range names the nearest row."""
    shape = dims_of(indices)
    flat = ctx.bb.emit(op.reshape(as_dtype(indices, "int64"), (math.prod(shape),)))
    flat = checked_places(ctx, flat, [dims_of(table)[0]], from_end=False)
    found = ctx.bb.emit(op.take(table, flat, axis=0, mode="clip"))
    return ctx.bb.emit(op.reshape(found, (*shape, shape_of(table)[1])))

"""Pooling whose only window covers the input: a mean or maximum of the whole input.

PyTorch exports a global average as a pool with as large a window as the model has channels; TVM would add up all the
padding that such a window takes.
"""

from __future__ import annotations

import math

from tvm import relax

from heterocc.compiler.lower.converters.registry import Context, converter
from heterocc.compiler.lower.converters.values import shape_of

op = relax.op


@converter("AveragePool")
def average_pool(ctx: Context, data: relax.Expr) -> relax.Expr:
    """Means over windows."""
    padding_counts = bool(ctx.attrs.get("count_include_pad", 0)) and any(ctx.attrs.get("pads", ()))
    if _covers(ctx, data) and not padding_counts:
        return op.mean(data, list(range(2, len(shape_of(data)))), keepdims=True)
    return ctx.original(data)


@converter("MaxPool")
def max_pool(ctx: Context, data: relax.Expr) -> relax.Expr:
    """Maxima over windows."""
    if ctx.outputs == 1 and _covers(ctx, data):
        return op.max(data, list(range(2, len(shape_of(data)))), keepdims=True)
    return ctx.original(data)


def _covers(ctx: Context, data: relax.Expr) -> bool:
    """Whether there is one window, which takes in every element of the input's spatial dimensions."""
    if ctx.text("auto_pad", "NOTSET") != "NOTSET":
        return False
    sizes = shape_of(data)[2:]
    rank = len(sizes)
    kernel = ctx.attrs.get("kernel_shape", ())
    if len(kernel) != rank or not all(sizes) or any(d != 1 for d in ctx.attrs.get("dilations", ())):
        return False
    strides = ctx.attrs.get("strides", None) or [1] * rank
    pads = ctx.attrs.get("pads", None) or [0] * 2 * rank
    whole = math.ceil if ctx.attrs.get("ceil_mode", 0) else math.floor
    return all(
        taps >= before + size and whole((before + size + after - taps) / stride + 1) == 1
        for size, taps, stride, before, after in zip(sizes, kernel, strides, pads[:rank], pads[rank:], strict=True)
    )

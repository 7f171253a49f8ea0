"""Converters for forms of common operators that TVM's importer refuses or gets wrong."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from tvm import relax

from heterocc.compiler.lower.converters.converters import CONVERTERS as COMMON
from heterocc.compiler.lower.converters.converters import Context, Converter
from heterocc.compiler.lower.converters.values import as_dtype, dtype_of, scalar, shape_of

op = relax.op


def concat(ctx: Context, *inputs: Any) -> Any:
    """Concatenation of weights too, which TVM's importer takes for its own arrays."""
    return inputs[0] if len(inputs) == 1 else op.concat(list(inputs), ctx.attrs.get("axis", 1))


def elu(ctx: Context, data: Any) -> Any:
    """In the input's dtype, whatever it is."""
    dtype = dtype_of(data)
    zero, one, alpha = scalar(0, dtype), scalar(1, dtype), scalar(ctx.attrs.get("alpha", 1.0), dtype)
    below = op.multiply(alpha, op.subtract(op.exp(op.minimum(data, zero)), one))
    return op.where(op.greater(data, zero), data, below)


def equal(_ctx: Context, left: Any, right: Any) -> Any:
    """Of booleans too, for which LLVM code generation has no comparison."""
    if dtype_of(left) == "bool":
        left, right = as_dtype(left, "uint8"), as_dtype(right, "uint8")
    return op.equal(left, right)


def reduce_mean(ctx: Context, data: Any, axes: Any = None) -> Any:
    """Integers as well: the sum, divided towards zero."""
    if dtype_of(data).startswith(("float", "bfloat")):
        return ctx.original(data) if axes is None else ctx.original(data, axes)
    along = ctx.attrs.get("axes") if axes is None else [int(a) for a in ctx.known(axes)]
    if not along and ctx.attrs.get("noop_with_empty_axes", 0):
        return data
    shape = shape_of(data)
    where = [a % len(shape) for a in along] if along else list(range(len(shape)))
    count = 1
    for a in where:
        count *= shape[a]
    total = op.sum(data, where, bool(ctx.attrs.get("keepdims", 1)))
    return op.divide(total, scalar(count, dtype_of(data)))


def reduce_extreme(ctx: Context, data: Any, *rest: Any) -> Any:
    """Of booleans too, as numbers."""
    convert = COMMON[ctx.node.op_type]
    if dtype_of(data) != "bool":
        return convert(ctx, data, *rest)
    number = ctx.bb.emit(op.astype(data, "uint8"))
    return op.astype(ctx.bb.normalize(convert(ctx, number, *rest)), "bool")


def rms_normalization(ctx: Context, data: Any, scale: Any) -> Any:
    """As rows of a matrix: TVM's kernel wants a scale of one dimension, and an input of more."""
    shape = shape_of(data)
    axis = int(ctx.attrs.get("axis", -1)) % len(shape)
    whole = math.prod(shape[axis:])
    if shape_of(scale) != shape[axis:]:
        scale = op.broadcast_to(scale, shape[axis:])
    flat = ctx.bb.emit(op.reshape(data, (math.prod(shape[:axis]), whole)))
    last = dataclasses.replace(ctx, attrs={**ctx.attrs, "axis": -1})
    scaled = last.original(flat, ctx.bb.emit(op.reshape(scale, (whole,))))
    return op.reshape(ctx.bb.emit(scaled), shape)


def split(ctx: Context, data: Any, sizes: Any = None) -> Any:
    """Into parts without elements too, each of which is then a slice of its own."""
    parts = ctx.attrs.get("split") if sizes is None else ctx.known(sizes)
    if parts is None or all(parts):
        return ctx.original(data) if sizes is None else ctx.original(data, sizes)
    axis = int(ctx.attrs.get("axis", 0)) % len(shape_of(data))
    ends = [int(e) for e in np.cumsum(parts)]
    return [op.strided_slice(data, [axis], [e - int(n)], [e]) for n, e in zip(parts, ends, strict=True)]


def top_k(ctx: Context, data: Any, *rest: Any) -> Any:
    """Of dtypes that TVM's runtime does not sort as wider ones, which order them alike."""
    wider = {"float16": "float32", "int8": "int32", "uint8": "int32", "int16": "int32", "uint16": "int32"}
    dtype = dtype_of(data)
    if dtype not in wider:
        return COMMON["TopK"](ctx, data, *rest)
    whole = ctx.bb.emit(COMMON["TopK"](ctx, ctx.bb.emit(op.astype(data, wider[dtype])), *rest))
    return [op.astype(relax.TupleGetItem(whole, 0), dtype), relax.TupleGetItem(whole, 1)][: ctx.outputs]


CONVERTERS: Mapping[str, Converter] = MappingProxyType(
    {
        "Concat": concat,
        "Elu": elu,
        "Equal": equal,
        "ReduceMax": reduce_extreme,
        "ReduceMean": reduce_mean,
        "ReduceMin": reduce_extreme,
        "RMSNormalization": rms_normalization,
        "Split": split,
        "TopK": top_k,
    }
)

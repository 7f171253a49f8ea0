"""What converters ask of Relax expressions with static shapes, and the small ones that they make."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax, tirx

from heterocc.compiler.lower.straight import constant


def shape_of(value: relax.Expr) -> tuple[int, ...]:
    """The shape of a tensor."""
    return tuple(int(d) for d in value.ty.shape.values)


def dtype_of(value: relax.Expr) -> str:
    """numpy's name of a tensor's element type."""
    return str(value.ty.dtype.dtype)


def is_float(value: relax.Expr) -> bool:
    """Whether a tensor's elements are floating-point numbers."""
    return dtype_of(value).startswith(("float", "bfloat"))


def scalar(value: float, dtype: str) -> relax.Expr:
    """A constant tensor without dimensions."""
    return constant(np.array(value, dtype=dtype))


def as_dtype(value: relax.Expr, dtype: str) -> relax.Expr:
    """The value cast to a dtype; itself if it has it."""
    return value if dtype_of(value) == dtype else relax.op.astype(value, dtype)


def fixed(value: relax.Expr) -> np.ndarray | None:
    """A constant's array, None for what is computed or a parameter."""
    return np.asarray(value.value.numpy()) if isinstance(value, tvm.ir.GenericConst) else None


def inside(index: tirx.Expr, size: int) -> tirx.Expr:
    """An int64 index expression that counts from the end if negative, and never leaves `size` elements.

    ONNX leaves indices beyond the end undefined; a model's input must not make compiled code leave its memory.
    """
    index = index.astype("int64")
    zero, count = tirx.const(0, "int64"), tirx.const(size, "int64")
    index = tirx.Select(index < zero, index + count, index)
    return tirx.max(zero, tirx.min(index, tirx.const(size - 1, "int64")))

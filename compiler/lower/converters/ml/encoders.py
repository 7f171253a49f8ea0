"""Converters of encoders of numbers: LabelEncoder, OneHotEncoder."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper
from tvm import relax

from heterocc.compiler.lower.converters.registry import ML, Context, converter
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, filled
from heterocc.compiler.lower.straight import constant

op = relax.op

_MOST_KEYS = 256
"""The most keys that are compared with each element."""


@converter("LabelEncoder", domain=ML)
def label_encoder(ctx: Context, data: relax.Expr) -> relax.Expr:
    """LabelEncoder from numbers to numbers: the value of the equal key, else the default.

    NaN equals NaN from version 4 of the domain on.
    """
    keys, values = _listed(ctx, "keys"), _listed(ctx, "values")
    if keys is None or values is None or len(keys) != len(values):
        raise NotImplementedError("strings are not supported")
    default = _default(ctx, values.dtype)
    distinct = {k: index for index, k in reversed(list(enumerate(keys.tolist()))) if k == k}
    missing = [index for index, k in enumerate(keys.tolist()) if k != k and ctx.opset >= 4]
    if len(distinct) > _MOST_KEYS:
        raise NotImplementedError(f"more than {_MOST_KEYS} keys are not supported")
    shape, dtype = dims_of(data), dtype_of(data)
    found = filled(shape, np.array(default, values.dtype))
    for key, index in distinct.items():
        same = op.equal(data, constant(np.array(key, dtype)))
        found = op.where(same, constant(np.array(values[index], values.dtype)), ctx.bb.emit(found))
    for index in missing[:1]:
        found = op.where(op.isnan(data), constant(np.array(values[index], values.dtype)), ctx.bb.emit(found))
    return found


@converter("OneHotEncoder", domain=ML)
def one_hot_encoder(ctx: Context, data: relax.Expr) -> relax.Expr:
    """OneHotEncoder of numbers: [..., categories], float32; numbers are compared as integers."""
    categories = np.array(ctx.attrs.get("cats_int64s", ()), np.int64)
    if not len(categories):
        raise NotImplementedError("strings are not supported")
    if not int(ctx.attrs.get("zeros", 1)):
        raise NotImplementedError("an error for unknown categories (zeros=0) is not supported")
    rank = len(dims_of(data))
    wide = ctx.bb.emit(op.expand_dims(ctx.bb.emit(op.astype(data, "int64")), rank))
    same = op.equal(wide, constant(categories.reshape((1,) * rank + (-1,))))
    return op.astype(same, "float32")


def _listed(ctx: Context, name: str) -> np.ndarray | None:
    """The keys or values as numbers; None for strings."""
    for key, dtype in ((f"{name}_int64s", np.int64), (f"{name}_floats", np.float32)):
        found = ctx.attrs.get(key)
        if found:
            return np.array(found, dtype)
    tensor = ctx.attrs.get(f"{name}_tensor")
    if isinstance(tensor, onnx.TensorProto) and tensor.data_type != onnx.TensorProto.STRING:
        return np.asarray(numpy_helper.to_array(tensor)).ravel()
    return None


def _default(ctx: Context, dtype: np.dtype) -> float:
    tensor = ctx.attrs.get("default_tensor")
    if isinstance(tensor, onnx.TensorProto):
        return float(numpy_helper.to_array(tensor).ravel()[0])
    if dtype.kind == "f":
        return float(ctx.attrs.get("default_float", -0.0))
    return int(ctx.attrs.get("default_int64", -1))

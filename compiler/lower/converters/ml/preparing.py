"""Converters of operators that prepare numbers: scaling, normalising, imputing, selecting and encoding features."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper
from tvm import relax

from heterocc.compiler.lower.converters.checked_places import checked_places
from heterocc.compiler.lower.converters.ml.scores import matrix
from heterocc.compiler.lower.converters.registry import ML, Context, converter
from heterocc.compiler.lower.converters.values import as_dtype, dims_of, dtype_of, filled, is_float, scalar
from heterocc.compiler.lower.straight import constant

op = relax.op

_F32 = "float32"


@converter("Scaler", domain=ML)
def scaler(ctx: Context, data: relax.Expr) -> relax.Expr:
    """Scaler: (x - offset) · scale along the last axis, float32."""
    shape = dims_of(data)
    offset, scale = (np.array(ctx.attrs.get(name, ()), np.float32) for name in ("offset", "scale"))
    if len(offset) != len(scale) or len(offset) not in (1, shape[-1]):
        raise NotImplementedError("offset and scale must have one number, or one for each feature")
    offsets, scales = ((constant(a.reshape((1,) * (len(shape) - 1) + (-1,)))) for a in (offset, scale))
    return op.multiply(ctx.bb.emit(op.subtract(ctx.bb.emit(as_dtype(data, _F32)), offsets)), scales)


@converter("Normalizer", domain=ML)
def normalizer(ctx: Context, data: relax.Expr) -> relax.Expr:
    """Normalizer of rows by their largest number, sum of magnitudes or length, float32; rows of zeros stay zeros."""
    rows = ctx.bb.emit(as_dtype(matrix(ctx, data), _F32))
    norm, zero = ctx.text("norm", "MAX"), scalar(0, _F32)
    if norm == "MAX":
        size = ctx.bb.emit(op.max(rows, 1, keepdims=True))
    elif norm == "L1":
        size = ctx.bb.emit(op.sum(op.abs(rows), 1, keepdims=True))
    else:
        size = ctx.bb.emit(op.sqrt(op.sum(op.multiply(rows, rows), 1, keepdims=True)))
    found = op.where(op.equal(size, zero), rows, op.divide(rows, size))
    return found if len(dims_of(data)) == 2 else op.squeeze(ctx.bb.emit(found), [0])


@converter("Binarizer", domain=ML)
def binarizer(ctx: Context, data: relax.Expr) -> relax.Expr:
    """Binarizer: 1 for elements above the threshold, else 0, of the data's type."""
    limit = scalar(float(ctx.attrs.get("threshold", 0.0)), dtype_of(data))
    return op.astype(op.greater(data, limit), dtype_of(data))


@converter("Imputer", domain=ML)
def imputer(ctx: Context, data: relax.Expr) -> relax.Expr:
    """Imputer along the last axis; NaN as the replaced value means any NaN."""
    shape, dtype = dims_of(data), dtype_of(data)
    kind = "float" if is_float(data) else "int64"
    values = np.array(ctx.attrs.get(f"imputed_value_{kind}s", ()), dtype)
    if len(values) not in (1, shape[-1]):
        raise NotImplementedError("imputed values must be one number, or one for each feature")
    replaced = ctx.attrs.get(f"replaced_value_{kind}", 0)
    missing = op.isnan(data) if np.isnan(replaced) else op.equal(data, scalar(replaced, dtype))
    return op.where(ctx.bb.emit(missing), constant(values.reshape((1,) * (len(shape) - 1) + (-1,))), data)


@converter("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(ctx: Context, data: relax.Expr, places: relax.Expr) -> relax.Expr:
    """ArrayFeatureExtractor: elements of the last axis; a vector is one row."""
    if len(dims_of(data)) == 1:
        data = ctx.bb.emit(op.expand_dims(data, 0))
    axis = len(dims_of(data)) - 1
    flat = places if len(dims_of(places)) == 1 else op.reshape(places, (-1,))
    flat = checked_places(ctx, ctx.bb.emit(flat), [dims_of(data)[axis]], from_end=False)
    return op.take(data, flat, axis=axis, mode="clip")


@converter("FeatureVectorizer", domain=ML)
def feature_vectorizer(ctx: Context, *parts: relax.Expr) -> relax.Expr:
    """FeatureVectorizer: the inputs' features side by side, float32."""
    wanted = [int(n) for n in ctx.attrs.get("inputdimensions", ())]
    rows = [ctx.bb.emit(as_dtype(matrix(ctx, part), _F32)) for part in parts]
    if [dims_of(r)[1] for r in rows] != wanted:
        raise NotImplementedError("inputs have other numbers of features than inputdimensions")
    return rows[0] if len(rows) == 1 else op.concat(rows, 1)


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

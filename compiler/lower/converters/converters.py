"""Converters of our own, for ONNX operators that TVM's importer lacks or gets wrong.

A converter takes a Context and the node's inputs (None where absent) and returns one expression, or a list with one per
output. All shapes are static here. Raising NotImplementedError refuses the node, with the text as the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper, numpy_helper
from tvm import relax, te, tirx
from tvm.relax.frontend.onnx import onnx_frontend

from heterocc.compiler.lower.converters.resize import apply_axis, axis_table
from heterocc.compiler.lower.relax.straight import constant

op = relax.op


@dataclass(frozen=True, slots=True)
class Context:
    """What a converter may use: block builder, node, parsed attributes, opset, number of outputs, TVM's tables."""

    bb: Any
    node: onnx.NodeProto
    attrs: Mapping[str, Any]
    opset: int
    outputs: int
    tables: tuple[dict[str, Any], dict[str, Any]]

    def text(self, name: str, default: str) -> str:
        """A text attribute."""
        value = self.attrs.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def known(self, value: Any) -> np.ndarray:
        """The value of an input that must be constant."""
        found = onnx_frontend.get_constant(value, list(self.tables))
        if not isinstance(found, tvm.ir.GenericConst):
            raise NotImplementedError(f"{self.node.op_type} with an input that is computed, where a constant is needed")
        return np.asarray(found.value.numpy())

    def original(self, *inputs: Any) -> Any:
        """What TVM's own converter makes of the node with these inputs."""
        attrs = {**self.attrs, "tvm_custom": {"name": self.node.name, "num_outputs": self.outputs}}
        convert = onnx_frontend._get_convert_map()[self.node.op_type].get_converter(self.opset)
        return convert(self.bb, onnx_frontend.onnx_input(inputs), attrs, list(self.tables))


Converter = Callable[..., Any]

_TABLE: dict[str, Converter] = {}


def _converter(*names: str) -> Callable[[Converter], Converter]:
    def register(function: Converter) -> Converter:
        for name in names:
            _TABLE[name] = function
        return function

    return register


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(int(d) for d in value.ty.shape.values)


def _dtype(value: Any) -> str:
    return str(value.ty.dtype.dtype)


def _scalar(value: float, dtype: str) -> Any:
    return constant(np.array(value, dtype=dtype))


def _is_float(value: Any) -> bool:
    return _dtype(value).startswith(("float", "bfloat"))


@_converter("Shape")
def _shape_of(ctx: Context, data: Any) -> Any:
    """A constant tensor; TVM's gives a shape expression, which few operators accept and no output may be."""
    shape = _shape(data)
    return constant(np.array(shape[ctx.attrs.get("start", 0) : ctx.attrs.get("end")], dtype=np.int64))


@_converter("Size")
def _size(_ctx: Context, data: Any) -> Any:
    return constant(np.array(math.prod(_shape(data)), dtype=np.int64))


@_converter("Constant")
def _constant(ctx: Context) -> Any:
    """Every form of the value, not only `value`."""
    for attribute in ctx.node.attribute:
        value = helper.get_attribute_value(attribute)
        if attribute.name == "value":
            return constant(numpy_helper.to_array(value))
        if attribute.name in ("value_float", "value_floats"):
            return constant(np.array(value, dtype=np.float32))
        if attribute.name in ("value_int", "value_ints"):
            return constant(np.array(value, dtype=np.int64))
    raise NotImplementedError("Constant without a dense numeric value")


@_converter("EyeLike")
def _eye_like(ctx: Context, data: Any) -> Any:
    rows, columns = _shape(data)
    dtype = helper.tensor_dtype_to_np_dtype(ctx.attrs["dtype"]) if "dtype" in ctx.attrs else np.dtype(_dtype(data))
    return constant(np.eye(rows, columns, ctx.attrs.get("k", 0), dtype=dtype))


@_converter("IsInf")
def _is_inf(ctx: Context, data: Any) -> Any:
    """With both `detect_` flags."""
    infinity = _scalar(math.inf, _dtype(data))
    parts = []
    if ctx.attrs.get("detect_positive", 1):
        parts.append(op.equal(data, infinity))
    if ctx.attrs.get("detect_negative", 1):
        parts.append(op.equal(data, op.negative(infinity)))
    if not parts:
        return op.zeros(_shape(data), "bool")
    return op.logical_or(*parts) if len(parts) == 2 else parts[0]


@_converter("Dropout")
def _dropout(ctx: Context, data: Any, *_rest: Any) -> Any:
    """Inference: the data, and a mask that keeps all."""
    return [data] if ctx.outputs < 2 else [data, constant(np.ones(_shape(data), dtype=bool))]


@_converter("BatchNormalization")
def _batch_normalization(ctx: Context, data: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
    """Inference, as one multiplication and one addition whose factors are folded."""
    dtype = _dtype(scale)
    epsilon = _scalar(ctx.attrs.get("epsilon", 1e-5), _dtype(variance))
    factor = op.divide(scale, op.astype(op.sqrt(op.add(variance, epsilon)), dtype))
    shift = op.subtract(bias, op.multiply(op.astype(mean, dtype), factor))
    channels = _shape(scale)[0]
    along = (1, channels, *(1 for _ in _shape(data)[2:])) if len(_shape(data)) > 1 else (channels,)
    factor, shift = (op.astype(op.reshape(v, along), _dtype(data)) for v in (factor, shift))
    return op.add(op.multiply(data, factor), shift)


@_converter("LayerNormalization")
def _layer_normalization(ctx: Context, data: Any, scale: Any, bias: Any = None) -> Any:
    """With the mean and the inverse deviation as outputs, and in the precision that `stash_type` asks for."""
    rank = len(_shape(data))
    axes = list(range(ctx.attrs.get("axis", -1) % rank, rank))
    work = helper.tensor_dtype_to_np_dtype(ctx.attrs.get("stash_type", onnx.TensorProto.FLOAT)).name
    wide = data if _dtype(data) == work else op.astype(data, work)
    mean = ctx.bb.emit(op.mean(wide, axes, True))
    centred = ctx.bb.emit(op.subtract(wide, mean))
    variance = op.mean(op.multiply(centred, centred), axes, True)
    inverse = ctx.bb.emit(
        op.divide(_scalar(1.0, work), op.sqrt(op.add(variance, _scalar(ctx.attrs.get("epsilon", 1e-5), work))))
    )
    normal = op.multiply(centred, inverse)
    normal = op.multiply(normal if work == _dtype(data) else op.astype(normal, _dtype(data)), scale)
    return [normal if bias is None else op.add(normal, bias), mean, inverse][: max(1, ctx.outputs)]


@_converter("LpNormalization")
def _lp_normalization(ctx: Context, data: Any) -> Any:
    axis, order = ctx.attrs.get("axis", -1), ctx.attrs.get("p", 2)
    powers = op.sum(op.abs(data) if order == 1 else op.multiply(data, data), [axis], True)
    zero = _scalar(0.0, _dtype(data))
    norm = ctx.bb.emit(powers if order == 1 else op.sqrt(powers))
    return op.where(op.equal(norm, zero), zero, op.divide(data, op.where(op.equal(norm, zero), _one(data), norm)))


def _one(data: Any) -> Any:
    return _scalar(1.0, _dtype(data))


@_converter("Celu")
def _celu(ctx: Context, data: Any) -> Any:
    alpha = _scalar(ctx.attrs.get("alpha", 1.0), _dtype(data))
    zero = _scalar(0.0, _dtype(data))
    negative = op.multiply(alpha, op.subtract(op.exp(op.divide(op.minimum(data, zero), alpha)), _one(data)))
    return op.add(op.maximum(data, zero), negative)


@_converter("Swish")
def _swish(ctx: Context, data: Any) -> Any:
    alpha = _scalar(ctx.attrs.get("alpha", 1.0), _dtype(data))
    return op.multiply(data, op.sigmoid(op.multiply(alpha, data)))


def _chain(function: Callable[[Any, Any], Any], inputs: tuple[Any, ...]) -> Any:
    total = inputs[0]
    for item in inputs[1:]:
        total = function(total, item)
    return total


@_converter("Sum")
def _sum(_ctx: Context, *inputs: Any) -> Any:
    """A chain of additions, which fuse; TVM broadcasts every input first."""
    return _chain(op.add, inputs)


@_converter("Mean")
def _mean(_ctx: Context, *inputs: Any) -> Any:
    return op.divide(_chain(op.add, inputs), _scalar(len(inputs), _dtype(inputs[0])))


@_converter("Max")
def _max(_ctx: Context, *inputs: Any) -> Any:
    return _chain(op.maximum, inputs)


@_converter("Min")
def _min(_ctx: Context, *inputs: Any) -> Any:
    return _chain(op.minimum, inputs)


@_converter("Pow")
def _pow(ctx: Context, base: Any, exponent: Any) -> Any:
    """Mixed types; small constant exponents as products."""
    result = _dtype(base)
    fixed = exponent.value.numpy() if isinstance(exponent, tvm.ir.GenericConst) else None
    if fixed is not None and fixed.size == 1 and fixed.ndim <= len(_shape(base)) and float(fixed.flat[0]) in (1, 2, 3):
        return _chain(op.multiply, (base,) * int(fixed.flat[0])) if float(fixed.flat[0]) > 1 else base
    work = result if _is_float(base) else "float64"
    if fixed is not None and fixed.size == 1:
        # As an operand: of a number in the code TVM warns, though it computes the same.
        power = ctx.bb.emit_te(
            _elementwise(tirx.power),
            ctx.bb.emit(_as(base, work)),
            constant(fixed.astype(work)),
            primfunc_name_hint="power",
        )
    else:
        power = op.power(_as(base, work), _as(exponent, work))
    return power if work == result else op.astype(power, result)


def _as(value: Any, dtype: str) -> Any:
    return value if _dtype(value) == dtype else op.astype(value, dtype)


@_converter("Mod")
def _mod(ctx: Context, left: Any, right: Any) -> Any:
    """The sign of the divisor without `fmod`, of the dividend with it."""
    if _is_float(left):
        raise NotImplementedError("Mod of floating-point numbers: TVM generates no code for fmod")
    # In OpenCL C the choices that TVM makes of it are ambiguous for short integers.
    result = _dtype(left)
    work = "int32" if result in ("int8", "int16", "uint8", "uint16") else result
    left, right = (ctx.bb.emit(_as(v, work)) for v in (left, right))
    fmod = bool(ctx.attrs.get("fmod", 0))
    value = ctx.bb.emit_te(
        _elementwise(tirx.truncmod if fmod else tirx.floormod),
        left,
        right,
        primfunc_name_hint="fmod" if fmod else "mod",
    )
    return _as(value, result)


@_converter("BitShift")
def _bit_shift(ctx: Context, left: Any, right: Any) -> Any:
    """Shifts by the width or more (or by less than nothing) move all bits out; a sign fills from the left."""
    dtype = _dtype(left)
    bits = np.dtype(dtype).itemsize * 8
    to_left = ctx.text("direction", "LEFT") == "LEFT"

    def shift(a: Any, b: Any) -> Any:
        # TVM's simplifier fails on comparisons of unsigned numbers with constants; a huge count becomes negative.
        signed = tirx.Cast("int64", b)
        inside = tirx.all(signed >= tirx.const(0, "int64"), signed < tirx.const(bits, "int64"))
        count = tirx.Select(inside, b, tirx.const(0, dtype))
        shifted = tirx.shift_left(a, count) if to_left else tirx.shift_right(a, count)
        zero = tirx.const(0, dtype)
        if to_left or dtype.startswith("uint"):
            return tirx.Select(inside, shifted, zero)
        return tirx.Select(inside, shifted, tirx.Select(a < zero, tirx.const(-1, dtype), zero))

    return ctx.bb.emit_te(_elementwise(shift), left, right, primfunc_name_hint="bit_shift")


def _elementwise(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A tensor expression of two operands with numpy's broadcasting."""

    def compute(a: Any, b: Any) -> Any:
        shape = np.broadcast_shapes(*(tuple(int(d) for d in t.shape) for t in (a, b)))

        def at(tensor: Any, index: tuple[Any, ...]) -> Any:
            own = index[len(index) - len(tensor.shape) :]
            return tensor(*(0 if int(d) == 1 else i for i, d in zip(own, tensor.shape, strict=True)))

        return te.compute(shape, lambda *i: function(at(a, i), at(b, i)), name="elementwise")

    return compute


@_converter("OneHot")
def _one_hot(ctx: Context, indices: Any, depth: Any, values: Any) -> Any:
    """Negative indices count from the end; out of range gives a row of the off value."""
    size = int(ctx.known(depth).flat[0])
    rank = len(_shape(indices)) + 1
    axis = ctx.attrs.get("axis", -1) % rank
    whole = indices if _dtype(indices).startswith(("int", "uint")) else op.astype(indices, "int64")

    def compute(where: Any, pair: Any) -> Any:
        shape = list(where.shape)
        shape.insert(axis, size)

        def at(*i: Any) -> Any:
            index = where(*(i[:axis] + i[axis + 1 :])).astype("int64")
            position = i[axis].astype("int64")
            hit = tirx.any(index == position, index + tirx.const(size, "int64") == position)
            return tirx.if_then_else(hit, pair[1], pair[0])

        return te.compute(shape, at, name="one_hot")

    return ctx.bb.emit_te(compute, whole, values, primfunc_name_hint="one_hot")


@_converter("CumProd")
def _cum_prod(ctx: Context, data: Any, axis: Any) -> Any:
    along = int(ctx.known(axis).flat[0]) % len(_shape(data))
    reverse = bool(ctx.attrs.get("reverse", 0))
    value = op.flip(data, along) if reverse else data
    value = op.cumprod(value, along, _dtype(data), bool(ctx.attrs.get("exclusive", 0)))
    return op.flip(value, along) if reverse else value


@_converter("Gather")
def _gather(ctx: Context, data: Any, indices: Any) -> Any:
    """Indices count from the end when negative; what is out of range reads the nearest element, never other memory."""
    axis = ctx.attrs.get("axis", 0) % len(_shape(data))
    size = _shape(data)[axis]
    if isinstance(indices, tvm.ir.GenericConst):
        where = indices.value.numpy().astype(np.int64)
        if where.size and (where.min() < -size or where.max() >= size):
            raise NotImplementedError(f"Gather with a constant index outside of {size} elements")
        where = np.where(where < 0, where + size, where)
        if isinstance(data, tvm.ir.GenericConst):
            return constant(np.take(data.value.numpy(), where, axis))
        indices = constant(where.astype(np.int32))
    rank = len(_shape(indices))

    def compute(x: Any, table: Any) -> Any:
        shape = [*x.shape[:axis], *table.shape, *x.shape[axis + 1 :]]

        def at(*i: Any) -> Any:
            index = table(*i[axis : axis + rank])
            zero, last = tirx.const(0, index.ty), tirx.const(size - 1, index.ty)
            index = tirx.Select(index < zero, index + tirx.const(size, index.ty), index)
            return x(*i[:axis], tirx.max(tirx.min(index, last), zero), *i[axis + rank :])

        return te.compute(shape, at, name="gather")

    return ctx.bb.emit_te(compute, data, indices, primfunc_name_hint="gather")


@_converter("TopK")
def _top_k(ctx: Context, data: Any, *rest: Any) -> Any:
    """Only the dtypes that TVM's runtime sorts: it finds others out when it runs."""
    if _dtype(data) not in ("float32", "float64", "int32", "int64"):
        raise NotImplementedError(f"TopK of {_dtype(data)}")
    return ctx.original(data, *rest)


@_converter("ReduceMax", "ReduceMin")
def _reduce_extreme(ctx: Context, data: Any, *rest: Any) -> Any:
    """TVM starts from the largest finite number where ONNX says infinity, which shows for empty tensors."""
    if 0 in _shape(data):
        raise NotImplementedError(f"{ctx.node.op_type} of an empty tensor")
    return ctx.original(data, *rest)


@_converter("SpaceToDepth")
def _space_to_depth(ctx: Context, data: Any) -> Any:
    """Both modes."""
    batch, channels, height, width = _shape(data)
    size = ctx.attrs["blocksize"]
    split = op.reshape(data, (batch, channels, height // size, size, width // size, size))
    order = [0, 1, 3, 5, 2, 4] if ctx.text("mode", "DCR") == "CRD" else [0, 3, 5, 1, 2, 4]
    moved = op.permute_dims(split, order)
    return op.reshape(moved, (batch, channels * size * size, height // size, width // size))


@_converter("Upsample")
def _upsample(ctx: Context, data: Any, scales: Any = None) -> Any:
    """Resize as it was before opset 10: asymmetric, the nearest position rounded down."""
    factors = ctx.attrs["scales"] if scales is None else ctx.known(scales).tolist()
    attrs = {"mode": ctx.text("mode", "nearest"), "coordinate_transformation_mode": "asymmetric"}
    shape = _shape(data)
    sizes = [math.floor(s * f) for s, f in zip(shape, factors, strict=True)]
    return _resample(ctx, data, range(len(shape)), factors, sizes, attrs, nearest_floor=True)


@_converter("Resize")
def _resize(ctx: Context, data: Any, *rest: Any) -> Any:
    """All modes of interpolation, in any axes, from scales or sizes."""
    if len(rest) < 2 and ctx.opset < 11:
        old = {"mode": ctx.text("mode", "nearest"), "coordinate_transformation_mode": "asymmetric"}
        factors = ctx.known(rest[0]).tolist()
        sizes = [math.floor(s * f) for s, f in zip(_shape(data), factors, strict=True)]
        return _resample(ctx, data, range(len(sizes)), factors, sizes, old, nearest_floor=True)
    attrs: dict[str, Any] = {k: v.decode() if isinstance(v, bytes) else v for k, v in ctx.attrs.items()}
    if attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        return ctx.original(data, *rest)
    shape = _shape(data)
    axes = [int(a) % len(shape) for a in attrs.get("axes", range(len(shape)))]
    scales = ctx.known(rest[1]) if len(rest) > 1 and rest[1] is not None else np.zeros(0)
    if scales.size:
        factors = [float(f) for f in scales]
        sizes = [math.floor(shape[a] * f) for a, f in zip(axes, factors, strict=True)]
    else:
        sizes = [int(s) for s in ctx.known(rest[2])]
        factors = [s / shape[a] for a, s in zip(axes, sizes, strict=True)]
        policy = attrs.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            factor = min(factors) if policy == "not_larger" else max(factors)
            factors = [factor] * len(factors)
            sizes = [math.floor(factor * shape[a] + 0.5) for a in axes]
    return _resample(ctx, data, axes, factors, sizes, attrs)


def _resample(
    ctx: Context, data: Any, axes: Any, factors: Any, sizes: Any, attrs: Mapping[str, Any], nearest_floor: bool = False
) -> Any:
    value = data
    for axis, factor, size in zip(axes, factors, sizes, strict=True):
        if factor == 1.0 and size == _shape(data)[axis]:
            continue
        index, weight = axis_table(_shape(data)[axis], float(factor), int(size), attrs, nearest_floor=nearest_floor)
        value = apply_axis(ctx.bb, value, axis, index, weight)
    return value


CONVERTERS: Mapping[str, Converter] = MappingProxyType(_TABLE)

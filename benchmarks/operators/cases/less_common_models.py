"""Builders of the models of less common operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.operators.cases.models import Builder, Shape, image

Build = Callable[[], onnx.ModelProto]


def resized(shape: Shape, mode: str, scale: tuple[float, ...], **attributes: Any) -> Build:
    """A Resize by factors."""

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        scales = net.constant(np.array(scale, np.float32))
        coordinates = "asymmetric" if mode == "nearest" else "half_pixel"
        extra = {"nearest_mode": "floor"} if mode == "nearest" else {}
        given = {"coordinate_transformation_mode": coordinates, **extra, **attributes}
        return net.model(net.op("Resize", "x0", "", scales, mode=mode, **given))

    return build


def normal(shape: Shape, axis: int) -> Build:
    """A LayerNormalization of the axes from `axis`."""

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        scale, bias = net.weight(*shape[axis:], scale=1.0), net.weight(*shape[axis:], scale=1.0)
        return net.model(net.op("LayerNormalization", "x0", scale, bias, axis=axis))

    return build


def channels_normal(shape: Shape) -> Build:
    """The layer normalisation of the channels of each pixel, as exporters of ConvNeXt write it."""

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        scale, bias = net.weight(shape[1], scale=1.0), net.weight(shape[1], scale=1.0)
        last = net.op("Transpose", "x0", perm=[0, 2, 3, 1])
        return net.model(
            net.op("Transpose", net.op("LayerNormalization", last, scale, bias, axis=-1), perm=[0, 3, 1, 2])
        )

    return build


def instance(shape: Shape) -> Build:
    """An InstanceNormalization."""

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        return net.model(
            net.op("InstanceNormalization", "x0", net.weight(shape[1], scale=1.0), net.weight(shape[1], scale=1.0))
        )

    return build


def batch_normal(shape: Shape) -> Build:
    """A BatchNormalization, not for training."""

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        values = [net.weight(shape[1], scale=1.0) for _ in range(3)]
        variance = net.constant(np.linspace(0.5, 2, shape[1], dtype=np.float32))
        return net.model(net.op("BatchNormalization", "x0", *values, variance))

    return build


def top(shape: Shape, axis: int, count: int) -> Build:
    """The largest `count` elements along an axis."""

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        inputs = ["x0", net.constant(np.array([count], np.int64))]
        net.nodes.append(helper.make_node("TopK", inputs, ["values", "indices"], axis=axis))
        return net.model("values", "indices")

    return build


def concat(shape: Shape, axis: int, parts: int) -> Build:
    """A Concat of `parts` tensors of one shape."""

    def build() -> onnx.ModelProto:
        net = Builder(*[shape] * parts)
        return net.model(net.op("Concat", *net.inputs, axis=axis))

    return build


def halves(shape: Shape, axis: int) -> Build:
    """A Split in two halves."""

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        net.nodes.append(helper.make_node("Split", ["x0"], ["a", "b"], axis=axis, num_outputs=2))
        return net.model("a", "b")

    return build


def clipped(shape: Shape) -> Build:
    """A Clip."""

    def build() -> onnx.ModelProto:
        net = Builder(shape, shape)
        y = net.op("Clip", "x0", net.constant(np.float32(-1)), net.constant(np.float32(1)))
        return net.model(net.op("Max", net.op("Min", y, "x1"), net.constant(np.float32(-0.5))))

    return build


def where(mask: Shape, a: Shape, b: Shape) -> Build:
    """A Where of a mask and two operands."""

    def build() -> onnx.ModelProto:
        net = Builder(mask, a, b)
        positive = net.op("Greater", "x0", net.constant(np.float32(0)))
        return net.model(net.op("Where", positive, "x1", "x2"))

    return build


_TYPES = {"float32": TensorProto.FLOAT, "int32": TensorProto.INT32, "int64": TensorProto.INT64,
          "uint8": TensorProto.UINT8, "bool": TensorProto.BOOL}  # fmt: skip


def integers(shape: Shape, kind: str, dtype: str) -> Build:
    """An operator of integers and a constant."""

    def build() -> onnx.ModelProto:
        net = Builder(shape, dtype=_TYPES[dtype])
        other = np.random.default_rng(2).integers(1, 9, shape).astype(dtype)
        return net.model(net.op(kind, "x0", net.constant(other)))

    return build


def cast(shape: Shape, dtype: str, to: str) -> Build:
    """A Cast."""

    def build() -> onnx.ModelProto:
        net = Builder(shape, dtype=_TYPES[dtype])
        return net.model(net.op("Cast", "x0", to=_TYPES[to]))

    return build


def reduced_integers(shape: Shape, dtype: str, kind: str = "ReduceSum") -> Build:
    """A reduction of integers along axis 1."""

    def build() -> onnx.ModelProto:
        net = Builder(shape, dtype=_TYPES[dtype])
        return net.model(net.op(kind, "x0", net.constant(np.array([1], np.int64))))

    return build


def round_trip(shape: Shape) -> Build:
    """A Cast of magnitudes to bytes and back."""

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        grey = net.op("Cast", net.op("Abs", "x0"), to=TensorProto.UINT8)
        return net.model(net.op("Cast", grey, to=TensorProto.FLOAT))

    return build


def with_updates(shape: Shape, kind: str, indices: np.ndarray, updates: Shape, **attributes: Any) -> Build:
    """An operator that writes updates at constant indices."""

    def build() -> onnx.ModelProto:
        net = Builder(shape, updates)
        return net.model(net.op(kind, "x0", net.constant(indices.astype(np.int64)), "x1", **attributes))

    return build


def picked(shape: Shape, kind: str, indices: np.ndarray, **attributes: Any) -> Build:
    """An operator that reads at constant indices."""

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        return net.model(net.op(kind, "x0", net.constant(indices.astype(np.int64)), **attributes))

    return build


def one_hot(count: int, depth: int) -> Build:
    """A OneHot of depth `depth`."""

    def build() -> onnx.ModelProto:
        net = Builder((count,), dtype=TensorProto.INT64)
        values = net.constant(np.array([0, 1], np.float32))
        return net.model(net.op("OneHot", "x0", net.constant(np.array(depth, np.int64)), values))

    return build


def reversed_sequence(shape: Shape) -> Build:
    """A ReverseSequence."""

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        lengths = net.constant(np.array([shape[0], 3, 1, 7][: shape[1]], np.int64))
        return net.model(net.op("ReverseSequence", "x0", lengths))

    return build


def integer_product(rows: int, depth: int, columns: int) -> Build:
    """A MatMulInteger."""

    def build() -> onnx.ModelProto:
        net = Builder((rows, depth), dtype=TensorProto.UINT8)
        weight = net.constant(net.random.integers(-127, 128, (depth, columns)).astype(np.int8))
        return net.model(net.op("MatMulInteger", "x0", weight, net.constant(np.uint8(128))))

    return build


def linear_conv(channels: int, size: int, out: int, kernel: int) -> Build:
    """A QLinearConv."""

    def build() -> onnx.ModelProto:
        net = Builder(image(channels, size), dtype=TensorProto.UINT8)
        weight = net.constant(net.random.integers(-127, 128, (out, channels, kernel, kernel)).astype(np.int8))
        data = [net.constant(np.float32(0.02)), net.constant(np.uint8(128))]
        factor = [net.constant(np.float32(0.005)), net.constant(np.int8(0))]
        result = [net.constant(np.float32(0.1)), net.constant(np.uint8(120))]
        bias = net.constant(net.random.integers(-500, 500, out).astype(np.int32))
        return net.model(net.op("QLinearConv", "x0", *data, weight, *factor, *result, bias, pads=[kernel // 2] * 4))

    return build


def quantize(shape: Shape) -> Build:
    """A QuantizeLinear."""

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        return net.model(net.op("QuantizeLinear", "x0", net.constant(np.float32(0.03)), net.constant(np.uint8(128))))

    return build


def dequantize(shape: Shape) -> Build:
    """A DequantizeLinear."""

    def build() -> onnx.ModelProto:
        net = Builder(shape, dtype=TensorProto.UINT8)
        return net.model(net.op("DequantizeLinear", "x0", net.constant(np.float32(0.03)), net.constant(np.uint8(128))))

    return build


def dynamic(shape: Shape) -> Build:
    """A DynamicQuantizeLinear."""

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        net.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x0"], ["y", "scale", "zero"]))
        return net.model("y", "scale", "zero")

    return build

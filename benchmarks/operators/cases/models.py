"""Builders of models of one operator or one short chain each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_OPSETS = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]

Shape = tuple[int, ...]


class Builder:
    """A model under construction: nodes, weights, and the shapes and the type of the inputs."""

    def __init__(self, *inputs: Shape, dtype: int = TensorProto.FLOAT) -> None:
        self.inputs = [f"x{i}" for i in range(len(inputs))]
        self.shapes = inputs
        self.dtype = dtype
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """A seeded float32 weight; `scale` keeps sums of products near one by default."""
        fan = int(np.prod(shape[1:])) or 1
        array = self.random.standard_normal(shape, np.float32) * (fan**-0.5 if scale is None else scale)
        return self.constant(array.astype(np.float32))

    def constant(self, array: np.ndarray) -> str:
        """Append a weight; returns its name."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Append a node of one output; returns the output's name."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, outputs: int, *inputs: str, **attributes: Any) -> list[str]:
        """Append a node of several outputs; returns their names."""
        out = [f"y{len(self.nodes)}" + f"_{n}" * (n > 0) for n in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), out, **attributes))
        return out

    def model(self, *outputs: str) -> onnx.ModelProto:
        """The finished model; shape inference finds the types of its outputs."""
        inputs = zip(self.inputs, self.shapes, strict=True)
        infos = [helper.make_tensor_value_info(name, self.dtype, shape) for name, shape in inputs]
        results = [helper.make_empty_tensor_value_info(o) for o in outputs]
        graph = helper.make_graph(self.nodes, "operator", infos, results, self.weights)
        model = helper.make_model(graph, opset_imports=_OPSETS, ir_version=10)
        return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


@dataclass(frozen=True, slots=True)
class Case:
    """One model of the suite: `kind` groups cases in the table."""

    kind: str
    name: str
    build: Callable[[], onnx.ModelProto]


def unary(shape: Shape, kind: str, *constants: Sequence[int], **attributes: Any) -> Callable[[], onnx.ModelProto]:
    """An operator of one array, and of constant lists of integers."""

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        lists = [net.constant(np.array(c, np.int64)) for c in constants]
        return net.model(net.op(kind, "x0", *lists, **attributes))

    return build


def slopes(shape: Shape) -> Callable[[], onnx.ModelProto]:
    """PRelu with a slope for each channel."""

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        return net.model(net.op("PRelu", "x0", net.weight(shape[1], *[1] * (len(shape) - 2), scale=0.1)))

    return build


def recurrent(kind: str, gates: int, steps: int, width: int, hidden: int) -> Callable[[], onnx.ModelProto]:
    """A layer of one direction without a batch: all its outputs."""

    def build() -> onnx.ModelProto:
        net = Builder((steps, 1, width))
        weights = (net.weight(1, gates * hidden, width, scale=width**-0.5), net.weight(1, gates * hidden, hidden))
        return net.model(net.op(kind, "x0", *weights, net.weight(1, 2 * gates * hidden, scale=0.1), hidden_size=hidden))

    return build


def conv(shape: Shape, out: int, kernel: int | Shape, relu: bool = False, **attributes: Any) -> Callable[[], Any]:
    """A convolution with bias, padded so that stride 1 keeps the size unless `pads` is given."""
    size = (kernel, kernel) if isinstance(kernel, int) else kernel
    group = attributes.get("group", 1)
    dilations = attributes.get("dilations", [1] * len(size))
    half = [(k - 1) * d // 2 for k, d in zip(size, dilations, strict=True)]
    attributes.setdefault("pads", [*half, *half])

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        y = net.op("Conv", "x0", net.weight(out, shape[1] // group, *size), net.weight(out, scale=1.0), **attributes)
        return net.model(net.op("Relu", y) if relu else y)

    return build


def transposed(shape: Shape, out: int, kernel: int, **attributes: Any) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        net = Builder(shape)
        weight = net.weight(shape[1], out, kernel, kernel, scale=shape[1] ** -0.5)
        return net.model(net.op("ConvTranspose", "x0", weight, net.weight(out, scale=1.0), **attributes))

    return build


def matmul(shape: Shape, columns: int, activation: str = "") -> Callable[[], onnx.ModelProto]:
    """A product with a constant, a bias and, if named, an activation."""

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        y = net.op("MatMul", "x0", net.weight(shape[-1], columns, scale=shape[-1] ** -0.5))
        y = net.op("Add", y, net.weight(columns, scale=1.0))
        return net.model(net.op(activation, y) if activation else y)

    return build


def batched(a: Shape, b: Shape) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        net = Builder(a, b)
        return net.model(net.op("MatMul", "x0", "x1"))

    return build


def attention(heads: int, rows: int, width: int) -> Callable[[], onnx.ModelProto]:
    """softmax(Q Kᵀ / √width) V, K given as [heads, rows, width]."""

    def build() -> onnx.ModelProto:
        net = Builder(*[(1, heads, rows, width)] * 3)
        scores = net.op("MatMul", "x0", net.op("Transpose", "x1", perm=[0, 1, 3, 2]))
        scaled = net.op("Mul", scores, net.constant(np.float32(width**-0.5)))
        return net.model(net.op("MatMul", net.op("Softmax", scaled, axis=-1), "x2"))

    return build


def gelu(shape: Shape) -> Callable[[], onnx.ModelProto]:
    """x · ½ · (1 + erf(x / √2)) as exporters write it."""

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        erf = net.op("Erf", net.op("Div", "x0", net.constant(np.float32(2**0.5))))
        y = net.op("Mul", "x0", net.op("Add", erf, net.constant(np.float32(1))))
        return net.model(net.op("Mul", y, net.constant(np.float32(0.5))))

    return build


def masked_softmax(heads: int, rows: int) -> Callable[[], onnx.ModelProto]:
    """The softmax of scaled scores with a mask added."""

    def build() -> onnx.ModelProto:
        net = Builder((1, heads, rows, rows), (1, 1, 1, rows))
        scaled = net.op("Mul", "x0", net.constant(np.float32(0.125)))
        return net.model(net.op("Softmax", net.op("Add", scaled, "x1"), axis=-1))

    return build


def layer_norm(shape: Shape) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        net = Builder(shape)
        scale, bias = net.weight(shape[-1], scale=1.0), net.weight(shape[-1], scale=1.0)
        return net.model(net.op("LayerNormalization", "x0", scale, bias, axis=-1))

    return build


def reduce(shape: Shape, kind: str, axes: Sequence[int]) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        net = Builder(shape)
        return net.model(net.op(kind, "x0", net.constant(np.array(axes, np.int64)), keepdims=1))

    return build


def resize(shape: Shape, mode: str, factor: float) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        net = Builder(shape)
        scales = net.constant(np.array([1, 1, factor, factor], np.float32))
        coordinates = "asymmetric" if mode == "nearest" else "half_pixel"
        extra = {"nearest_mode": "floor"} if mode == "nearest" else {}
        attributes = {"mode": mode, "coordinate_transformation_mode": coordinates, **extra}
        return net.model(net.op("Resize", "x0", "", scales, **attributes))

    return build


def binary(a: Shape, b: Shape, kind: str, **attributes: Any) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        net = Builder(a, b)
        return net.model(net.op(kind, "x0", "x1", **attributes))

    return build


def concat(shape: Shape, axis: int) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        net = Builder(shape, shape)
        return net.model(net.op("Concat", "x0", "x1", axis=axis))

    return build


def squeeze_excite(shape: Shape, squeezed: int) -> Callable[[], onnx.ModelProto]:
    """Channels weighted by a sigmoid of their own means (Hu et al. 2018)."""

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        channels = shape[1]
        mean = net.op("GlobalAveragePool", "x0")
        small = net.op("Relu", net.op("Conv", mean, net.weight(squeezed, channels, 1, 1), net.weight(squeezed)))
        gate = net.op("Sigmoid", net.op("Conv", small, net.weight(channels, squeezed, 1, 1), net.weight(channels)))
        return net.model(net.op("Mul", "x0", gate))

    return build


def image(channels: int, size: int, batch: int = 1) -> Shape:
    return (batch, channels, size, size)


def instance_norm(shape: Shape) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        net = Builder(shape)
        scale, bias = net.weight(shape[1], scale=1.0), net.weight(shape[1], scale=1.0)
        return net.model(net.op("InstanceNormalization", "x0", scale, bias))

    return build


def group_norm(shape: Shape, groups: int) -> Callable[[], onnx.ModelProto]:
    """As exporters write it: an instance normalisation of the groups, then scale and bias of the channels."""

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        grouped = net.op("Reshape", "x0", net.constant(np.array([0, groups, -1], np.int64)))
        one, zero = (net.constant(np.full(groups, value, np.float32)) for value in (1, 0))
        normal = net.op("InstanceNormalization", grouped, one, zero)
        whole = net.op("Reshape", normal, net.constant(np.array(shape, np.int64)))
        scaled = net.op("Mul", whole, net.weight(shape[1], 1, 1, scale=1.0))
        return net.model(net.op("Add", scaled, net.weight(shape[1], 1, 1, scale=1.0)))

    return build


def rms_norm(shape: Shape) -> Callable[[], onnx.ModelProto]:
    """x / √(mean of squares + epsilon) · scale, as exporters write it."""

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        square = net.op("Pow", "x0", net.constant(np.float32(2)))
        mean = net.op("ReduceMean", square, net.constant(np.array([-1], np.int64)), keepdims=1)
        root = net.op("Sqrt", net.op("Add", mean, net.constant(np.float32(1e-6))))
        return net.model(net.op("Mul", net.op("Div", "x0", root), net.weight(shape[-1], scale=1.0)))

    return build


def gemm(shape: Shape, columns: int, **attributes: int) -> Callable[[], onnx.ModelProto]:
    """Gemm with a constant and a bias; `transA` and `transB` as its attributes."""

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        depth = shape[0 if attributes.get("transA") else 1]
        sizes = (columns, depth) if attributes.get("transB") else (depth, columns)
        return net.model(net.op("Gemm", "x0", net.weight(*sizes), net.weight(columns, scale=1.0), **attributes))

    return build


def along(shape: Shape, kind: str, axis: int) -> Callable[[], onnx.ModelProto]:
    """An operator whose second input is an axis."""

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        return net.model(net.op(kind, "x0", net.constant(np.array(axis, np.int64))))

    return build


def largest(shape: Shape, count: int) -> Callable[[], onnx.ModelProto]:
    """TopK along the last axis: values and indices."""

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        inputs = ["x0", net.constant(np.array([count], np.int64))]
        net.nodes.append(helper.make_node("TopK", inputs, ["values", "indices"], axis=-1))
        return net.model("values", "indices")

    return build


def parted(shape: Shape, axis: int, parts: int) -> Callable[[], onnx.ModelProto]:
    """Split into equal parts."""

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        outputs = [f"part{number}" for number in range(parts)]
        net.nodes.append(helper.make_node("Split", ["x0"], outputs, axis=axis, num_outputs=parts))
        return net.model(*outputs)

    return build


def chosen(shape: Shape) -> Callable[[], onnx.ModelProto]:
    """The larger of two arrays by Greater and Where."""

    def build() -> onnx.ModelProto:
        net = Builder(shape, shape)
        return net.model(net.op("Where", net.op("Greater", "x0", "x1"), "x0", "x1"))

    return build


def transposed_as(shape: Shape, weight: Shape, **attributes: Any) -> Callable[[], onnx.ModelProto]:
    """A transposed convolution without a bias, of any rank and any groups."""

    def build() -> onnx.ModelProto:
        net = Builder(shape)
        return net.model(net.op("ConvTranspose", "x0", net.weight(*weight, scale=weight[0] ** -0.5), **attributes))

    return build

"""Models of one operator or one short chain each, for benchmarks/cpu.py: small, middle, large and odd sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_OPSET = 20

Shape = tuple[int, ...]


class _Builder:
    """A model under construction: nodes, weights and the shape of the one input."""

    def __init__(self, *inputs: Shape) -> None:
        self.inputs = [f"x{i}" for i in range(len(inputs))]
        self.shapes = inputs
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def weight(self, *shape: int, scale: float | None = None) -> str:
        """A seeded float32 weight; `scale` keeps sums of products near one by default."""
        fan = int(np.prod(shape[1:])) or 1
        array = self.random.standard_normal(shape, np.float32) * (fan**-0.5 if scale is None else scale)
        return self.constant(array.astype(np.float32))

    def constant(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Append a node of one output; returns the output's name."""
        out = f"y{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], **attributes))
        return out

    def model(self, output: str) -> onnx.ModelProto:
        infos = [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
            for n, s in zip(self.inputs, self.shapes, strict=True)
        ]
        result = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "operator", infos, [result], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=10)
        return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


@dataclass(frozen=True, slots=True)
class Case:
    """One model of the suite: `kind` groups cases in the table."""

    kind: str
    name: str
    build: Callable[[], onnx.ModelProto]


def _unary(shape: Shape, kind: str, *constants: Sequence[int], **attributes: Any) -> Callable[[], onnx.ModelProto]:
    """An operator of one array, and of constant lists of integers."""

    def build() -> onnx.ModelProto:
        net = _Builder(shape)
        lists = [net.constant(np.array(c, np.int64)) for c in constants]
        return net.model(net.op(kind, "x0", *lists, **attributes))

    return build


def _slopes(shape: Shape) -> Callable[[], onnx.ModelProto]:
    """PRelu with a slope for each channel."""

    def build() -> onnx.ModelProto:
        net = _Builder(shape)
        return net.model(net.op("PRelu", "x0", net.weight(shape[1], *[1] * (len(shape) - 2), scale=0.1)))

    return build


def _recurrent(kind: str, gates: int, steps: int, width: int, hidden: int) -> Callable[[], onnx.ModelProto]:
    """A layer of one direction without a batch: all its outputs."""

    def build() -> onnx.ModelProto:
        net = _Builder((steps, 1, width))
        weights = (net.weight(1, gates * hidden, width, scale=width**-0.5), net.weight(1, gates * hidden, hidden))
        return net.model(net.op(kind, "x0", *weights, net.weight(1, 2 * gates * hidden, scale=0.1), hidden_size=hidden))

    return build


def _conv(shape: Shape, out: int, kernel: int | Shape, relu: bool = False, **attributes: Any) -> Callable[[], Any]:
    """A convolution with bias, padded so that stride 1 keeps the size unless `pads` is given."""
    size = (kernel, kernel) if isinstance(kernel, int) else kernel
    group = attributes.get("group", 1)
    dilations = attributes.get("dilations", [1] * len(size))
    half = [(k - 1) * d // 2 for k, d in zip(size, dilations, strict=True)]
    attributes.setdefault("pads", [*half, *half])

    def build() -> onnx.ModelProto:
        net = _Builder(shape)
        y = net.op("Conv", "x0", net.weight(out, shape[1] // group, *size), net.weight(out, scale=1.0), **attributes)
        return net.model(net.op("Relu", y) if relu else y)

    return build


def _transposed(shape: Shape, out: int, kernel: int, **attributes: Any) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        net = _Builder(shape)
        weight = net.weight(shape[1], out, kernel, kernel, scale=shape[1] ** -0.5)
        return net.model(net.op("ConvTranspose", "x0", weight, net.weight(out, scale=1.0), **attributes))

    return build


def _matmul(shape: Shape, columns: int, activation: str = "") -> Callable[[], onnx.ModelProto]:
    """A product with a constant, a bias and, if named, an activation."""

    def build() -> onnx.ModelProto:
        net = _Builder(shape)
        y = net.op("MatMul", "x0", net.weight(shape[-1], columns, scale=shape[-1] ** -0.5))
        y = net.op("Add", y, net.weight(columns, scale=1.0))
        return net.model(net.op(activation, y) if activation else y)

    return build


def _batched(a: Shape, b: Shape) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        net = _Builder(a, b)
        return net.model(net.op("MatMul", "x0", "x1"))

    return build


def _attention(heads: int, rows: int, width: int) -> Callable[[], onnx.ModelProto]:
    """softmax(Q Kᵀ / √width) V, K given as [heads, rows, width]."""

    def build() -> onnx.ModelProto:
        net = _Builder(*[(1, heads, rows, width)] * 3)
        scores = net.op("MatMul", "x0", net.op("Transpose", "x1", perm=[0, 1, 3, 2]))
        scaled = net.op("Mul", scores, net.constant(np.float32(width**-0.5)))
        return net.model(net.op("MatMul", net.op("Softmax", scaled, axis=-1), "x2"))

    return build


def _gelu(shape: Shape) -> Callable[[], onnx.ModelProto]:
    """x · ½ · (1 + erf(x / √2)) as exporters write it."""

    def build() -> onnx.ModelProto:
        net = _Builder(shape)
        erf = net.op("Erf", net.op("Div", "x0", net.constant(np.float32(2**0.5))))
        y = net.op("Mul", "x0", net.op("Add", erf, net.constant(np.float32(1))))
        return net.model(net.op("Mul", y, net.constant(np.float32(0.5))))

    return build


def _masked_softmax(heads: int, rows: int) -> Callable[[], onnx.ModelProto]:
    """The softmax of scaled scores with a mask added."""

    def build() -> onnx.ModelProto:
        net = _Builder((1, heads, rows, rows), (1, 1, 1, rows))
        scaled = net.op("Mul", "x0", net.constant(np.float32(0.125)))
        return net.model(net.op("Softmax", net.op("Add", scaled, "x1"), axis=-1))

    return build


def _layer_norm(shape: Shape) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        net = _Builder(shape)
        scale, bias = net.weight(shape[-1], scale=1.0), net.weight(shape[-1], scale=1.0)
        return net.model(net.op("LayerNormalization", "x0", scale, bias, axis=-1))

    return build


def _reduce(shape: Shape, kind: str, axes: Sequence[int]) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        net = _Builder(shape)
        return net.model(net.op(kind, "x0", net.constant(np.array(axes, np.int64)), keepdims=1))

    return build


def _resize(shape: Shape, mode: str, factor: float) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        net = _Builder(shape)
        scales = net.constant(np.array([1, 1, factor, factor], np.float32))
        coordinates = "asymmetric" if mode == "nearest" else "half_pixel"
        extra = {"nearest_mode": "floor"} if mode == "nearest" else {}
        attributes = {"mode": mode, "coordinate_transformation_mode": coordinates, **extra}
        return net.model(net.op("Resize", "x0", "", scales, **attributes))

    return build


def _binary(a: Shape, b: Shape, kind: str) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        net = _Builder(a, b)
        return net.model(net.op(kind, "x0", "x1"))

    return build


def _concat(shape: Shape, axis: int) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        net = _Builder(shape, shape)
        return net.model(net.op("Concat", "x0", "x1", axis=axis))

    return build


def _squeeze_excite(shape: Shape, squeezed: int) -> Callable[[], onnx.ModelProto]:
    """Channels weighted by a sigmoid of their own means (Hu et al. 2018)."""

    def build() -> onnx.ModelProto:
        net = _Builder(shape)
        channels = shape[1]
        mean = net.op("GlobalAveragePool", "x0")
        small = net.op("Relu", net.op("Conv", mean, net.weight(squeezed, channels, 1, 1), net.weight(squeezed)))
        gate = net.op("Sigmoid", net.op("Conv", small, net.weight(channels, squeezed, 1, 1), net.weight(channels)))
        return net.model(net.op("Mul", "x0", gate))

    return build


def _image(channels: int, size: int, batch: int = 1) -> Shape:
    return (batch, channels, size, size)


def _cases() -> Iterator[Case]:
    for channels, size, out in (
        (64, 56, 64),
        (128, 28, 128),
        (256, 14, 256),
        (512, 7, 512),
        (40, 40, 40),
        (19, 33, 37),
    ):
        yield Case("conv 3x3", f"{channels}->{out}@{size}", _conv(_image(channels, size), out, 3, relu=True))
    for channels, size, out in ((64, 56, 128), (32, 56, 64), (128, 28, 256), (48, 39, 80)):
        yield Case("conv 3x3 s2", f"{channels}->{out}@{size}", _conv(_image(channels, size), out, 3, strides=[2, 2]))
    for size, out, kernel in ((224, 32, 3), (192, 24, 3), (224, 64, 7), (301, 17, 5)):
        yield Case(
            "first layer", f"{kernel}x{kernel} 3->{out}@{size}", _conv(_image(3, size), out, kernel, strides=[2, 2])
        )
    for channels, size, out in (
        (64, 56, 256),
        (256, 56, 64),
        (512, 13, 512),
        (24, 80, 96),
        (48, 40, 288),
        (1024, 64, 256),
        (320, 7, 1280),
        (37, 19, 53),
    ):
        yield Case("conv 1x1", f"{channels}->{out}@{size}", _conv(_image(channels, size), out, 1))
    yield Case("conv other", "dilated 3x3 64@56", _conv(_image(64, 56), 64, 3, dilations=[2, 2]))
    yield Case("conv other", "groups 32 256@28", _conv(_image(256, 28), 256, 3, group=32))
    for kernel in ((1, 7), (7, 1)):
        for channels, size in ((128, 17), (64, 35), (19, 21)):
            label = f"{kernel[0]}x{kernel[1]} {channels}@{size}"
            yield Case("conv other", label, _conv(_image(channels, size), channels, kernel))
    yield Case("conv other", "3x1 384@8", _conv(_image(384, 8), 384, (3, 1)))
    yield Case("conv other", "5x5 48->64@35", _conv(_image(48, 35), 64, 5))
    yield Case("conv other", "batch 4 64@28", _conv(_image(64, 28, 4), 64, 3))
    yield Case("conv other", "1d k9 64@2000", _conv((1, 64, 2000), 64, (9,)))
    for channels, size, kernel, stride in (
        (96, 112, 3, 1),
        (144, 80, 3, 1),
        (960, 7, 3, 1),
        (80, 56, 7, 1),
        (240, 40, 5, 2),
        (144, 56, 3, 2),
        (33, 29, 5, 1),
    ):
        shape = _image(channels, size)
        build = _conv(shape, channels, kernel, group=channels, strides=[stride, stride])
        yield Case("depthwise", f"{kernel}x{kernel} s{stride} {channels}@{size}", build)
    yield Case("conv transposed", "2x2 s2 128->64@32", _transposed(_image(128, 32), 64, 2, strides=[2, 2]))
    yield Case("conv transposed", "4x4 s2 64->32@24", _transposed(_image(64, 24), 32, 4, strides=[2, 2], pads=[1] * 4))
    yield Case("conv transposed", "3x3 s2 24->1@95", _transposed(_image(24, 95), 1, 3, strides=[2, 2]))
    for channels, size, out in ((64, 28, 32), (128, 14, 128), (17, 33, 21)):
        doubled = _transposed(_image(channels, size), out, 3, strides=[2, 2], pads=[1] * 4, output_padding=[1, 1])
        yield Case("conv transposed", f"3x3 s2 {channels}->{out}@{size}", doubled)
    for rows, depth, columns in (
        (1, 2048, 2048),
        (1, 1024, 4096),
        (197, 384, 1536),
        (49, 768, 768),
        (1024, 256, 1024),
        (128, 768, 3072),
        (7, 100, 33),
    ):
        yield Case("matmul", f"{rows}x{depth}x{columns}", _matmul((rows, depth), columns))
    yield Case("matmul", "197x192x768 gelu", _matmul((1, 197, 192), 768, "Gelu"))
    yield Case("batched", "12x128x64x128", _batched((12, 128, 64), (12, 64, 128)))
    yield Case("batched", "4x197x197x48", _batched((4, 197, 197), (4, 197, 48)))
    for heads, rows, width in ((8, 512, 64), (6, 197, 64), (12, 128, 64), (3, 49, 32), (4, 65, 40)):
        yield Case("attention", f"{heads}x{rows}x{width}", _attention(heads, rows, width))
    for shape in ((196, 768), (1, 64, 128, 128), (512,), (33, 77)):
        label = "x".join(map(str, shape))
        yield Case("gelu", label, _gelu(shape))
        for kind in ("Sigmoid", "Tanh", "Exp", "Erf", "HardSwish", "Softplus", "Elu", "Mish"):
            yield Case("activation", f"{kind} {label}", _unary(shape, kind))
    for shape in (
        (4, 1024, 256),
        (512, 256),
        (1, 1000),
        (64, 1000),
        (77, 91),
        (2, 8, 128, 128),
        (12, 197, 197),
        (8400, 10),
    ):
        yield Case("softmax", "x".join(map(str, shape)), _unary(shape, "Softmax", axis=-1))
    yield Case("softmax", "masked 1x12x128x128", _masked_softmax(12, 128))
    yield Case("softmax", "axis 1, 1x21x65x65", _unary((1, 21, 65, 65), "Softmax", axis=1))
    yield Case("softmax", "log 64x1000", _unary((64, 1000), "LogSoftmax", axis=-1))
    yield Case("softmax", "log 77x91", _unary((77, 91), "LogSoftmax", axis=-1))
    for shape in ((512, 256), (197, 384), (1, 128, 768), (3, 50, 100)):
        yield Case("layer norm", "x".join(map(str, shape)), _layer_norm(shape))
    for shape, kernel, stride in (
        (_image(64, 112), 3, 2),
        (_image(96, 80), 2, 2),
        (_image(128, 27), 3, 1),
        (_image(31, 45), 5, 3),
    ):
        pads = [kernel // 2] * 4 if kernel > 2 else [0] * 4
        label = f"{kernel}x{kernel} s{stride} {shape[1]}@{shape[2]}"
        for kind in ("MaxPool", "AveragePool"):
            build = _unary(shape, kind, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads)
            yield Case("pooling", f"{kind} {label}", build)
    yield Case("pooling", "global 512@28", _unary(_image(512, 28), "GlobalAveragePool"))
    yield Case("pooling", "global 1280@7", _unary(_image(1280, 7), "GlobalAveragePool"))
    for shape, axes in (((1, 512, 768), [1]), ((1, 512, 768), [2]), ((64, 100, 100), [0, 2]), ((1, 33, 1001), [-1])):
        for kind in ("ReduceMean", "ReduceMax"):
            yield Case("reduction", f"{kind} {'x'.join(map(str, shape))} {axes}", _reduce(shape, kind, axes))
    for shape, perm in (
        ((1, 197, 6, 64), (0, 2, 1, 3)),
        ((1, 96, 56, 56), (0, 2, 3, 1)),
        ((1, 56, 56, 96), (0, 3, 1, 2)),
        ((1, 8, 512, 64), (0, 1, 3, 2)),
        ((33, 65, 17), (2, 0, 1)),
    ):
        yield Case("transpose", f"{'x'.join(map(str, shape))} {perm}", _unary(shape, "Transpose", perm=perm))
    for mode in ("nearest", "linear"):
        yield Case("resize", f"{mode} 2x 64@40", _resize(_image(64, 40), mode, 2.0))
        yield Case("resize", f"{mode} 1.7x 21@33", _resize(_image(21, 33), mode, 1.7))
    for a, b in (
        ((1, 64, 56, 56), (1, 64, 56, 56)),
        ((1, 128, 768), (768,)),
        ((1, 96, 40, 40), (1, 96, 1, 1)),
        ((511,), (511,)),
    ):
        yield Case("elementwise", f"Add {'x'.join(map(str, a))} {'x'.join(map(str, b))}", _binary(a, b, "Add"))
    yield Case("elementwise", "Relu 1x64x112x112", _unary(_image(64, 112), "Relu"))
    for shape in (_image(64, 56), (33, 77)):
        label = "x".join(map(str, shape))
        yield Case("elementwise", f"LeakyRelu {label}", _unary(shape, "LeakyRelu", alpha=0.1))
        yield Case("elementwise", f"PRelu {label}", _slopes(shape))
        yield Case("elementwise", f"Pow {label}", _binary(shape, (1,), "Pow"))
    yield Case("elementwise", "Div 128x1000", _binary((128, 1000), (128, 1), "Div"))
    yield Case("concat", "channels 2 x 64@56", _concat(_image(64, 56), 1))
    yield Case("concat", "columns 2 x 197x384", _concat((197, 384), 1))
    yield Case("movement", "Slice 197x384", _unary((197, 384), "Slice", [0, 64], [197, 320], [0, 1]))
    yield Case("movement", "Pad 64@56", _unary(_image(64, 56), "Pad", [0, 0, 1, 1, 0, 0, 1, 1]))
    yield Case("movement", "Gather 1000x256", _unary((1000, 256), "Gather", list(range(0, 999, 7))))
    yield Case("movement", "Expand 128x1", _unary((128, 1), "Expand", [4, 128, 300]))
    yield Case("movement", "Tile 33x17", _unary((33, 17), "Tile", [4, 3]))
    yield Case("movement", "DepthToSpace 64@28", _unary(_image(64, 28), "DepthToSpace", blocksize=2))
    yield Case("movement", "SpaceToDepth 12@58", _unary(_image(12, 58), "SpaceToDepth", blocksize=2))
    for kind, gates in (("LSTM", 4), ("GRU", 3)):
        for steps, width, hidden in ((40, 64, 128), (7, 33, 19)):
            yield Case("recurrent", f"{kind} {steps}x{width}->{hidden}", _recurrent(kind, gates, steps, width, hidden))
    yield Case("squeeze-excite", "96@56", _squeeze_excite(_image(96, 56), 24))
    yield Case("squeeze-excite", "480@14", _squeeze_excite(_image(480, 14), 120))
    yield Case("normalisation", "InstanceNormalization 64@56", _instance_norm(_image(64, 56)))
    yield Case("normalisation", "InstanceNormalization 33@29", _instance_norm(_image(33, 29)))
    yield Case("normalisation", "groups 8, 64@28", _group_norm(_image(64, 28), 8))
    for shape in ((1, 128, 768), (50, 100)):
        yield Case("normalisation", f"root mean square {'x'.join(map(str, shape))}", _rms_norm(shape))


def _instance_norm(shape: Shape) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        net = _Builder(shape)
        scale, bias = net.weight(shape[1], scale=1.0), net.weight(shape[1], scale=1.0)
        return net.model(net.op("InstanceNormalization", "x0", scale, bias))

    return build


def _group_norm(shape: Shape, groups: int) -> Callable[[], onnx.ModelProto]:
    """As exporters write it: an instance normalisation of the groups, then scale and bias of the channels."""

    def build() -> onnx.ModelProto:
        net = _Builder(shape)
        grouped = net.op("Reshape", "x0", net.constant(np.array([0, groups, -1], np.int64)))
        one, zero = (net.constant(np.full(groups, value, np.float32)) for value in (1, 0))
        normal = net.op("InstanceNormalization", grouped, one, zero)
        whole = net.op("Reshape", normal, net.constant(np.array(shape, np.int64)))
        scaled = net.op("Mul", whole, net.weight(shape[1], 1, 1, scale=1.0))
        return net.model(net.op("Add", scaled, net.weight(shape[1], 1, 1, scale=1.0)))

    return build


def _rms_norm(shape: Shape) -> Callable[[], onnx.ModelProto]:
    """x / √(mean of squares + epsilon) · scale, as exporters write it."""

    def build() -> onnx.ModelProto:
        net = _Builder(shape)
        square = net.op("Pow", "x0", net.constant(np.float32(2)))
        mean = net.op("ReduceMean", square, net.constant(np.array([-1], np.int64)), keepdims=1)
        root = net.op("Sqrt", net.op("Add", mean, net.constant(np.float32(1e-6))))
        return net.model(net.op("Mul", net.op("Div", "x0", root), net.weight(shape[-1], scale=1.0)))

    return build


CASES: tuple[Case, ...] = tuple(_cases())
"""The suite."""

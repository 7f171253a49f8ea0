"""Operators and short chains with dynamic sizes: images, sequences, rows and boxes of any number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx

from benchmarks.operators.cases.models import Builder

Dims = dict[str, int]


@dataclass(frozen=True, slots=True)
class DynamicCase:
    """A model with named dimensions, and the sizes at which it is timed."""

    kind: str
    name: str
    build: Callable[[], onnx.ModelProto]
    sizes: tuple[Dims, ...]


IMAGES = tuple({"h": h, "w": w} for h, w in ((16, 16), (57, 83), (160, 160)))
LENGTHS = tuple({"n": n} for n in (7, 100, 1000))
SQUARES = tuple({"n": n} for n in (7, 64, 333))
SMALL = tuple({"h": n, "w": n} for n in (1, 4, 7, 14))
_FLOOR = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
_RESIZE = {"coordinate_transformation_mode": "half_pixel"}


def dynamic_cases() -> Iterator[DynamicCase]:
    """Cases, by kind."""
    yield from _transposed()
    yield from _pads()
    yield from _rows()
    yield from _resizes()
    yield from _elements()
    yield from _convolutions()
    yield from _small_maps()
    yield from _chains()
    yield from _boxes()


def _one(shape: Sequence[int | str], *kinds: tuple[Any, ...]) -> Callable[[], onnx.ModelProto]:
    """A chain of operators of one array; each is a kind, arrays of constants, and attributes last."""

    def build() -> onnx.ModelProto:
        net = Builder(tuple(shape))  # type: ignore[arg-type]
        value = "x0"
        for kind, *rest in kinds:
            attributes = rest.pop() if rest and isinstance(rest[-1], dict) else {}
            constants = ["" if c is None else net.constant(np.asarray(c)) for c in rest]
            value = net.op(kind, value, *constants, **attributes)
        return net.model(value)

    return build


def _conv(shape: Sequence[int | str], out: int, kernel: Sequence[int], kind: str = "Conv", **attributes: Any) -> Any:
    """A convolution with bias and Relu, padded so that stride 1 keeps the size unless `pads` is given."""
    channels, group = int(shape[1]), attributes.get("group", 1)
    half = [(k - 1) * d // 2 for k, d in zip(kernel, attributes.get("dilations", [1] * len(kernel)), strict=True)]
    if "auto_pad" not in attributes:
        attributes.setdefault("pads", [*half, *half])

    def build() -> onnx.ModelProto:
        net = Builder(tuple(shape))  # type: ignore[arg-type]
        size = (out, channels // group) if kind == "Conv" else (channels, out // group)
        weight = net.weight(*size, *kernel)
        return net.model(net.op("Relu", net.op(kind, "x0", weight, net.weight(out, scale=1.0), **attributes)))

    return build


def _transposed() -> Iterator[DynamicCase]:
    for name, channels, out, kernel, extra in (
        ("4x4 s2 64->32", 64, 32, 4, {"strides": [2, 2], "pads": [1] * 4}),
        ("2x2 s2 96->24", 96, 24, 2, {"strides": [2, 2], "pads": [0] * 4}),
        ("3x3 s2 32->32", 32, 32, 3, {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]}),
        ("3x3 s1 48->48", 48, 48, 3, {"pads": [1] * 4}),
    ):
        build = _conv((1, channels, "h", "w"), out, (kernel, kernel), "ConvTranspose", **extra)
        yield DynamicCase("ConvTranspose 2d", name, build, IMAGES)
    for name, channels, out, kernel, extra in (
        ("k16 s8 128->64", 128, 64, 16, {"strides": [8], "pads": [4, 4]}),
        ("k4 s2 64->32", 64, 32, 4, {"strides": [2], "pads": [1, 1]}),
    ):
        build = _conv((1, channels, "n"), out, (kernel,), "ConvTranspose", **extra)
        yield DynamicCase("ConvTranspose 1d", name, build, LENGTHS)


def _pads() -> Iterator[DynamicCase]:
    for mode in ("reflect", "edge", "constant", "wrap"):
        yield DynamicCase(
            "Pad 1d", mode, _one((1, 64, "n"), ("Pad", np.array([0, 0, 3, 0, 0, 3]), {"mode": mode})), LENGTHS
        )
        pads = np.array([0, 0, 2, 3, 0, 0, 2, 3])
        yield DynamicCase("Pad 2d", mode, _one((1, 16, "h", "w"), ("Pad", pads, {"mode": mode})), IMAGES)


def _rows() -> Iterator[DynamicCase]:
    last, first = np.array([-1]), np.array([1])
    both = np.array([2, 3])
    for name, shape, kinds, sizes in (
        ("Softmax last", (8, "n", "n"), [("Softmax", {"axis": -1})], SQUARES),
        ("Softmax middle", (8, "n", 48), [("Softmax", {"axis": 1})], LENGTHS),
        ("LogSoftmax last", (8, "n", "n"), [("LogSoftmax", {"axis": -1})], SQUARES),
        ("ReduceMean last", (64, 16, "n"), [("ReduceMean", last)], LENGTHS),
        ("ReduceSum middle", (8, "n", 64), [("ReduceSum", first, {"keepdims": 0})], LENGTHS),
        ("ReduceMax last", (64, 16, "n"), [("ReduceMax", last)], LENGTHS),
        ("ReduceL2 last", (64, 16, "n"), [("ReduceL2", last)], LENGTHS),
        ("ReduceMean image", (1, 64, "h", "w"), [("ReduceMean", both)], IMAGES),
        ("GlobalAveragePool", (1, 64, "h", "w"), [("GlobalAveragePool",)], IMAGES),
        ("ArgMax last", (16, 4, "n"), [("ArgMax", {"axis": -1})], LENGTHS),
        ("ArgMax of 500 classes", (1, "n", 500), [("ArgMax", {"axis": -1})], LENGTHS),
        ("CumSum last", (16, 4, "n"), [("CumSum", np.array(2))], LENGTHS),
        ("CumSum middle", (4, "n", 64), [("CumSum", np.array(1))], LENGTHS),
    ):
        yield DynamicCase("rows", name, _one(shape, *kinds), sizes)  # type: ignore[arg-type]
    for k in (1, 20):
        yield DynamicCase("rows", f"TopK {k} of 1000", partial(_top, k), tuple({"n": n} for n in (1, 16, 128)))
    yield DynamicCase("rows", "LayerNormalization", _one(
        ("n", 256), ("LayerNormalization", np.ones(256, np.float32), np.zeros(256, np.float32))), LENGTHS)  # fmt: skip
    ones, zeros = np.ones(64, np.float32), np.zeros(64, np.float32)
    yield DynamicCase("rows", "InstanceNormalization 1d", _one(
        (1, 64, "n"), ("InstanceNormalization", ones, zeros)), LENGTHS)  # fmt: skip
    yield DynamicCase("rows", "InstanceNormalization 2d", _one(
        (1, 64, "h", "w"), ("InstanceNormalization", ones, zeros)), IMAGES)  # fmt: skip
    yield DynamicCase("rows", "GroupNorm and SiLU", _group_norm, IMAGES)


def _top(k: int) -> onnx.ModelProto:
    net = Builder(("n", 1000))  # type: ignore[arg-type]
    return net.model(*net.ops("TopK", 2, "x0", net.constant(np.array([k]))))


def _group_norm() -> onnx.ModelProto:
    net = Builder((1, 64, "h", "w"))  # type: ignore[arg-type]
    flat = net.op("Reshape", "x0", net.constant(np.array([0, 8, -1])))
    one, zero = net.constant(np.ones(8, np.float32)), net.constant(np.zeros(8, np.float32))
    norm = net.op("Reshape", net.op("InstanceNormalization", flat, one, zero), net.op("Shape", "x0"))
    scaled = net.op("Add", net.op("Mul", norm, net.weight(64, 1, 1)), net.weight(64, 1, 1))
    return net.model(net.op("Mul", scaled, net.op("Sigmoid", scaled)))


def _resizes() -> Iterator[DynamicCase]:
    for name, scale, extra in (
        ("nearest x2", 2.0, {"mode": "nearest", **_FLOOR}),
        ("linear x2", 2.0, {"mode": "linear", **_RESIZE}),
        ("linear x2 align", 2.0, {"mode": "linear", "coordinate_transformation_mode": "align_corners"}),
        ("linear x0.5", 0.5, {"mode": "linear", **_RESIZE}),
        ("cubic x2", 2.0, {"mode": "cubic", "cubic_coeff_a": -0.75, **_RESIZE}),
        ("linear x0.5 antialias", 0.5, {"mode": "linear", "antialias": 1, **_RESIZE}),
    ):  # fmt: skip
        scales = np.array([1, 1, scale, scale], np.float32)
        yield DynamicCase("Resize", name, _one((1, 24, "h", "w"), ("Resize", None, scales, extra)), IMAGES)
    yield DynamicCase("Resize", "linear to the size of another", _resize_to, tuple(
        {**d, "a": d["h"] // 2, "b": d["w"] // 2} for d in IMAGES))  # fmt: skip


def _resize_to(**extra: int) -> onnx.ModelProto:
    net = Builder((1, 24, "a", "b"), (1, 24, "h", "w"))  # type: ignore[arg-type]
    resized = net.op("Resize", "x0", "", "", net.op("Shape", "x1"), mode="linear", **_RESIZE, **extra)
    return net.model(net.op("Add", resized, "x1"))


def _elements() -> Iterator[DynamicCase]:
    def scaled() -> onnx.ModelProto:
        net = Builder((1, 32, "h", "w"))  # type: ignore[arg-type]
        y = net.op("Add", net.op("Mul", "x0", net.weight(32, 1, 1)), net.weight(32, 1, 1))
        return net.model(net.op("Mul", y, net.op("Sigmoid", y)))

    def outer() -> onnx.ModelProto:
        net = Builder((4, "n", 1), (4, 1, "n"))  # type: ignore[arg-type]
        return net.model(net.op("Tanh", net.op("Mul", net.op("Add", "x0", "x1"), "x0")))

    def gated() -> onnx.ModelProto:
        net = Builder((1, 64, "n"), (1, 1, "n"))  # type: ignore[arg-type]
        y = net.op("Mul", net.op("Tanh", "x0"), net.op("Sigmoid", "x0"))
        return net.model(net.op("Add", net.op("Mul", y, "x1"), net.op("Mul", "x0", "x1")))

    yield DynamicCase("elements", "scale, shift, SiLU", scaled, IMAGES)
    yield DynamicCase("elements", "outer", outer, SQUARES)
    yield DynamicCase("elements", "gated by a mask", gated, LENGTHS)
    yield DynamicCase("elements", "Tile", _one((4, "n", 64), ("Tile", np.array([1, 1, 3]))), LENGTHS)
    yield DynamicCase("elements", "Tile in front", _one(("n", 64), ("Tile", np.array([12, 1]))), LENGTHS)
    yield DynamicCase("elements", "Tile of long rows", _one(("n", 1000), ("Tile", np.array([1, 3]))), SQUARES)
    yield DynamicCase("elements", "Transpose", _one((1, 64, "n"), ("Transpose", {"perm": [0, 2, 1]})), LENGTHS)
    yield DynamicCase("elements", "NCHW to NHWC", _one(
        (1, 32, "h", "w"), ("Transpose", {"perm": [0, 2, 3, 1]})), IMAGES)  # fmt: skip


def _convolutions() -> Iterator[DynamicCase]:
    for name, channels, out, kernel, extra in (
        ("3x3 64->64", 64, 64, 3, {}),
        ("3x3 s2 48->96", 48, 96, 3, {"strides": [2, 2]}),
        ("3x3 s2 3->32", 3, 32, 3, {"strides": [2, 2]}),
        ("1x1 64->128", 64, 128, 1, {}),
        ("1x1 s2 64->64", 64, 64, 1, {"strides": [2, 2]}),
        ("3x3 groups 4 64->64", 64, 64, 3, {"group": 4}),
        ("depthwise 3x3 64", 64, 64, 3, {"group": 64}),
        ("depthwise 5x5 s2 64", 64, 64, 5, {"group": 64, "strides": [2, 2]}),
        ("depthwise 3x3 s3 64", 64, 64, 3, {"group": 64, "strides": [3, 3]}),
        ("depthwise 9x9 64", 64, 64, 9, {"group": 64}),
        ("2x2 SAME 32->16", 32, 16, 2, {"auto_pad": "SAME_UPPER"}),
        ("3x3 SAME s2 32->32", 32, 32, 3, {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ("7x7 s2 3->64", 3, 64, 7, {"strides": [2, 2]}),
        ("3x3 dilated 32->32", 32, 32, 3, {"dilations": [2, 2]}),
    ):
        build = _conv((1, channels, "h", "w"), out, (kernel, kernel), **extra)  # type: ignore[arg-type]
        yield DynamicCase("Conv 2d", name, build, IMAGES)
    for name, channels, out, kernel, extra in (
        ("k3 128->128", 128, 128, 3, {}),
        ("k7 d3 64->64", 64, 64, 7, {"dilations": [3]}),
        ("k1 192->192", 192, 192, 1, {}),
        ("k5 s2 80->128", 80, 128, 5, {"strides": [2]}),
        ("depthwise k31 128", 128, 128, 31, {"group": 128}),
        ("k3 groups 4 128->128", 128, 128, 3, {"group": 4}),
        ("k10 s5 1->128", 1, 128, 10, {"strides": [5], "pads": [0, 0]}),
    ):
        sizes = LENGTHS if extra.get("pads") != [0, 0] else LENGTHS[1:]
        yield DynamicCase("Conv 1d", name, _conv((1, channels, "n"), out, (kernel,), **extra), sizes)  # type: ignore[arg-type]
    for name, taps in (("a few steps k1 256->256", 1), ("a few steps k3 256->256", 3)):
        few = tuple({"n": n} for n in (1, 2, 4))
        yield DynamicCase("Conv 1d", name, _conv((1, 256, "n"), 256, (taps,)), few)
    for name, kind, extra in (
        ("max 3x3 s2 ceil", "MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
        ("max 2x2 s1 SAME", "MaxPool", {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER"}),
        ("mean 3x3 s1", "AveragePool", {"kernel_shape": [3, 3], "pads": [1] * 4}),
        ("mean 2x2 s2", "AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("max 5x5 s1", "MaxPool", {"kernel_shape": [5, 5], "pads": [2] * 4}),
    ):
        yield DynamicCase("pools", name, _one((1, 48, "h", "w"), (kind, extra)), IMAGES)


def _small_maps() -> Iterator[DynamicCase]:
    """The last layers of networks for images."""
    for name, channels, out, kernel, extra in (
        ("3x3 64->64", 64, 64, 3, {}),
        ("3x3 256->256", 256, 256, 3, {}),
        ("3x3 s2 128->256", 128, 256, 3, {"strides": [2, 2]}),
        ("1x1 256->512", 256, 512, 1, {}),
        ("1x1 s2 128->256", 128, 256, 1, {"strides": [2, 2]}),
        ("depthwise 3x3 96", 96, 96, 3, {"group": 96}),
        ("depthwise 3x3 s2 96", 96, 96, 3, {"group": 96, "strides": [2, 2]}),
        ("depthwise 5x5 s2 96", 96, 96, 5, {"group": 96, "strides": [2, 2]}),
    ):
        build = _conv((1, channels, "h", "w"), out, (kernel, kernel), **extra)  # type: ignore[arg-type]
        yield DynamicCase("small maps", name, build, SMALL)
    for name, kind, extra in (
        ("max 3x3 s2", "MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}),
        ("mean 3x3 s1", "AveragePool", {"kernel_shape": [3, 3], "pads": [1] * 4}),
        ("max 5x5 s1", "MaxPool", {"kernel_shape": [5, 5], "pads": [2] * 4}),
    ):
        yield DynamicCase("small maps", name, _one((1, 96, "h", "w"), (kind, extra)), SMALL)
    yield DynamicCase("small maps", "of a column 64->1", _product_of(64, 1), LENGTHS)
    yield DynamicCase("small maps", "nearest x1.5", _one((1, 24, "h", "w"), ("Resize", None, np.array(
        [1, 1, 1.5, 1.5], np.float32), {"mode": "nearest", **_FLOOR})), IMAGES)  # fmt: skip
    yield DynamicCase("small maps", "antialias to the size of another", partial(_resize_to, antialias=1), tuple(
        {**d, "a": d["h"] * 2, "b": d["w"] * 2} for d in IMAGES))  # fmt: skip
    yield DynamicCase("small maps", "TopK 5 along n", _top_along, LENGTHS)


def _top_along() -> onnx.ModelProto:
    net = Builder((16, "n"))  # type: ignore[arg-type]
    return net.model(*net.ops("TopK", 2, "x0", net.constant(np.array([5]))))


def _product_of(terms: int, columns: int) -> Callable[[], onnx.ModelProto]:
    def build() -> onnx.ModelProto:
        net = Builder(("n", terms))  # type: ignore[arg-type]
        return net.model(net.op("MatMul", "x0", net.weight(terms, columns)))

    return build


def _chains() -> Iterator[DynamicCase]:
    yield DynamicCase("chains", "HGNet stem and stage", _hgnet, tuple(
        {"h": h, "w": w} for h, w in ((32, 48), (97, 131), (224, 224))))  # fmt: skip


def _hgnet() -> onnx.ModelProto:
    """A stem with padded 2x2 convolutions and a pool, and a stage of dense 3x3 convolutions that are joined."""
    net = Builder((1, 3, "h", "w"))  # type: ignore[arg-type]

    def conv(x: str, i: int, o: int, k: int, **extra: Any) -> str:
        extra.setdefault("pads", [k // 2] * 4)
        return net.op("Conv", x, net.weight(o, i // extra.get("group", 1), k, k), net.weight(o), **extra)

    def active(*given: Any, **extra: Any) -> str:
        return net.op("Relu", conv(*given, **extra))

    x = active("x0", 3, 24, 3, strides=[2, 2])
    padded = net.op("Pad", x, net.constant(np.array([0, 0, 0, 0, 0, 0, 1, 1])))
    a = active(padded, 24, 12, 2, pads=[0, 0, 1, 1])
    a = active(a, 12, 24, 2, pads=[0] * 4)
    b = net.op("MaxPool", padded, kernel_shape=[2, 2], ceil_mode=1)
    x = active(net.op("Concat", a, b, axis=1), 48, 24, 3, strides=[2, 2])
    x = active(x, 24, 32, 1)
    parts = [x]
    for index in range(4):
        x = active(x, 32, 32, 3)
        parts.append(x)
        if index % 2:
            x = active(conv(x, 32, 32, 1), 32, 32, 5, group=32)
    x = active(net.op("Concat", *parts, axis=1), 160, 64, 1)
    x = conv(x, 64, 64, 3, group=64, strides=[2, 2])
    x = active(x, 64, 128, 1)
    pooled = net.op("GlobalAveragePool", x)
    return net.model(net.op("Mul", x, net.op("Sigmoid", conv(pooled, 128, 128, 1))))


def _boxes() -> Iterator[DynamicCase]:
    sizes = tuple({"n": n} for n in (20, 300, 2000))
    for name, classes, extra in (("1 class", 1, 100), ("20 classes", 20, 100)):
        yield DynamicCase("NonMaxSuppression", name, _suppression(classes, extra), sizes)


def _suppression(classes: int, most: int) -> Callable[[], onnx.ModelProto]:
    """The best of boxes by score."""

    def build() -> onnx.ModelProto:
        net = Builder((1, "n", 4), (1, classes, "n"))  # type: ignore[arg-type]
        limits = [net.constant(np.array(most)), net.constant(np.array(0.5, np.float32))]
        least = net.constant(np.array(0.3, np.float32))
        return net.model(net.op("NonMaxSuppression", "x0", "x1", *limits, least))

    return build

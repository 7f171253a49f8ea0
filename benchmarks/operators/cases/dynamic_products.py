"""Models with matrix products whose sizes are known only at run time: rows of a batch, behind views, batched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from benchmarks.operators.cases.models import Builder

Sizes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SizedCase:
    """A model with dynamic dimensions, by name, and the sizes at which it is measured."""

    name: str
    dims: tuple[str, ...]
    build: Callable[[], onnx.ModelProto]
    sizes: tuple[Sizes, ...]


BATCHES = ((1,), (7,), (32,), (300,))
LENGTHS = ((1, 1), (1, 16), (4, 100), (32, 1), (1, 1024))


def sized_products() -> Iterator[SizedCase]:
    """Cases, by kind."""
    yield SizedCase("mlp 512-1024-1024-64", ("n",), lambda: _layers((512, 1024, 1024, 64)), BATCHES)
    yield SizedCase("six of 960x2560", ("n",), lambda: _layers((960, 2560) * 3 + (960,)), ((1,), (64,)))
    yield SizedCase("tabular 30-128-64-1", ("n",), lambda: _layers((30, 128, 64, 1)), ((1,), (32,), (1000,)))
    yield SizedCase("convolutions and a classifier", ("n",), _convolutions_then_classifier, ((1,), (4,), (32,)))
    yield SizedCase("rows of a fixed sequence", ("n",), lambda: _encoder(("n", 16, 256)), ((1,), (8,), (32,)))
    yield SizedCase("encoder layer", ("n", "t"), lambda: _encoder(("n", "t", 256)), LENGTHS)
    for name, view in _VIEWS.items():
        yield SizedCase(name, ("n", "t"), view, ((1, 1), (7, 33), (100, 4), (1, 300)))
    yield SizedCase("Gemm transA", ("n",), lambda: _gemm(("n",), transA=1), BATCHES)
    yield SizedCase("Gemm transB", ("n",), lambda: _gemm(("n",), transB=1), BATCHES)
    for equation, first, second in (
        ("btd,df->btf", ("n", "t", 256), (256, 512)),
        ("bthd,hde->bte", ("n", "t", 8, 32), (8, 32, 256)),
        ("btd,dhe->bhte", ("n", "t", 256), (256, 8, 32)),
    ):
        yield SizedCase(
            f"Einsum {equation}",
            ("n", "t"),
            lambda e=equation, f=first, s=second: _einsum(e, f, s),  # type: ignore[misc]
            LENGTHS,
        )
    yield SizedCase("MatMul of two inputs", ("n", "t"), lambda: _two(("n", 8, "t", 64), ("n", 8, 64, "t")), LENGTHS)
    yield SizedCase("weights by rows", ("n", "t"), lambda: _two(("n", 8, "t", "t"), ("n", 8, "t", 64)), LENGTHS)
    for terms, columns in ((64, 64), (256, 1024), (1024, 256), (768, 3072), (4096, 4096)):
        rows = [n for n in (1, 7, 64, 300, 1000) if n * terms * columns < 5e9]
        for name, build in (("MatMulInteger", _integers), ("DynamicQuantizeMatMul", _quantised)):
            sizes = tuple((n,) for n in rows)
            yield SizedCase(
                f"{name} {terms}x{columns}", ("n",), lambda b=build, t=terms, c=columns: b(("n", t), c), sizes
            )
    yield SizedCase("MatMulInteger of sequences", ("n", "t"), lambda: _integers(("n", "t", 512), 512), LENGTHS)
    yield SizedCase("int8 512-1024-1024-64", ("n",), lambda: _integer_layers((512, 1024, 1024, 64)), BATCHES)


def _layers(widths: Sizes) -> onnx.ModelProto:
    net = Builder(("n", widths[0]))  # type: ignore[arg-type]
    value = "x0"
    for before, after in pairwise(widths):
        value = net.op("Relu", net.op("Gemm", value, net.weight(before, after), net.weight(after)))
    return net.model(value)


def _integers(shape: tuple[Any, ...], columns: int) -> onnx.ModelProto:
    """A product as ONNX Runtime's dynamic quantisation writes it."""
    net = Builder(shape)
    return net.model(_integer_layer(net, "x0", shape[-1], columns))


def _integer_layers(widths: Sizes) -> onnx.ModelProto:
    net = Builder(("n", widths[0]))  # type: ignore[arg-type]
    value = "x0"
    for before, after in pairwise(widths):
        value = net.op("Relu", _integer_layer(net, value, before, after))
    return net.model(value)


def _integer_layer(net: Builder, value: str, terms: int, columns: int) -> str:
    weight = net.constant(net.random.integers(-127, 128, (terms, columns), np.int8))
    given, scale, zero = net.ops("DynamicQuantizeLinear", 3, value)
    sums = net.op("MatMulInteger", given, weight, zero, net.constant(np.array(0, np.int8)))
    factor = net.op("Mul", scale, net.constant(np.array(0.01 / terms**0.5, np.float32)))
    return net.op("Add", net.op("Mul", net.op("Cast", sums, to=TensorProto.FLOAT), factor), net.weight(columns))


def _quantised(shape: tuple[Any, ...], columns: int) -> onnx.ModelProto:
    """The same in one operator, with scales and zero points for each column."""
    net = Builder(shape)
    weight = net.constant(net.random.integers(0, 256, (shape[-1], columns), np.uint8))
    scales = net.constant(net.random.uniform(0.5, 1.5, columns).astype(np.float32) / 100)
    zeros = net.constant(net.random.integers(100, 156, columns, np.uint8))
    given = ("x0", weight, scales, zeros, net.weight(columns))
    model = net.model(net.op("DynamicQuantizeMatMul", *given, domain="com.microsoft"))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT  # ONNX does not know the operator
    return model


def _convolutions_then_classifier() -> onnx.ModelProto:
    net = Builder(("n", 3, 32, 32))  # type: ignore[arg-type]
    value = "x0"
    for before, after in ((3, 32), (32, 64), (64, 128)):
        weight = net.weight(after, before, 3, 3)
        value = net.op("Relu", net.op("Conv", value, weight, pads=[1] * 4, strides=[2, 2]))
    value = net.op("Flatten", value)
    value = net.op("Relu", net.op("Gemm", value, net.weight(2048, 1024), net.weight(1024)))
    return net.model(net.op("Gemm", value, net.weight(1024, 100), net.weight(100)))


def _encoder(shape: tuple[Any, ...], heads: int = 8) -> onnx.ModelProto:
    """A transformer layer with its attention written out."""
    net, width = Builder(shape), shape[-1]  # type: ignore[arg-type]

    def linear(value: str, before: int, after: int) -> str:
        return net.op("Add", net.op("MatMul", value, net.weight(before, after)), net.weight(after))

    def norm(value: str) -> str:
        return net.op("LayerNormalization", value, net.weight(width), net.weight(width))

    def split(value: str) -> str:
        parts = net.constant(np.array([0, 0, heads, width // heads], np.int64))
        return net.op("Reshape", value, parts)

    q = net.op("Transpose", split(linear("x0", width, width)), perm=[0, 2, 1, 3])
    k = net.op("Transpose", split(linear("x0", width, width)), perm=[0, 2, 3, 1])
    v = net.op("Transpose", split(linear("x0", width, width)), perm=[0, 2, 1, 3])
    scores = net.op("Mul", net.op("MatMul", q, k), net.constant(np.array((width / heads) ** -0.5, np.float32)))
    mixed = net.op("Transpose", net.op("MatMul", net.op("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    joined = net.op("Reshape", mixed, net.constant(np.array([0, 0, width], np.int64)))
    value = norm(net.op("Add", "x0", linear(joined, width, width)))
    inner = net.op("Gelu", linear(value, width, 4 * width))
    return net.model(norm(net.op("Add", value, linear(inner, 4 * width, width))))


def _net() -> Builder:
    return Builder(("n", "t", 256))  # type: ignore[arg-type]


def _transposed() -> onnx.ModelProto:
    net = _net()
    return net.model(net.op("MatMul", net.op("Transpose", "x0", perm=[1, 0, 2]), net.weight(256, 512)))


def _sliced() -> onnx.ModelProto:
    net = _net()
    ends = [net.constant(np.array([n], np.int64)) for n in (0, 1, 0)]
    return net.model(net.op("MatMul", net.op("Slice", "x0", *ends), net.weight(256, 512)))


def _between() -> onnx.ModelProto:
    net = _net()
    first = net.op("Transpose", net.op("MatMul", "x0", net.weight(256, 512)), perm=[1, 0, 2])
    return net.model(net.op("MatMul", first, net.weight(512, 256)))


def _reshaped() -> onnx.ModelProto:
    net = _net()
    flat = net.op("Reshape", "x0", net.constant(np.array([-1, 128], np.int64)))
    return net.model(net.op("MatMul", flat, net.weight(128, 512)))


def _last_taken() -> onnx.ModelProto:
    net = _net()
    one = net.op("Gather", "x0", net.constant(np.array(-1, np.int64)), axis=1)
    return net.model(net.op("Gemm", one, net.weight(256, 512), net.weight(512)))


def _first_taken() -> onnx.ModelProto:
    net = _net()
    one = net.op("Gather", "x0", net.constant(np.array(0, np.int64)), axis=0)
    return net.model(net.op("MatMul", one, net.weight(256, 512)))


def _squeezed() -> onnx.ModelProto:
    net = Builder(("n", "t", 1, 256))  # type: ignore[arg-type]
    two = net.op("Squeeze", "x0", net.constant(np.array([2], np.int64)))
    two = net.op("Transpose", two, perm=[1, 0, 2])
    return net.model(net.op("Relu", net.op("MatMul", two, net.weight(256, 512))))


def _heads_apart() -> onnx.ModelProto:
    net = _net()
    parts = net.op("Reshape", "x0", net.constant(np.array([0, 0, 8, 32], np.int64)))
    return net.model(net.op("MatMul", net.op("Transpose", parts, perm=[2, 1, 0, 3]), net.weight(32, 512)))


def _channels_last() -> onnx.ModelProto:
    net = Builder(("n", 256, "t"))  # type: ignore[arg-type]
    return net.model(net.op("MatMul", net.op("Transpose", "x0", perm=[0, 2, 1]), net.weight(256, 512)))


def _weight_first() -> onnx.ModelProto:
    net = Builder(("n", 256, "t"))  # type: ignore[arg-type]
    return net.model(net.op("MatMul", net.weight(512, 256), "x0"))


_VIEWS: dict[str, Callable[[], onnx.ModelProto]] = {
    "Transpose(1,0,2), MatMul": _transposed,
    "Slice(axis 0), MatMul": _sliced,
    "MatMul, Transpose, MatMul": _between,
    "Reshape(-1,128), MatMul": _reshaped,
    "Gather(last), Gemm": _last_taken,
    "Gather(first), MatMul": _first_taken,
    "Squeeze, Transpose, MatMul": _squeezed,
    "Transpose(2,1,0,3), MatMul": _heads_apart,
    "Transpose(0,2,1), MatMul": _channels_last,
    "MatMul of a weight and x": _weight_first,
}


def _gemm(rows: tuple[str], **flags: int) -> onnx.ModelProto:
    net = Builder((256, *rows) if "transA" in flags else (*rows, 256))  # type: ignore[arg-type]
    weight = net.weight(*((512, 256) if "transB" in flags else (256, 512)))
    return net.model(net.op("Gemm", "x0", weight, net.weight(512), **flags))


def _einsum(equation: str, first: tuple[Any, ...], second: Sizes) -> onnx.ModelProto:
    net = Builder(first)  # type: ignore[arg-type]
    return net.model(net.op("Einsum", "x0", net.weight(*second), equation=equation))


def _two(first: tuple[Any, ...], second: tuple[Any, ...]) -> onnx.ModelProto:
    net = Builder(first, second)  # type: ignore[arg-type]
    return net.model(net.op("MatMul", "x0", "x1"))

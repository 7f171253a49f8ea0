"""The shapes of the table of forms: generated from short lists of sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import onnx
from onnx import helper

Dims = tuple["int | str", ...]
"""Sizes of a tensor; a name is a size that is known only at run time."""


@dataclass(frozen=True)
class Shape:
    """An operator with its operands' shapes: `inputs` are of `dtype`, `weights` are constants.

    `name` stands in the table. Its products round factors to bfloat16 if it is `bfloat`, and take faster ways with
    larger errors if `fast_math`.
    """

    name: str
    operator: str
    inputs: tuple[Dims, ...]
    weights: tuple[tuple[int, ...], ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict, hash=False)
    dtype: str = "float32"
    bfloat: bool = False
    fast_math: bool = False

    @property
    def is_dynamic(self) -> bool:
        """Whether sizes are known only at run time."""
        return any(isinstance(size, str) for dims in self.inputs for size in dims)

    def node(self, name: str, operands: Sequence[str]) -> onnx.NodeProto:
        """The ONNX node, with a result of the same name."""
        return helper.make_node(self.operator, list(operands), [name], name=name, **self.attributes)

    def arrays(self) -> list[np.ndarray]:
        """The weights: zeros that take no memory, or bytes as training leaves them, of which few are large."""
        if self.dtype == "float32":
            return [np.broadcast_to(np.float32(0), dims) for dims in self.weights]
        rng = np.random.default_rng(0)
        return [np.clip(rng.normal(0, 30, dims).round(), -128, 127).astype(np.int8) for dims in self.weights]


def conv(
    data: Dims, outputs: int, taps: Sequence[int], *, stride: int = 1, groups: int = 1, dilation: int = 1, **more: Any
) -> Shape:
    """A convolution that is padded to as many outputs as inputs, divided by the stride."""
    rank = len(data) - 2
    assert isinstance(data[1], int)
    attributes = {
        "pads": [(tap - 1) * dilation // 2 for tap in taps] * 2,
        "strides": [stride] * rank,
        "dilations": [dilation] * rank,
        "group": groups,
    }
    name = f"conv {_sizes(data)} to {outputs}, {_sizes(taps)}"
    name += f" stride {stride}" if stride > 1 else ""
    name += f" dilation {dilation}" if dilation > 1 else ""
    name += f" groups {groups}" if groups > 1 else ""
    operator = "ConvInteger" if more.get("dtype") == "uint8" else "Conv"
    weight = (outputs, data[1] // groups, *taps)
    return Shape(_marked(name, more), operator, (data,), (weight,), attributes, **more)


def matmul(left: Dims, right: tuple[int, ...], *, weight: bool = True, **more: Any) -> Shape:
    """A product by a weight, or of two inputs."""
    name = f"product {_sizes(left)} by {_sizes(right)}{'' if weight else ' (input)'}"
    operator = "MatMulInteger" if more.get("dtype") == "uint8" else "MatMul"
    inputs, weights = ((left,), (right,)) if weight else ((left, right), ())
    return Shape(_marked(name, more), operator, inputs, weights, **more)


def gemm(left: tuple[int, ...], right: tuple[int, ...], turned: str, *, weight: bool) -> Shape:
    """A product of which factors are transposed: those of the names "a" and "b" in `turned`."""
    name = f"product {_sizes(left)} by {_sizes(right)}{'' if weight else ' (input)'} transposed {turned}"
    inputs, weights = ((left,), (right,)) if weight else ((left, right), ())
    return Shape(name, "Gemm", inputs, weights, {"transA": int("a" in turned), "transB": int("b" in turned)})


def _sizes(dims: Sequence[int | str]) -> str:
    return "x".join(map(str, dims))


def _marked(name: str, more: Mapping[str, Any]) -> str:
    marks = {"bfloat": "bfloat16", "fast_math": "fast", "dtype": "bytes"}
    return " ".join([*(mark for key, mark in marks.items() if key in more), name])


def points() -> Iterator[Shape]:
    """1x1 convolutions."""
    for (inputs, outputs), side in product(((16, 64), (64, 256), (256, 64), (512, 512)), (7, 14, 28, 56)):
        yield conv((1, inputs, side, side), outputs, (1, 1))
    for (inputs, outputs), side in product(((64, 128), (512, 1024)), (7, 14, 28, 56)):
        yield conv((1, inputs, side, side), outputs, (1, 1), stride=2)
    for side in (1, 7, 14):
        yield conv((1, 960, side, side), 160, (1, 1))
        yield conv((8, 256, side, side), 64, (1, 1))
    yield conv((1, 64, 112, 112), 24, (1, 1))
    for side, groups, stride in product((14, 28), (3, 8), (1, 2)):
        yield conv((1, 120, side, side), 120, (1, 1), stride=stride, groups=groups)
    yield conv((1, 256, 14, 14), 256, (1, 1), groups=4)


def squares() -> Iterator[Shape]:
    """Convolutions of 3x3."""
    pairs = ((16, 16), (32, 32), (32, 64), (64, 64), (128, 64), (128, 128), (256, 256), (512, 512))
    for (inputs, outputs), side, stride in product(pairs, (7, 14, 28, 56), (1, 2)):
        yield conv((1, inputs, side, side), outputs, (3, 3), stride=stride)
    for side, stride in product((112, 224), (1, 2)):
        yield conv((1, 3, side, side), 32, (3, 3), stride=stride)
    for inputs, side in ((64, 28), (256, 14), (512, 7)):
        yield conv((8, inputs, side, side), inputs, (3, 3))
    for tall, wide in ((900, 161), (160, 1000), (8, 100), (100, 8)):
        yield conv((1, 64, tall, wide), 64, (3, 3))
        yield conv((1, 128, tall, wide), 64, (3, 3))
    for outputs in (1, 3, 12):
        yield conv((1, 64, 56, 56), outputs, (3, 3))
    for inputs, side, dilation in product((64, 256), (14, 28, 56), (2, 4)):
        yield conv((1, inputs, side, side), inputs, (3, 3), dilation=dilation)
    for side in (14, 56):
        yield conv((1, 64, side, side), 64, (3, 3), fast_math=True)
        yield conv((1, 256, side, side), 256, (3, 3), fast_math=True)


def kernels() -> Iterator[Shape]:
    """Convolutions of other kernels, in groups, and of three dimensions."""
    for (inputs, outputs), side, stride in product(((32, 48), (128, 128)), (7, 14, 28, 56), (1, 2)):
        yield conv((1, inputs, side, side), outputs, (5, 5), stride=stride)
    for side, stride in ((224, 2), (112, 1)):
        yield conv((1, 3, side, side), 64, (7, 7), stride=stride)
    yield conv((1, 3, 224, 224), 96, (4, 4), stride=4)
    yield conv((1, 3, 224, 224), 768, (16, 16), stride=16)
    for inputs, side in ((64, 14), (192, 28)):
        for taps in ((7, 7), (1, 7), (7, 1), (1, 3), (3, 1)):
            yield conv((1, inputs, side, side), inputs, taps)
    for groups, side, stride in product((2, 8, 32), (7, 14, 28, 56), (1, 2)):
        yield conv((1, 256, side, side), 256, (3, 3), stride=stride, groups=groups)
    for side in (7, 14):
        yield conv((1, 32, 8, side, side), 64, (3, 3, 3))
    yield conv((1, 32, 8, 14, 14), 64, (1, 1, 1))


def depthwise() -> Iterator[Shape]:
    """Convolutions of each channel alone."""
    for side, taps, stride in product((7, 14, 28, 56, 112), (3, 5), (1, 2)):
        yield conv((1, 96, side, side), 96, (taps, taps), stride=stride, groups=96)
    for side in (7, 14, 56):
        yield conv((1, 96, side, side), 96, (7, 7), groups=96)
    for side, stride in product((15, 57), (3, 4)):
        yield conv((1, 32, side, side), 32, (3, 3), stride=stride, groups=32)
    for side in (5, 14, 56):
        yield conv((1, 32, side, side), 32, (3, 3), dilation=2, groups=32)
        yield conv((1, 3, side, side), 3, (3, 3), groups=3)
    yield conv((1, 32, 28, 28), 64, (3, 3), groups=32)
    yield conv((8, 32, 28, 28), 32, (3, 3), groups=32)
    yield conv((1, 64, 8, 14, 14), 64, (3, 3, 3), groups=64)
    yield conv((1, 32, 28, 28), 32, (31, 31), groups=32)
    yield conv((1, 2, 512, 512), 2, (11, 11), groups=2)


def signals() -> Iterator[Shape]:
    """Convolutions of one dimension."""
    for channels, length, taps in product((64, 256, 512), (50, 1000), (1, 3, 7)):
        yield conv((1, channels, length), channels, (taps,))
    for channels, length in ((1, 16000), (128, 3000)):
        yield conv((1, channels, length), 128, (10,), stride=5)
        yield conv((1, channels, length), 128, (3,), stride=2)
    for length, dilation in product((50, 1000), (2, 9)):
        yield conv((1, 64, length), 64, (3,), dilation=dilation)
    for length, taps in product((50, 1000), (3, 31)):
        yield conv((1, 256, length), 256, (taps,), groups=256)
    yield conv((8, 128, 100), 128, (3,))
    yield conv((1, 288, 1000), 288, (3,))
    yield conv((1, 768, 200), 768, (128,), groups=16)


def products() -> Iterator[Shape]:
    """Matrix products."""
    for rows, (terms, columns) in product((1, 2, 4, 16, 64, 197, 1024), ((64, 64), (256, 1000), (768, 3072))):
        yield matmul((rows, terms), (terms, columns))
    for rows, terms in product((8, 72, 300), (32, 64)):
        yield matmul((12, rows, terms), (12, terms, rows), weight=False)
        yield matmul((12, rows, rows), (12, rows, terms), weight=False)
    for rows in (1, 16, 128):
        for turned, weight in product(("a", "b", "ab"), (False, True)):
            left, right = ((256, rows) if "a" in turned else (rows, 256)), ((96, 256) if "b" in turned else (256, 96))
            yield gemm(left, right, turned, weight=weight)
    for columns in (1, 3, 17, 24, 1001):
        yield matmul((100, 128), (128, columns))
    yield matmul((8, 50, 512), (512, 512))
    yield matmul((128, 4096), (4096, 1024), weight=False)


def integers() -> Iterator[Shape]:
    """Products of 8-bit integers."""
    for rows, (terms, columns) in product((1, 3, 16, 197), ((64, 64), (256, 1000), (768, 768))):
        yield matmul((rows, terms), (terms, columns), dtype="uint8")
    for (inputs, outputs), side, taps in product(((16, 64), (128, 128)), (7, 28), (1, 3)):
        for stride in (1, 2):
            yield conv((1, inputs, side, side), outputs, (taps, taps), stride=stride, dtype="uint8")
    yield conv((1, 3, 112, 112), 32, (3, 3), stride=2, dtype="uint8")
    yield conv((1, 64, 28, 28), 64, (3, 3), groups=4, dtype="uint8")
    for side, stride in product((7, 28), (1, 2)):
        yield conv((1, 96, side, side), 96, (3, 3), stride=stride, groups=96, dtype="uint8")


def pairs() -> Iterator[Shape]:
    """Products whose factors are rounded to bfloat16."""
    for (inputs, outputs), side, taps, stride in product(((3, 32), (64, 64), (256, 256)), (7, 28), (1, 3), (1, 2)):
        yield conv((1, inputs, side, side), outputs, (taps, taps), stride=stride, bfloat=True)
    for rows, (terms, columns) in product((1, 16, 197), ((4, 64), (256, 1000), (768, 768))):
        yield matmul((rows, terms), (terms, columns), bfloat=True)
    yield matmul((12, 197, 64), (12, 64, 197), weight=False, bfloat=True)
    yield conv((1, 64, 28, 28), 64, (3, 3), groups=64, bfloat=True)
    yield conv((1, 64, 28, 28), 64, (3, 3), groups=4, bfloat=True)
    yield conv((1, 64, 1000), 64, (3,), bfloat=True)


def dynamic() -> Iterator[Shape]:
    """Shapes with sizes that are known only at run time."""
    for taps, stride in product((1, 3, 5), (1, 2)):
        yield conv((1, 64, "h", "w"), 64, (taps, taps), stride=stride)
    yield conv((1, 3, "h", "w"), 32, (3, 3), stride=2)
    yield conv((1, 3, "h", "w"), 3, (3, 3))
    yield conv((1, 256, "h", "w"), 256, (3, 3))
    yield conv((1, 64, "h", "w"), 64, (3, 3), dilation=2)
    yield conv((1, 64, "h", "w"), 64, (3, 3), groups=4)
    for taps, stride in product((3, 5), (1, 2)):
        yield conv((1, 96, "h", "w"), 96, (taps, taps), stride=stride, groups=96)
    for side, taps in product((7, 28), (1, 3)):
        yield conv(("n", 64, side, side), 64, (taps, taps))
    yield conv(("n", 96, 28, 28), 96, (3, 3), groups=96)
    for taps, stride in ((1, 1), (3, 1), (10, 5)):
        yield conv((1, 64, "w"), 64, (taps,), stride=stride)
    yield conv((1, 64, "w"), 64, (31,), groups=64)
    for terms, columns in ((64, 64), (256, 1000), (768, 768)):
        yield matmul(("n", terms), (terms, columns))
    yield matmul((1, "n", 256), (256, 256))
    for terms, columns in ((64, 64), (768, 768)):
        yield matmul(("n", terms), (terms, columns), dtype="uint8")
    yield conv((1, 64, "h", "w"), 64, (3, 3), dtype="uint8")


FAMILIES = (points, squares, kernels, depthwise, signals, products, integers, pairs, dynamic)


def every_shape() -> list[Shape]:
    """All shapes of the table, in its order."""
    return [shape for family in FAMILIES for shape in family()]


def some_shapes(step: int) -> list[Shape]:
    """Every so many of each family, so that all are among them."""
    return [shape for family in FAMILIES for shape in list(family())[::step]]

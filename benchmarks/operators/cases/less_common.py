"""Operators of less common kinds: other ranks, groups, axes and types than those of common image networks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.operators.cases.less_common_models import (
    batch_normal,
    cast,
    channels_normal,
    clipped,
    concat,
    dequantize,
    dynamic,
    halves,
    instance,
    integer_product,
    integers,
    linear_conv,
    normal,
    one_hot,
    picked,
    quantize,
    reduced_integers,
    resized,
    reversed_sequence,
    round_trip,
    top,
    where,
    with_updates,
)
from benchmarks.operators.cases.models import Case, binary, conv, image, matmul, reduce, transposed_as, unary


def less_common() -> Iterator[Case]:
    """Cases, by kind."""
    yield from _convolutions()
    yield from _windows()
    yield from _products()
    yield from _axes()
    yield from _elements()
    yield from _indexed()
    yield from _quantised()


def _convolutions() -> Iterator[Case]:
    for label, shape, out, kernel, extra in (
        ("groups 3 48@31", image(48, 31), 48, 3, {"group": 3}),
        ("groups 5 35->70@27", image(35, 27), 70, 3, {"group": 5}),
        ("groups 8 s2 128@28", image(128, 28), 128, 3, {"group": 8, "strides": [2, 2]}),
        ("groups 32 s2 256@56", image(256, 56), 256, 3, {"group": 32, "strides": [2, 2]}),
        ("groups 3 1x1 240@28", image(240, 28), 240, 1, {"group": 3}),
        ("groups 64 of 1->2, 64->128@28", image(64, 28), 128, 3, {"group": 64}),
        ("depthwise 5x5 s2 240@28", image(240, 28), 240, 5, {"group": 240, "strides": [2, 2]}),
        ("depthwise 5x5 s2 33@41", image(33, 41), 33, 5, {"group": 33, "strides": [2, 2]}),
        ("depthwise 7x7 96@56", image(96, 56), 96, 7, {"group": 96}),
        ("depthwise 9x9 64@28", image(64, 28), 64, 9, {"group": 64}),
        ("depthwise 3x3 d2 64@40", image(64, 40), 64, 3, {"group": 64, "dilations": [2, 2]}),
        ("depthwise 1x11 64@40", image(64, 40), 64, (1, 11), {"group": 64}),
        ("depthwise 11x1 64@40", image(64, 40), 64, (11, 1), {"group": 64}),
        ("dilated by 3 5x5 24@45", image(24, 45), 24, 5, {"dilations": [3, 3]}),
        ("dilated by 2 3x3 256@14", image(256, 14), 256, 3, {"dilations": [2, 2]}),
        ("dilated by 12 3x3 128@33", image(128, 33), 64, 3, {"dilations": [12, 12]}),
        ("5x5 48@27", image(48, 27), 64, 5, {}),
        ("7x7 32@30", image(32, 30), 32, 7, {}),
        ("2x2 s2 96->192@28", image(96, 28), 192, 2, {"strides": [2, 2], "pads": [0] * 4}),
        ("4x4 s4 3->96@224", image(3, 224), 96, 4, {"strides": [4, 4], "pads": [0] * 4}),
        ("4x4 s2 32->64@64", image(32, 64), 64, 4, {"strides": [2, 2], "pads": [1] * 4}),
        ("1x3 s1x2 64@32x100", (1, 64, 32, 100), 64, (1, 3), {"strides": [1, 2]}),
        ("3x3 s2x1 64@32x100", (1, 64, 32, 100), 64, (3, 3), {"strides": [2, 1]}),
        ("3x3 batch 8 16@20", image(16, 20, 8), 24, 3, {}),
        ("3x3 without padding 32@30", image(32, 30), 48, 3, {"pads": [0] * 4}),
        ("1x1 batch 4 64@14", image(64, 14, 4), 128, 1, {}),
        ("1x1 256->10@1", image(256, 1), 10, 1, {}),
        ("1x1 s2 64->128@57", image(64, 57), 128, 1, {"strides": [2, 2]}),
        ("3x3 256->1@40", image(256, 40), 1, 3, {}),
        ("1x1 64->1@160", image(64, 160), 1, 1, {}),
        ("3x3 32->3@128", image(32, 128), 3, 3, {}),
        ("1d k7 1->64 4000", (1, 1, 4000), 64, (7,), {}),
        ("1d k10 s5 1->128 16000", (1, 1, 16000), 128, (10,), {"strides": [5], "pads": [0, 0]}),
        ("1d k3 d4 64 777", (1, 64, 777), 64, (3,), {"dilations": [4]}),
        ("1d k5 33->47 101", (1, 33, 101), 47, (5,), {}),
        ("1d depthwise k3 192 197", (1, 192, 197), 192, (3,), {"group": 192}),
        ("1d depthwise k4 512 64", (1, 512, 64), 512, (4,), {"group": 512, "pads": [3, 0]}),
        ("1d groups 16 k128 768 100", (1, 768, 100), 768, (128,), {"group": 16, "pads": [64, 63]}),
        ("1d k64 128 60", (1, 128, 60), 128, (64,), {"pads": [32, 31]}),
        ("3d 1x1x1 32->64@8x28x28", (1, 32, 8, 28, 28), 64, (1, 1, 1), {}),
        ("3d 1x3x3 32->32@8x28x28", (1, 32, 8, 28, 28), 32, (1, 3, 3), {}),
        ("3d 3x1x1 64@8x14x14", (1, 64, 8, 14, 14), 64, (3, 1, 1), {}),
        ("3d 3x3x3 7->9@9x11x13", (1, 7, 9, 11, 13), 9, (3, 3, 3), {}),
        ("3d depthwise 3x3x3 54@8x20x20", (1, 54, 8, 20, 20), 54, (3, 3, 3), {"group": 54}),
    ):
        yield Case("conv other", label, conv(shape, out, kernel, **extra))
    for label, shape, weight, extra in (
        ("groups 4 3x3 s2 64@20", image(64, 20), (64, 8, 3, 3), {"group": 4, "strides": [2, 2], "pads": [1] * 4}),
        ("depthwise 4x4 s2 32@24", image(32, 24), (32, 1, 4, 4), {"group": 32, "strides": [2, 2], "pads": [1] * 4}),
        ("dilated 3x3 32@20", image(32, 20), (32, 24, 3, 3), {"dilations": [2, 2]}),
        ("2x2 s2 17->9@31", image(17, 31), (17, 9, 2, 2), {"strides": [2, 2]}),
        ("3x3 s3 32->16@25", image(32, 25), (32, 16, 3, 3), {"strides": [3, 3]}),
        ("5x5 s2 64->32@16", image(64, 16), (64, 32, 5, 5), {"strides": [2, 2], "pads": [2] * 4}),
        ("4x4 100->256@1", image(100, 1), (100, 256, 4, 4), {}),
        ("1d k4 s2 64->32 300", (1, 64, 300), (64, 32, 4), {"strides": [2], "pads": [1, 1]}),
        ("1d k16 s8 128->64 100", (1, 128, 100), (128, 64, 16), {"strides": [8], "pads": [4, 4]}),
        ("3d 2x2x2 s2 32->16@8", (1, 32, 8, 8, 8), (32, 16, 2, 2, 2), {"strides": [2, 2, 2]}),
    ):
        yield Case("conv transposed", label, transposed_as(shape, weight, **extra))


def _windows() -> Iterator[Case]:
    for kind in ("MaxPool", "AveragePool"):
        for label, shape, extra in (
            ("1d k3 s2 64 1001", (1, 64, 1001), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
            ("3d 3x3x3 s2 16@20", (1, 16, 20, 20, 20), {"kernel_shape": [3] * 3, "strides": [2] * 3, "pads": [1] * 6}),
            ("1x2 64@16x50", (1, 64, 16, 50), {"kernel_shape": [1, 2], "strides": [1, 2]}),
            ("2x1 64@32x50", (1, 64, 32, 50), {"kernel_shape": [2, 1], "strides": [2, 1]}),
            ("3x3 s2 ceil 64@55", image(64, 55), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
        ):
            yield Case("pooling", f"{kind} {label}", unary(shape, kind, **extra))
    yield Case("pooling", "LpPool 3x3 s2 32@40", unary(image(32, 40), "LpPool", kernel_shape=[3, 3], strides=[2, 2]))
    yield Case(
        "pooling", "MaxPool 2x2 dilated 32@40", unary(image(32, 40), "MaxPool", kernel_shape=[2, 2], dilations=[2, 2])
    )
    for mode, scale, shape in (
        ("linear", (1, 1, 2), (1, 64, 300)),
        ("nearest", (1, 1, 2), (1, 64, 300)),
        ("linear", (1, 1, 2, 2, 2), (1, 8, 16, 16, 16)),
        ("nearest", (1, 1, 2, 2, 2), (1, 8, 16, 16, 16)),
        ("linear", (1, 1, 0.4, 0.7), image(17, 61)),
        ("linear", (1, 1, 4, 4), image(19, 32)),
        ("cubic", (1, 1, 2, 2), image(19, 33)),
        ("nearest", (1, 1, 1, 2), image(32, 40)),
        ("linear", (1, 1, 8, 8), image(2, 65)),
    ):
        label = f"{mode} {'x'.join(map(str, scale[2:]))} {'x'.join(map(str, shape))}"
        yield Case("resize", label, resized(shape, mode, scale))
    aligned = {"coordinate_transformation_mode": "align_corners"}
    yield Case("resize", "linear aligned 2x 64@40", resized(image(64, 40), "linear", (1, 1, 2, 2), **aligned))


def _products() -> Iterator[Case]:
    for rows, depth, columns in (
        (1, 77, 512), (77, 512, 77), (2, 768, 768), (5, 129, 257), (16, 4096, 64), (300, 3, 64), (1000, 64, 2),
        (50, 64, 50257), (17, 17, 17), (1, 4096, 1000), (64, 64, 64), (8400, 16, 80), (3, 300, 1),
    ):  # fmt: skip
        yield Case("matmul", f"{rows}x{depth}x{columns}", matmul((rows, depth), columns))
    for a, b in (
        ((16, 7, 9), (16, 9, 11)),
        ((100, 1, 64), (100, 64, 30)),
        ((64, 32, 32), (64, 32, 32)),
        ((8, 1, 512), (8, 512, 64)),
        ((33, 65), (65, 29)),
        ((1, 8, 77, 64), (1, 8, 64, 77)),
        ((512, 512), (512,)),
        ((512,), (512, 300)),
        ((4, 197, 64), (4, 64, 197)),
        ((6, 10, 1000), (6, 1000, 10)),
    ):
        yield Case("batched", f"{'x'.join(map(str, a))} by {'x'.join(map(str, b))}", binary(a, b, "MatMul"))
    for a, b, equation in (
        ((2, 8, 64, 64), (2, 8, 64, 32), "bhij,bhjd->bhid"),
        ((4, 50, 8, 32), (4, 50, 8, 32), "bqhd,bkhd->bhqk"),
        ((1, 16, 20, 20), (16, 24), "bchw,cd->bdhw"),
        ((64, 100), (64, 100), "ij,ij->i"),
        ((100,), (200,), "i,j->ij"),
        ((3, 40, 50), (3, 50), "bij,bj->bi"),
    ):
        label = f"einsum {equation} {'x'.join(map(str, a))}"
        yield Case("batched", label, binary(a, b, "Einsum", equation=equation))
    for transposes in ({"transA": 1}, {"transB": 1}, {"transA": 1, "transB": 1}):
        label = f"Gemm of two inputs {' '.join(transposes)} 100"
        yield Case("batched", label, binary((100, 100), (100, 100), "Gemm", **transposes))


def _axes() -> Iterator[Case]:
    for shape, axes in (
        ((8, 64, 28, 28), [2, 3]), ((8, 64, 28, 28), [0, 2, 3]), ((8, 64, 28, 28), [1]), ((4, 31, 17, 13), [1, 3]),
        ((5, 7, 301), [0, 1, 2]), ((100, 3), [1]), ((3, 10000), [1]), ((10000, 3), [0]), ((1, 32, 64, 64), [1]),
        ((16, 5, 129), [1]),
    ):  # fmt: skip
        for kind in ("ReduceMean", "ReduceMax", "ReduceL2"):
            yield Case("reduction", f"{kind} {'x'.join(map(str, shape))} {axes}", reduce(shape, kind, axes))
    for kind in ("ReduceL1", "ReduceMin", "ReduceProd", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp"):
        yield Case("reduction", f"{kind} 33x65x40 [1]", reduce((33, 65, 40), kind, [1]))
    for shape, axis in (((4, 21, 65, 65), 1), ((2, 10, 33), 1), ((100, 80), 1), ((1, 50257), 1)):
        for kind in ("ArgMax", "ArgMin"):
            yield Case("reduction", f"{kind} {'x'.join(map(str, shape))} {axis}", unary(shape, kind, axis=axis))
    for kind in ("Softmax", "LogSoftmax"):
        for shape, axis in (((1, 19, 64, 64), 1), ((4, 50, 7), 1), ((5, 3, 300), 0), ((2, 3, 40000), 2), ((500, 2), 1)):
            yield Case("softmax", f"{kind} axis {axis}, {'x'.join(map(str, shape))}", unary(shape, kind, axis=axis))
    for shape, axis in ((image(32, 28), 1), ((2, 60, 37), 1)):
        yield Case("normalisation", f"layer from axis {axis} {'x'.join(map(str, shape))}", normal(shape, axis))
    yield Case("normalisation", "channels 96@28 by Transpose", channels_normal(image(96, 28)))
    yield Case("normalisation", "instance 1d 32x500", instance((1, 32, 500)))
    yield Case("normalisation", "instance 3d 16@12", instance((1, 16, 12, 12, 12)))
    yield Case("normalisation", "batch 64@40", batch_normal(image(64, 40)))
    yield Case("normalisation", "L2 of channels 256@20", unary(image(256, 20), "LpNormalization", axis=1, p=2))
    for shape, axis in (((4, 50, 60), 1), ((1, 3, 1000), 2), ((300, 40), 0)):
        yield Case("along an axis", f"TopK 3 of {'x'.join(map(str, shape))} axis {axis}", top(shape, axis, 3))
    for axis in range(4):
        yield Case("concat", f"3 x 6x10x14x18 axis {axis}", concat((6, 10, 14, 18), axis, 3))
        yield Case("movement", f"Split 6x10x14x18 axis {axis}", halves((6, 10, 14, 18), axis))
    yield Case("concat", "8 x 1x16x40x40 axis 1", concat((1, 16, 40, 40), 1, 8))
    yield Case("concat", "4 x 300x1 axis 1", concat((300, 1), 1, 4))


def _elements() -> Iterator[Case]:
    for shape in ((1, 32, 60, 60), (77, 31)):
        label = "x".join(map(str, shape))
        yield Case("elementwise", f"Clip, Min and Max {label}", clipped(shape))
        for kind in ("Log", "Sqrt", "Reciprocal", "Cos", "Atan", "Sinh", "Asin", "Celu", "ThresholdedRelu", "Sign",
                     "Abs", "Ceil", "IsNaN", "Tan", "Acos", "Cosh", "Asinh", "Neg"):  # fmt: skip
            yield Case("activation", f"{kind} {label}", unary(shape, kind))
        for kind in ("Mod", "Less", "Equal", "Max", "Sub", "Div"):
            extra = {"fmod": 1} if kind == "Mod" else {}
            yield Case("elementwise", f"{kind} {label}", binary(shape, shape, kind, **extra))
    yield Case("elementwise", "Where by rows 128x300", where((128, 300), (128, 1), (300,)))
    yield Case("elementwise", "Where by mask 8x64x64", where((1, 64, 64), (8, 64, 64), (1,)))
    for a, b in (
        ((1, 16, 1, 40), (8, 1, 30, 1)),
        ((64, 1), (64, 1000)),
        ((2, 3, 50, 50), (3, 1, 50)),
        ((1, 50, 50, 32), (32,)),
        ((10, 1, 77), (10, 13, 1)),
    ):
        yield Case("elementwise", f"Mul {'x'.join(map(str, a))} {'x'.join(map(str, b))}", binary(a, b, "Mul"))
    for dtype in ("int32", "int64", "uint8"):
        for kind in ("Add", "Mul", "Div", "Greater", "Max"):
            if dtype != "uint8" or kind in ("Add", "Greater", "Max"):
                yield Case("integers", f"{kind} {dtype} 64x500", integers((64, 500), kind, dtype))
        for to in ("float32", "int64", "bool"):
            if to != dtype:
                yield Case("integers", f"Cast {dtype} to {to} 64x500", cast((64, 500), dtype, to))
    yield Case("integers", "ReduceSum int64 64x500", reduced_integers((64, 500), "int64"))
    yield Case("integers", "ReduceMax int32 64x500", reduced_integers((64, 500), "int32", "ReduceMax"))
    yield Case("elementwise", "Cast to uint8 and back 32@60", round_trip(image(32, 60)))


def _indexed() -> Iterator[Case]:
    random = np.random.default_rng(1)
    rows = random.permutation(500)[:200].reshape(-1, 1)
    yield Case("movement", "ScatterND 500x64", with_updates((500, 64), "ScatterND", rows, (200, 64)))
    spots = np.stack([random.integers(0, 40, 300), random.permutation(300)], 1)
    yield Case("movement", "ScatterND single 40x300", with_updates((40, 300), "ScatterND", spots, (300,)))
    yield Case("movement", "ScatterND add 40x300", with_updates((40, 300), "ScatterND", spots, (300,), reduction="add"))
    within = np.argsort(random.random((60, 80)), 0)[:20]
    yield Case("movement", "ScatterElements 60x80 axis 0", with_updates((60, 80), "ScatterElements", within, (20, 80)))
    across = np.argsort(random.random((60, 80)), 1)[:, :20]
    scatter = with_updates((60, 80), "ScatterElements", across, (60, 20), axis=1)
    yield Case("movement", "ScatterElements 60x80 axis 1", scatter)
    yield Case("movement", "GatherElements 60x80 axis 1", picked((60, 80), "GatherElements", across, axis=1))
    yield Case("movement", "GatherElements 60x80 axis 0", picked((60, 80), "GatherElements", within, axis=0))
    yield Case("movement", "GatherND 500x64", picked((500, 64), "GatherND", rows))
    yield Case("movement", "GatherND single 40x300", picked((40, 300), "GatherND", spots))
    table = random.integers(0, 1000, (4, 128))
    yield Case("movement", "Gather embedding 1000x384", picked((1000, 384), "Gather", table))
    yield Case("movement", "Gather 30x1000 axis 1", picked((30, 1000), "Gather", random.integers(0, 1000, 300), axis=1))
    yield Case("movement", "Trilu 8x128x128", unary((8, 128, 128), "Trilu"))
    yield Case("movement", "OneHot 500 of 50", one_hot(500, 50))
    yield Case("movement", "Pad reflect 1d 64x300", unary((1, 64, 300), "Pad", [0, 0, 5, 0, 0, 5], mode="reflect"))
    yield Case("movement", "Slice last axis by 2 64x999", unary((64, 999), "Slice", [1], [999], [1], [2]))
    yield Case("movement", "ReverseSequence 20x4x33", reversed_sequence((20, 4, 33)))
    for shape, perm in (
        ((4, 8, 50, 32), (0, 2, 1, 3)), ((1, 3, 224, 224), (0, 2, 3, 1)), ((1, 224, 224, 3), (0, 3, 1, 2)),
        ((8, 77, 64), (0, 2, 1)), ((1, 2, 58, 28, 28), (0, 2, 1, 3, 4)), ((50, 1, 256), (1, 0, 2)),
        ((5, 6, 7, 8), (1, 3, 0, 2)), ((1, 4, 4, 16, 30, 30), (0, 3, 4, 1, 5, 2)), ((8, 8, 64, 7, 7), (1, 2, 3, 0, 4)),
        ((1000, 3), (1, 0)), ((3, 1000), (1, 0)), ((8, 7, 8, 7, 96), (0, 2, 1, 3, 4)),
    ):  # fmt: skip
        yield Case("transpose", f"{'x'.join(map(str, shape))} {perm}", unary(shape, "Transpose", perm=perm))


def _quantised() -> Iterator[Case]:
    for rows, depth, columns in (
        (64, 256, 512), (1, 768, 768), (33, 77, 91), (197, 768, 3072), (1024, 1024, 1024), (49, 2048, 512),
        (7, 130, 65), (256, 96, 256), (2, 1024, 1024), (3136, 16, 32), (100, 70, 17),
    ):  # fmt: skip
        yield Case("quantised", f"MatMulInteger {rows}x{depth}x{columns}", integer_product(rows, depth, columns))
    for channels, size, out, kernel in (
        (32, 28, 64, 3), (64, 28, 128, 1), (19, 21, 23, 3), (64, 56, 256, 1), (128, 28, 128, 3),
        (512, 7, 512, 3), (3, 224, 64, 7), (48, 14, 96, 5), (1024, 14, 256, 1), (24, 56, 144, 1),
    ):  # fmt: skip
        yield Case(
            "quantised",
            f"QLinearConv {kernel}x{kernel} {channels}->{out}@{size}",
            linear_conv(channels, size, out, kernel),
        )
    for shape in (image(64, 40), (33, 77)):
        label = "x".join(map(str, shape))
        yield Case("quantised", f"QuantizeLinear {label}", quantize(shape))
        yield Case("quantised", f"DequantizeLinear {label}", dequantize(shape))
        yield Case("quantised", f"DynamicQuantizeLinear {label}", dynamic(shape))

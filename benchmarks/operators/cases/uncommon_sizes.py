"""Operators other than convolutions at sizes drawn by chance: odd, narrow, long, and large beside caches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.operators.cases.models import (
    Case,
    Shape,
    attention,
    batched,
    binary,
    conv,
    image,
    layer_norm,
    matmul,
    recurrent,
    reduce,
    resize,
    unary,
)


def uncommon_sizes() -> Iterator[Case]:
    """Cases, by kind."""
    yield from _products()
    yield from _rows()
    yield from _windows()
    yield from _elements()


def _named(shape: Shape) -> str:
    return "x".join(map(str, shape))


def _products() -> Iterator[Case]:
    for channels, size, kernel in ((32, 30, 13), (64, 28, 11), (16, 56, 15), (64, 32, 31), (128, 20, 7), (48, 21, 13)):
        build = conv(image(channels, size), channels, kernel, group=channels)
        yield Case("depthwise", f"{kernel}x{kernel} s1 {channels}@{size}", build)
    for rows, depth, columns in (
        (3, 77, 500),
        (7, 768, 768),
        (33, 256, 256),
        (61, 61, 61),
        (150, 64, 500),
        (24, 2048, 512),
        (500, 16, 16),
        (1000, 8, 1000),
        (9, 4096, 9),
        (200, 300, 7),
        (64, 1024, 64),
        (128, 2048, 40),
        (31, 512, 31),
        (20, 4096, 256),
        (40, 1000, 300),
    ):
        yield Case("matmul", f"{rows}x{depth}x{columns}", matmul((rows, depth), columns))
    for a, b in (
        ((8, 1, 64), (8, 64, 200)),
        ((16, 33, 33), (16, 33, 33)),
        ((4, 200, 8), (4, 8, 200)),
        ((12, 77, 64), (12, 64, 77)),
        ((2, 500, 30), (2, 30, 500)),
        ((64, 9, 9), (64, 9, 9)),
        ((1, 300, 300), (1, 300, 300)),
        ((6, 40, 1), (6, 1, 40)),
    ):
        yield Case("batched", f"{_named(a)} by {_named(b)}", batched(a, b))
    for heads, rows, width in ((4, 50, 32), (12, 300, 64), (1, 100, 128), (16, 20, 48), (1, 49, 256), (3, 77, 64)):
        yield Case("attention", f"{heads}x{rows}x{width}", attention(heads, rows, width))
    for kind, gates in (("LSTM", 4), ("GRU", 3)):
        for steps, width, hidden in ((10, 24, 24), (50, 80, 160), (5, 256, 512)):
            build = recurrent(kind, gates, steps, width, hidden)
            yield Case("recurrent", f"{kind} {steps}x{width}->{hidden}", build)


def _rows() -> Iterator[Case]:
    for shape, axis in (
        ((4, 61, 61), -1),
        ((2, 150, 33), 1),
        ((1, 21, 65, 65), 1),
        ((7, 5000), -1),
        ((50, 7), -1),
        ((3, 10, 200), 0),
        ((1000, 16), 1),
    ):
        for kind in ("Softmax", "LogSoftmax"):
            yield Case("softmax", f"{kind} {_named(shape)} axis {axis}", unary(shape, kind, axis=axis))
    for shape in ((77, 96), (2, 50, 1000), (1, 300, 48)):
        yield Case("layer norm", _named(shape), layer_norm(shape))
    for shape, axes in (
        ((3, 88, 17, 17), [2, 3]),
        ((61, 777), [1]),
        ((300, 50), [0]),
        ((4, 10, 33, 60), [1, 3]),
        ((2, 500, 9), [1]),
        ((6, 6, 6, 6, 6), [0, 2, 4]),
    ):
        for kind in ("ReduceSum", "ReduceMax", "ReduceMean", "ReduceL2", "ReduceProd", "ReduceLogSumExp"):
            yield Case("reduction", f"{kind} {_named(shape)} {axes}", reduce(shape, kind, axes))
    for shape, order in (
        ((3, 61, 90), (0, 2, 1)),
        ((2, 24, 15, 31), (0, 2, 3, 1)),
        ((1, 35, 35, 24), (0, 3, 1, 2)),
        ((500, 33), (1, 0)),
        ((8, 16, 10, 64), (0, 2, 1, 3)),
        ((4, 3, 2, 50, 20), (0, 3, 1, 4, 2)),
        ((7, 7, 7, 7), (3, 2, 1, 0)),
        ((2, 12, 64, 50), (0, 1, 3, 2)),
        ((1, 6, 9, 100, 100), (0, 2, 3, 1, 4)),
    ):
        yield Case("transpose", f"{_named(shape)} {order}", unary(shape, "Transpose", perm=order))


def _windows() -> Iterator[Case]:
    for mode, factor, channels, size in (
        ("nearest", 2.0, 24, 31),
        ("linear", 2.0, 36, 21),
        ("linear", 3.0, 16, 20),
        ("cubic", 1.5, 8, 30),
        ("linear", 0.4, 24, 50),
        ("nearest", 0.5, 64, 29),
        ("linear", 4.0, 19, 16),
    ):
        yield Case("resize", f"{mode} {factor}x {channels}@{size}", resize(image(channels, size), mode, factor))
    for kind, shape, kernel, stride, pad in (
        ("MaxPool", image(56, 31), 3, 2, 1),
        ("MaxPool", image(200, 11), 2, 2, 0),
        ("AveragePool", image(36, 27), 3, 2, 1),
        ("MaxPool", image(24, 41), 7, 1, 3),
        ("AveragePool", image(112, 14), 2, 2, 0),
        ("AveragePool", image(512, 28), 2, 2, 0),
        ("AveragePool", image(90, 18), 3, 3, 0),
        ("AveragePool", image(16, 64), 8, 8, 0),
        ("MaxPool", image(32, 50), 13, 1, 6),
        ("AveragePool", (2, 48, 19, 19), 5, 1, 2),
    ):
        build = unary(shape, kind, kernel_shape=[kernel, kernel], strides=[stride, stride], pads=[pad] * 4)
        yield Case("pooling", f"{kind} {_named(shape)} {kernel} s{stride}", build)


def _elements() -> Iterator[Case]:
    for shape in ((7, 777), (1, 50, 35, 35), (2, 100, 100, 100)):
        for kind in (
            "Sigmoid",
            "Tanh",
            "Gelu",
            "Exp",
            "Sqrt",
            "HardSwish",
            "Softplus",
            "Erf",
            "Log",
            "Sin",
            "Mish",
            "Round",
            "Reciprocal",
        ):
            yield Case("activation", f"{kind} {_named(shape)}", unary(shape, kind))
    for a, b in (
        ((5, 31, 90), (90,)),
        ((2, 36, 25, 25), (36, 1, 1)),
        ((300, 1), (1, 200)),
        ((9, 9, 99), (9, 9, 99)),
        ((4, 1, 50, 1), (1, 6, 1, 40)),
        ((1, 72, 50, 50), (1, 72, 50, 50)),
        ((1000,), (1,)),
    ):
        for kind in ("Add", "Div", "Pow", "Max", "PRelu"):
            if kind == "PRelu" and np.broadcast_shapes(a, b) != a:
                continue  # slopes do not extend the input
            yield Case("elementwise", f"{kind} {_named(a)} {_named(b)}", binary(a, b, kind))

"""Operators of the suite's kinds at sizes that it lacked when kernels were written: odd, narrow, long, in groups."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.operators.cases.models import (
    Case,
    attention,
    batched,
    binary,
    conv,
    image,
    largest,
    layer_norm,
    matmul,
    parted,
    recurrent,
    reduce,
    resize,
    transposed_as,
    unary,
)


def other_sizes() -> Iterator[Case]:
    """Cases, by kind."""
    yield from _convolutions()
    yield from _others()


def _convolutions() -> Iterator[Case]:
    for label, shape, out, kernel, extra in (
        ("3x3 51->64@17", image(51, 17), 64, 3, {}),
        ("3x3 18->18@64", image(18, 64), 18, 3, {}),
        ("3x3 144->144@8", image(144, 8), 144, 3, {}),
        ("3x3 s2 256->256@6", image(256, 6), 256, 3, {"strides": [2, 2]}),
        ("3x3 s2 512->256@5", image(512, 5), 256, 3, {"strides": [2, 2]}),
        ("3x3 s2 18->36@64", image(18, 64), 36, 3, {"strides": [2, 2]}),
        ("3x3 s3 64->64@31", image(64, 31), 64, 3, {"strides": [3, 3]}),
        ("3x3 s3 100->72@19", image(100, 19), 72, 3, {"strides": [3, 3]}),
        ("3x3 s4 64->64@52", image(64, 52), 64, 3, {"strides": [4, 4]}),
        ("3x3 s2 384->384@7", image(384, 7), 384, 3, {"strides": [2, 2]}),
        ("3x3 s2 128->256@9", image(128, 9), 256, 3, {"strides": [2, 2]}),
        ("3x3 256->256@5", image(256, 5), 256, 3, {}),
        ("5x5 s4 3->32@100", image(3, 100), 32, 5, {"strides": [4, 4]}),
        ("5x5 s3 16->32@40", image(16, 40), 32, 5, {"strides": [3, 3]}),
        ("5x5 72->72@13", image(72, 13), 72, 5, {}),
        ("4x4 s2 64->128@27", image(64, 27), 128, 4, {"strides": [2, 2], "pads": [1] * 4}),
        ("depthwise 11x11 48@19", image(48, 19), 48, 11, {"group": 48}),
        ("1d k2 d4 72 500", (1, 72, 500), 72, (2,), {"dilations": [4], "pads": [4, 0]}),
        ("3d 3x3x3 40@9", (1, 40, 9, 9, 9), 40, (3, 3, 3), {}),
        ("1x1 832->256@7", image(832, 7), 256, 1, {}),
        ("1x1 s2 512->1024@14", image(512, 14), 1024, 1, {"strides": [2, 2]}),
        ("1d groups 4 1x1 768 128", (1, 768, 128), 768, (1,), {"group": 4}),
        ("1d groups 4 1x1 3072->768 128", (1, 3072, 128), 768, (1,), {"group": 4}),
        ("1d groups 2 1x1 100->60 77", (1, 100, 77), 60, (1,), {"group": 2}),
        ("groups 8 1x1 240->480@20", image(240, 20), 480, 1, {"group": 8}),
        ("groups 2 5x5 48->128@27", image(48, 27), 128, 5, {"group": 2}),
        ("dilated by 2 3x3 48@37", image(48, 37), 48, 3, {"dilations": [2, 2]}),
        ("dilated by 6 3x3 256->64@28", image(256, 28), 64, 3, {"dilations": [6, 6]}),
        ("1x3 384@8", image(384, 8), 384, (1, 3), {}),
        ("1x9 32@20x200", (1, 32, 20, 200), 32, (1, 9), {}),
        ("7x7 s4 3->32@128", image(3, 128), 32, 7, {"strides": [4, 4]}),
        ("8x8 s8 32->64@56", image(32, 56), 64, 8, {"strides": [8, 8], "pads": [0] * 4}),
        ("14x14 s14 3->384@224", image(3, 224), 384, 14, {"strides": [14, 14], "pads": [0] * 4}),
        ("11x11 s4 3->96@227", image(3, 227), 96, 11, {"strides": [4, 4], "pads": [0] * 4}),
        ("depthwise 7x7 768@32", image(768, 32), 768, 7, {"group": 768}),
        ("depthwise 3x3 d4 48@33", image(48, 33), 48, 3, {"group": 48, "dilations": [4, 4]}),
        ("1d k3 s2 512 799", (1, 512, 799), 512, (3,), {"strides": [2], "pads": [0, 0]}),
        ("1d k2 d8 32 3000", (1, 32, 3000), 32, (2,), {"dilations": [8], "pads": [8, 0]}),
        ("1d groups 8 k64 256 150", (1, 256, 150), 256, (64,), {"group": 8, "pads": [32, 31]}),
        ("1d groups 16 k31 512 90", (1, 512, 90), 512, (31,), {"group": 16}),
        ("3d 3x3x3 s2 1->16@40", (1, 1, 40, 40, 40), 16, (3, 3, 3), {"strides": [2, 2, 2]}),
        ("3d depthwise 5x3x3 24@16x28x28", (1, 24, 16, 28, 28), 24, (5, 3, 3), {"group": 24}),
        ("3d depthwise 5x1x1 24@16x30x30", (1, 24, 16, 30, 30), 24, (5, 1, 1), {"group": 24}),
        ("3d depthwise s1x2x2 54@8x40x40", (1, 54, 8, 40, 40), 54, (3, 3, 3), {"group": 54, "strides": [1, 2, 2]}),
    ):
        yield Case("conv other", label, conv(shape, out, kernel, **extra))
    for label, shape, weight, extra in (
        ("4x4 s2 512->256@4", image(512, 4), (512, 256, 4, 4), {"strides": [2, 2], "pads": [1] * 4}),
        ("4x4 s2 256->128@5", image(256, 5), (256, 128, 4, 4), {"strides": [2, 2], "pads": [1] * 4}),
        ("4x4 s2 512->512@2", image(512, 2), (512, 512, 4, 4), {"strides": [2, 2], "pads": [1] * 4}),
        ("8x8 s4 48->24@20", image(48, 20), (48, 24, 8, 8), {"strides": [4, 4], "pads": [2] * 4}),
        ("3d 4x4x4 s2 24->12@10", (1, 24, 10, 10, 10), (24, 12, 4, 4, 4), {"strides": [2] * 3, "pads": [1] * 6}),
    ):
        yield Case("conv transposed", label, transposed_as(shape, weight, **extra))


def _others() -> Iterator[Case]:
    for rows, depth, columns in (
        (31, 257, 65),
        (13, 768, 3072),
        (40, 2048, 50),
        (64, 1024, 16),
        (6400, 8, 32),
        (136, 1024, 24),
        (100, 640, 40),
    ):
        yield Case("matmul", f"{rows}x{depth}x{columns}", matmul((rows, depth), columns))
    for a, b in (((150, 150), (150, 150)), ((7, 23, 31), (7, 31, 29)), ((1, 8, 1, 200), (1, 8, 200, 64))):
        yield Case("batched", f"{'x'.join(map(str, a))} by {'x'.join(map(str, b))}", batched(a, b))
    for heads, rows, width in ((4, 300, 32), (2, 23, 128)):
        yield Case("attention", f"{heads}x{rows}x{width}", attention(heads, rows, width))
    for kind, gates in (("LSTM", 4), ("GRU", 3)):
        for steps, width, hidden in ((20, 50, 40), (60, 128, 200), (15, 40, 72), (40, 64, 136), (25, 300, 250)):
            yield Case("recurrent", f"{kind} {steps}x{width}->{hidden}", recurrent(kind, gates, steps, width, hidden))
    for shape, axis in (((12, 65, 65), -1), ((50, 50, 50), 1), ((600, 11), -1)):
        yield Case("softmax", f"Softmax axis {axis}, {'x'.join(map(str, shape))}", unary(shape, "Softmax", axis=axis))
    yield Case("normalisation", "layer 77x768", layer_norm((77, 768)))
    for a, b in (((2, 7, 33), (7, 1)), ((64, 1, 9), (1, 50, 9))):
        yield Case("elementwise", f"Add {'x'.join(map(str, a))} {'x'.join(map(str, b))}", binary(a, b, "Add"))
    for shape, perm in (((30, 40, 50), (2, 1, 0)), ((3, 7, 11, 13), (3, 2, 1, 0)), ((77, 91), (1, 0))):
        yield Case("transpose", f"{'x'.join(map(str, shape))} {perm}", unary(shape, "Transpose", perm=perm))
    for shape, axes in (((3, 3, 3, 300), [0, 1]), ((40, 50, 3), [2])):
        yield Case("reduction", f"ReduceMean {'x'.join(map(str, shape))} {axes}", reduce(shape, "ReduceMean", axes))
    for shape, axis, parts in (((7, 64), 1, 4), ((1, 197, 2304), 2, 3), ((2, 3, 1000), 2, 10)):
        yield Case("movement", f"Split {'x'.join(map(str, shape))} axis {axis} in {parts}", parted(shape, axis, parts))
    yield Case("resize", "nearest 3x 21@33", resize(image(21, 33), "nearest", 3.0))
    yield Case("along an axis", "TopK 7 of 10x200", largest((10, 200), 7))

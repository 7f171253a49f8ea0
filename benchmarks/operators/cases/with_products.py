"""Operators with products: convolutions, matrices, attention, recurrent layers."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.operators.cases.models import (
    Case,
    attention,
    batched,
    binary,
    conv,
    gemm,
    image,
    matmul,
    recurrent,
    squeeze_excite,
    transposed,
)


def products() -> Iterator[Case]:
    """Cases, by kind."""
    for channels, size, out in (
        (64, 56, 64),
        (128, 28, 128),
        (256, 14, 256),
        (512, 7, 512),
        (40, 40, 40),
        (19, 33, 37),
    ):
        yield Case("conv 3x3", f"{channels}->{out}@{size}", conv(image(channels, size), out, 3, relu=True))
    for channels, size, out in ((64, 56, 128), (32, 56, 64), (128, 28, 256), (48, 39, 80)):
        yield Case("conv 3x3 s2", f"{channels}->{out}@{size}", conv(image(channels, size), out, 3, strides=[2, 2]))
    for size, out, kernel in ((224, 32, 3), (192, 24, 3), (224, 64, 7), (301, 17, 5)):
        yield Case(
            "first layer", f"{kernel}x{kernel} 3->{out}@{size}", conv(image(3, size), out, kernel, strides=[2, 2])
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
        yield Case("conv 1x1", f"{channels}->{out}@{size}", conv(image(channels, size), out, 1))
    yield Case("conv other", "dilated 3x3 64@56", conv(image(64, 56), 64, 3, dilations=[2, 2]))
    yield Case("conv other", "groups 32 256@28", conv(image(256, 28), 256, 3, group=32))
    for kernel in ((1, 7), (7, 1)):
        for channels, size in ((128, 17), (64, 35), (19, 21)):
            label = f"{kernel[0]}x{kernel[1]} {channels}@{size}"
            yield Case("conv other", label, conv(image(channels, size), channels, kernel))
    yield Case("conv other", "3x1 384@8", conv(image(384, 8), 384, (3, 1)))
    yield Case("conv other", "5x5 48->64@35", conv(image(48, 35), 64, 5))
    yield Case("conv other", "batch 4 64@28", conv(image(64, 28, 4), 64, 3))
    yield Case("conv other", "1d k9 64@2000", conv((1, 64, 2000), 64, (9,)))
    for channels, size, kernel, stride in (
        (96, 112, 3, 1),
        (144, 80, 3, 1),
        (960, 7, 3, 1),
        (80, 56, 7, 1),
        (240, 40, 5, 2),
        (144, 56, 3, 2),
        (33, 29, 5, 1),
    ):
        shape = image(channels, size)
        build = conv(shape, channels, kernel, group=channels, strides=[stride, stride])
        yield Case("depthwise", f"{kernel}x{kernel} s{stride} {channels}@{size}", build)
    yield Case("conv transposed", "2x2 s2 128->64@32", transposed(image(128, 32), 64, 2, strides=[2, 2]))
    yield Case("conv transposed", "4x4 s2 64->32@24", transposed(image(64, 24), 32, 4, strides=[2, 2], pads=[1] * 4))
    yield Case("conv transposed", "3x3 s2 24->1@95", transposed(image(24, 95), 1, 3, strides=[2, 2]))
    for channels, size, out in ((64, 28, 32), (128, 14, 128), (17, 33, 21)):
        doubled = transposed(image(channels, size), out, 3, strides=[2, 2], pads=[1] * 4, output_padding=[1, 1])
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
        yield Case("matmul", f"{rows}x{depth}x{columns}", matmul((rows, depth), columns))
    yield Case("matmul", "197x192x768 gelu", matmul((1, 197, 192), 768, "Gelu"))
    yield Case("batched", "12x128x64x128", batched((12, 128, 64), (12, 64, 128)))
    yield Case("batched", "4x197x197x48", batched((4, 197, 197), (4, 197, 48)))
    for heads, rows, width in ((8, 512, 64), (6, 197, 64), (12, 128, 64), (3, 49, 32), (4, 65, 40)):
        yield Case("attention", f"{heads}x{rows}x{width}", attention(heads, rows, width))
    for kind, gates in (("LSTM", 4), ("GRU", 3)):
        for steps, width, hidden in ((40, 64, 128), (7, 33, 19)):
            yield Case("recurrent", f"{kind} {steps}x{width}->{hidden}", recurrent(kind, gates, steps, width, hidden))
    yield Case("squeeze-excite", "96@56", squeeze_excite(image(96, 56), 24))
    yield Case("squeeze-excite", "480@14", squeeze_excite(image(480, 14), 120))
    for channels, size, out in ((128, 16, 64), (256, 8, 128), (33, 20, 17)):
        quadruple = transposed(image(channels, size), out, 4, strides=[2, 2], pads=[1] * 4)
        yield Case("conv transposed", f"4x4 s2 {channels}->{out}@{size}", quadruple)
    yield Case("conv transposed", "3x3 64->32@28", transposed(image(64, 28), 32, 3, pads=[1] * 4))
    yield Case("conv other", "groups 4 64@28", conv(image(64, 28), 64, 3, group=4))
    yield Case("conv other", "groups 2 1x1 64->128@28", conv(image(64, 28), 128, 1, group=2))
    yield Case("conv other", "dilated by 4 3x3 32@60", conv(image(32, 60), 32, 3, dilations=[4, 4]))
    yield Case("conv other", "1d k3 80->128 1500", conv((1, 80, 1500), 128, (3,)))
    yield Case("conv other", "1d k3 s2 128 1500", conv((1, 128, 1500), 128, (3,), strides=[2]))
    yield Case("conv other", "1d k1 256 500", conv((1, 256, 500), 256, (1,)))
    yield Case("conv other", "1d depthwise k31 256 300", conv((1, 256, 300), 256, (31,), group=256))
    yield Case("conv other", "3d 3x3x3 16->32@16", conv((1, 16, 16, 16, 16), 32, (3, 3, 3)))
    yield Case("conv other", "3d 3x3x3 s2 3->16@32", conv((1, 3, 32, 32, 32), 16, (3, 3, 3), strides=[2, 2, 2]))
    yield Case("conv other", "5x5 s2 32->64@56", conv(image(32, 56), 64, 5, strides=[2, 2]))
    yield Case("conv other", "1x1 s2 256->512@28", conv(image(256, 28), 512, 1, strides=[2, 2]))
    yield Case("conv other", "16x16 s16 3->192@224", conv(image(3, 224), 192, 16, strides=[16, 16], pads=[0] * 4))
    yield Case("conv other", "9x9 3->64@96", conv(image(3, 96), 64, 9))
    yield Case("conv other", "11x11 s4 3->64@224", conv(image(3, 224), 64, 11, strides=[4, 4], pads=[2] * 4))
    yield Case("conv 3x3", "1->8@28", conv(image(1, 28), 8, 3))
    for channels, size, out in ((128, 14, 128), (17, 31, 29)):
        yield Case("conv 3x3 s2", f"{channels}->{out}@{size}", conv(image(channels, size), out, 3, strides=[2, 2]))
    yield Case("batched", "8x64x96 by 96x33", binary((8, 64, 96), (96, 33), "MatMul"))
    yield Case("batched", "2x1x64x32 by 1x4x32x50", binary((2, 1, 64, 32), (1, 4, 32, 50), "MatMul"))
    yield Case("batched", "256x256 by 256x256", binary((256, 256), (256, 256), "MatMul"))
    yield Case(
        "batched",
        "einsum bhid,bhjd->bhij",
        binary((2, 4, 65, 32), (2, 4, 65, 32), "Einsum", equation="bhid,bhjd->bhij"),
    )
    for rows, depth, columns in ((64, 512, 1000), (1, 2048, 1000), (1, 33, 17)):
        yield Case("matmul", f"Gemm transB {rows}x{depth}x{columns}", gemm((rows, depth), columns, transB=1))
    yield Case("matmul", "Gemm transA 100x200x300", gemm((200, 100), 300, transA=1))

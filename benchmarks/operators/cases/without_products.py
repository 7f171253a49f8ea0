"""Operators without products: activations, rows, windows, movement of data."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.operators.cases.models import (
    Case,
    along,
    binary,
    chosen,
    concat,
    gelu,
    group_norm,
    image,
    instance_norm,
    largest,
    layer_norm,
    masked_softmax,
    parted,
    reduce,
    resize,
    rms_norm,
    slopes,
    unary,
)


def others() -> Iterator[Case]:
    """Cases, by kind."""
    for shape in ((196, 768), (1, 64, 128, 128), (512,), (33, 77)):
        label = "x".join(map(str, shape))
        yield Case("gelu", label, gelu(shape))
        for kind in ("Sigmoid", "Tanh", "Exp", "Erf", "HardSwish", "Softplus", "Elu", "Mish"):
            yield Case("activation", f"{kind} {label}", unary(shape, kind))
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
        yield Case("softmax", "x".join(map(str, shape)), unary(shape, "Softmax", axis=-1))
    yield Case("softmax", "masked 1x12x128x128", masked_softmax(12, 128))
    yield Case("softmax", "axis 1, 1x21x65x65", unary((1, 21, 65, 65), "Softmax", axis=1))
    yield Case("softmax", "log 64x1000", unary((64, 1000), "LogSoftmax", axis=-1))
    yield Case("softmax", "log 77x91", unary((77, 91), "LogSoftmax", axis=-1))
    for shape in ((512, 256), (197, 384), (1, 128, 768), (3, 50, 100)):
        yield Case("layer norm", "x".join(map(str, shape)), layer_norm(shape))
    for shape, kernel, stride in (
        (image(64, 112), 3, 2),
        (image(96, 80), 2, 2),
        (image(128, 27), 3, 1),
        (image(31, 45), 5, 3),
    ):
        pads = [kernel // 2] * 4 if kernel > 2 else [0] * 4
        label = f"{kernel}x{kernel} s{stride} {shape[1]}@{shape[2]}"
        for kind in ("MaxPool", "AveragePool"):
            build = unary(shape, kind, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=pads)
            yield Case("pooling", f"{kind} {label}", build)
    yield Case("pooling", "global 512@28", unary(image(512, 28), "GlobalAveragePool"))
    yield Case("pooling", "global 1280@7", unary(image(1280, 7), "GlobalAveragePool"))
    for shape, axes in (((1, 512, 768), [1]), ((1, 512, 768), [2]), ((64, 100, 100), [0, 2]), ((1, 33, 1001), [-1])):
        for kind in ("ReduceMean", "ReduceMax"):
            yield Case("reduction", f"{kind} {'x'.join(map(str, shape))} {axes}", reduce(shape, kind, axes))
    for shape, perm in (
        ((1, 197, 6, 64), (0, 2, 1, 3)),
        ((1, 96, 56, 56), (0, 2, 3, 1)),
        ((1, 56, 56, 96), (0, 3, 1, 2)),
        ((1, 8, 512, 64), (0, 1, 3, 2)),
        ((33, 65, 17), (2, 0, 1)),
    ):
        yield Case("transpose", f"{'x'.join(map(str, shape))} {perm}", unary(shape, "Transpose", perm=perm))
    for mode in ("nearest", "linear"):
        yield Case("resize", f"{mode} 2x 64@40", resize(image(64, 40), mode, 2.0))
        yield Case("resize", f"{mode} 1.7x 21@33", resize(image(21, 33), mode, 1.7))
    for a, b in (
        ((1, 64, 56, 56), (1, 64, 56, 56)),
        ((1, 128, 768), (768,)),
        ((1, 96, 40, 40), (1, 96, 1, 1)),
        ((511,), (511,)),
    ):
        yield Case("elementwise", f"Add {'x'.join(map(str, a))} {'x'.join(map(str, b))}", binary(a, b, "Add"))
    yield Case("elementwise", "Relu 1x64x112x112", unary(image(64, 112), "Relu"))
    for shape in (image(64, 56), (33, 77)):
        label = "x".join(map(str, shape))
        yield Case("elementwise", f"LeakyRelu {label}", unary(shape, "LeakyRelu", alpha=0.1))
        yield Case("elementwise", f"PRelu {label}", slopes(shape))
        yield Case("elementwise", f"Pow {label}", binary(shape, (1,), "Pow"))
    yield Case("elementwise", "Div 128x1000", binary((128, 1000), (128, 1), "Div"))
    yield Case("concat", "channels 2 x 64@56", concat(image(64, 56), 1))
    yield Case("concat", "columns 2 x 197x384", concat((197, 384), 1))
    yield Case("movement", "Slice 197x384", unary((197, 384), "Slice", [0, 64], [197, 320], [0, 1]))
    yield Case("movement", "Pad 64@56", unary(image(64, 56), "Pad", [0, 0, 1, 1, 0, 0, 1, 1]))
    yield Case("movement", "Gather 1000x256", unary((1000, 256), "Gather", list(range(0, 999, 7))))
    yield Case("movement", "Expand 128x1", unary((128, 1), "Expand", [4, 128, 300]))
    yield Case("movement", "Tile 33x17", unary((33, 17), "Tile", [4, 3]))
    yield Case("movement", "DepthToSpace 64@28", unary(image(64, 28), "DepthToSpace", blocksize=2))
    yield Case("movement", "SpaceToDepth 12@58", unary(image(12, 58), "SpaceToDepth", blocksize=2))
    yield Case("normalisation", "InstanceNormalization 64@56", instance_norm(image(64, 56)))
    yield Case("normalisation", "InstanceNormalization 33@29", instance_norm(image(33, 29)))
    yield Case("normalisation", "groups 8, 64@28", group_norm(image(64, 28), 8))
    for shape in ((1, 128, 768), (50, 100)):
        yield Case("normalisation", f"root mean square {'x'.join(map(str, shape))}", rms_norm(shape))
    for shape in ((64, 1000), (33, 77), (8, 64, 128)):
        label = "x".join(map(str, shape))
        for axis in range(len(shape)):
            yield Case("reduction", f"ArgMax {label} {axis}", unary(shape, "ArgMax", axis=axis, keepdims=0))
            yield Case("along an axis", f"CumSum {label} {axis}", along(shape, "CumSum", axis))
            for kind in ("ReduceSum", "ReduceL2"):
                yield Case("reduction", f"{kind} {label} [{axis}]", reduce(shape, kind, [axis]))
    yield Case("reduction", "ReduceLogSumExp 64x1000 [1]", reduce((64, 1000), "ReduceLogSumExp", [1]))
    for shape, count in (((64, 1000), 5), ((1, 8400), 100)):
        yield Case("along an axis", f"TopK {count} {'x'.join(map(str, shape))}", largest(shape, count))
    for axis in range(3):
        yield Case("concat", f"2 x 7x33x50 axis {axis}", concat((7, 33, 50), axis))
        yield Case(
            "movement", f"Gather 24x30x40 axis {axis}", unary((24, 30, 40), "Gather", [3, 1, 7, 20, 11], axis=axis)
        )
    for shape, axis, parts in (((197, 1152), 1, 3), ((33, 99), 1, 3), (image(64, 40), 1, 2)):
        yield Case("movement", f"Split {'x'.join(map(str, shape))} in {parts}", parted(shape, axis, parts))
    for mode in ("reflect", "edge", "constant"):
        yield Case("movement", f"Pad {mode} 32@50", unary(image(32, 50), "Pad", [0, 0, 3, 3, 0, 0, 3, 3], mode=mode))
        yield Case("movement", f"Pad {mode} 33x17", unary((33, 17), "Pad", [1, 2, 0, 5], mode=mode))
    yield Case("movement", "Tile 5x3", unary((5, 3), "Tile", [20, 30]))
    yield Case("movement", "Tile 197x384", unary((197, 384), "Tile", [2, 2]))
    yield Case("movement", "Expand 33x1", unary((33, 1), "Expand", [33, 77]))
    yield Case("movement", "Slice every other 64@56", unary(image(64, 56), "Slice", [0, 0], [56, 56], [2, 3], [2, 2]))
    yield Case("movement", "Slice reversed 33x77", unary((33, 77), "Slice", [-1], [-1000], [1], [-1]))
    yield Case("movement", "GridSample 32@40", binary(image(32, 40), (1, 30, 30, 2), "GridSample"))
    yield Case("transpose", "64x1000 (1, 0)", unary((64, 1000), "Transpose", perm=[1, 0]))
    yield Case("transpose", "12x13x14x15 (3, 2, 1, 0)", unary((12, 13, 14, 15), "Transpose", perm=[3, 2, 1, 0]))
    for shape in (image(64, 56), (33, 77)):
        label = "x".join(map(str, shape))
        for kind in ("HardSigmoid", "Sin", "Floor", "Round", "Softsign", "Selu", "Gelu"):
            yield Case("activation", f"{kind} {label}", unary(shape, kind))
        yield Case("elementwise", f"Where {label}", chosen(shape))
        yield Case("elementwise", f"Cast to int32 {label}", unary(shape, "Cast", to=6))
    yield Case("activation", "Exp 8x128x56x56", unary((8, 128, 56, 56), "Exp"))
    yield Case("elementwise", "Add 8x16x32x33 33", binary((8, 16, 32, 33), (33,), "Add"))
    yield Case("elementwise", "Add 300x1 1x500", binary((300, 1), (1, 500), "Add"))
    for factor, mode in ((2.0, "cubic"), (0.6, "cubic"), (0.5, "linear"), (0.5, "nearest"), (3.0, "nearest")):
        yield Case("resize", f"{mode} {factor}x 32@40", resize(image(32, 40), mode, factor))
    for kind, shape, kernel, stride in (
        ("MaxPool", image(128, 20), 13, 1),
        ("MaxPool", image(128, 20), 5, 1),
        ("AveragePool", image(192, 35), 3, 1),
    ):
        build = unary(shape, kind, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[kernel // 2] * 4)
        yield Case("pooling", f"{kind} {kernel}x{kernel} s{stride} {shape[1]}@{shape[2]}", build)
    yield Case(
        "pooling", "3d MaxPool 16@32", unary((1, 16, 32, 32, 32), "MaxPool", kernel_shape=[2] * 3, strides=[2] * 3)
    )
    yield Case("pooling", "global max 512@14", unary(image(512, 14), "GlobalMaxPool"))
    yield Case("normalisation", "LRN 96@27", unary(image(96, 27), "LRN", size=5, alpha=1e-4, beta=0.75))
    yield Case("normalisation", "Lp 64x512", unary((64, 512), "LpNormalization", axis=-1, p=2))
    yield Case("normalisation", "groups 32, 128@32", group_norm(image(128, 32), 32))
    for shape in ((7, 33), (50, 1023)):
        yield Case("layer norm", "x".join(map(str, shape)), layer_norm(shape))
    for shape, axis in (((64, 1000), 0), ((1, 10), -1), ((33, 77), -1), ((1000, 21), -1)):
        yield Case("softmax", f"axis {axis}, {'x'.join(map(str, shape))}", unary(shape, "Softmax", axis=axis))
    yield Case("softmax", "log 8x32000", unary((8, 32000), "LogSoftmax", axis=-1))
    yield Case("softmax", "hard 64x100", unary((64, 100), "Hardmax", axis=-1))

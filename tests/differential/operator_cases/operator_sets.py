"""Operators whose form depends on the operator set, old and new."""

from __future__ import annotations

import numpy as np

from tests.differential.operator_cases.values import IMAGE, REDUCTIONS, X, ints, weight
from tests.differential.operators import Case, case, constant, draw

CASES: dict[str, list[Case]] = {}
CASES["old7"] = [
    case("Clip", X, min=-1.0, max=1.0, opset=7),
    case(
        "BatchNormalization",
        IMAGE,
        constant(draw(4)),
        constant(draw(4)),
        constant(draw(4)),
        constant(draw(4, low=0.5)),
        opset=7,
    ),
    case("Upsample", IMAGE, scales=[1.0, 1.0, 2.0, 2.0], mode="nearest", opset=7),
    case("Softmax", X, axis=1, opset=7),
    case("Slice", X, starts=[0, 1], ends=[1, 3], axes=[0, 2], opset=7),
    case("Squeeze", draw(1, 3, 1), axes=[0], opset=7),
    case("Pad", X, pads=[0, 1, 0, 0, 0, 1], mode="constant", value=2.0, opset=7),
    case("Dropout", X, opset=7),
    case("ReduceSum", X, axes=[1], opset=7),
    case("Split", X, split=[1, 2], outputs=2, axis=1, opset=7),
    case("TopK", X, k=2, outputs=2, opset=7),
    case("Gemm", draw(3, 4), weight(4, 5), weight(5), opset=7),
    case("PRelu", IMAGE, constant(draw(4, 1, 1)), opset=7),
    case("AveragePool", IMAGE, kernel_shape=[2, 2], opset=7),
]
CASES["old9"] = [
    case("Upsample", IMAGE, constant([1, 1, 2, 2], np.float32), mode="linear", opset=9),
    case("Flatten", IMAGE, opset=9),
    case("Cast", X, to=7, opset=9),
    case("OneHot", ints(3, lo=0, hi=4), constant(5, np.int64), constant([0.0, 1.0], np.float32), opset=9),
    case("Where", draw(3, dtype=bool), draw(3), draw(3), opset=9),
    case("Softmax", draw(2, 3, 4, 5), axis=1, opset=9),
    case("Scatter", draw(3, 3), np.array([[0, 2, 0]]), draw(1, 3), opset=9),
]
CASES["old11"] = [
    case("Hardmax", X, axis=1, opset=11),
    case("Softmax", draw(2, 3, 4), opset=11),
    case("LogSoftmax", IMAGE, axis=1, opset=11),
    case("Resize", IMAGE, constant([], np.float32), constant([1, 1, 2, 2], np.float32), mode="nearest", opset=11),
    case("Clip", X, constant(-1.0, np.float32), constant(1.0, np.float32), opset=11),
    case("Pad", X, constant([0, 0, 1, 0, 0, 1], np.int64), opset=11),
    case("Unsqueeze", X, axes=[0], opset=11),
    case("Dropout", X, opset=11),
    case("TopK", X, constant([2], np.int64), outputs=2, opset=11),
]
CASES["reduce18"] = [case(op, X, constant([1], np.int64), opset=18) for op in REDUCTIONS] + [
    case("ReduceMean", X, opset=18),
    case("ReduceMean", X, constant([0, 2], np.int64), keepdims=0, opset=18),
    case("ReduceMax", X, noop_with_empty_axes=1, opset=18),
    case("Split", X, outputs=3, axis=1, num_outputs=3, opset=18),
    case("Split", draw(7), outputs=3, num_outputs=3, opset=18),
    case("Pad", X, constant([1, 2], np.int64), None, constant([1], np.int64), opset=18),
    case("Pad", X, constant([1, 1], np.int64), constant(2.0, np.float32), constant([-1], np.int64), opset=18),
    case("Pad", X, constant([1, -1], np.int64), constant(2.0, np.float32), constant([-1], np.int64), opset=18),
    case("Mish", X, opset=18),
    case("BitwiseAnd", ints(3), constant(3, np.int64), opset=18),
    case("Resize", IMAGE, None, None, constant([1, 4, 9, 9], np.int64), mode="linear", opset=18, axes=[0, 1, 2, 3]),
    case("Resize", IMAGE, None, None, constant([3, 3], np.int64), mode="linear", opset=18, axes=[2, 3], antialias=1),
    case("LpPool", IMAGE, kernel_shape=[2, 2], strides=[2, 2], opset=18),
    case("CenterCropPad", X, constant([2, 6], np.int64), axes=[1, 2], opset=18),
]
CASES["opset20"] = [
    case("Gelu", X, opset=20),
    case("Gelu", X, approximate="tanh", opset=20),
    case("GridSample", IMAGE, draw(1, 3, 3, 2, low=-1, high=1), opset=20),
    case(
        "GridSample",
        IMAGE,
        draw(1, 3, 3, 2, low=-1.2, high=1.2),
        mode="nearest",
        padding_mode="border",
        align_corners=1,
        opset=20,
    ),
    case("IsInf", np.array([1, np.inf, -np.inf, np.nan], np.float32), detect_negative=0, opset=20),
    case("ReduceMax", draw(3, 4, dtype=bool), constant([1], np.int64), opset=20),
    case("ConstantOfShape", constant([2, 3], np.int64), opset=20),
    case("AffineGrid", draw(1, 2, 3), constant([1, 2, 4, 4], np.int64), opset=20),
    case("DepthToSpace", IMAGE, blocksize=2, opset=20),
]
CASES["opset21"] = [
    case("GroupNormalization", IMAGE, constant(draw(4)), constant(draw(4, seed=3)), num_groups=2, opset=21),
    case("Reshape", X, constant([0, -1], np.int64), opset=21),
    case("QuantizeLinear", X, constant(0.1, np.float32), constant(3, np.int8), opset=21),
    case(
        "DequantizeLinear",
        constant(ints(8, 6, d=np.int8)),
        constant(draw(8, 3, low=0.1)),
        None,
        axis=1,
        block_size=2,
        opset=21,
    ),
    case(
        "DequantizeLinear",
        ints(8, 6, d=np.int8),
        constant(draw(8, 3, low=0.1)),
        constant(ints(8, 3, d=np.int8)),
        axis=1,
        block_size=2,
        opset=21,
    ),
]
CASES["opset23"] = [
    case("RMSNormalization", X, constant(draw(4)), opset=23),
    case("RMSNormalization", X, constant(draw(3, 4)), axis=1, epsilon=1e-3, opset=23),
    case("RMSNormalization", X.astype(np.float16), constant(draw(4).astype(np.float16)), opset=23),
    case("Attention", draw(1, 2, 4, 8), draw(1, 2, 4, 8, seed=1), draw(1, 2, 4, 8, seed=2), opset=23),
    case("Attention", draw(1, 4, 4, 8), draw(1, 2, 6, 8, seed=1), draw(1, 2, 6, 8, seed=2), opset=23, is_causal=1),
    case("RotaryEmbedding", draw(1, 2, 4, 8), draw(10, 4), draw(10, 4, seed=5), ints(1, 4, lo=0, hi=9), opset=23),
    case("RotaryEmbedding", draw(1, 4, 16), draw(1, 4, 4), draw(1, 4, 4, seed=5), num_heads=2, interleaved=1, opset=23),
    case("RMSNormalization", X, constant(draw(2, 3, 4)), axis=0, opset=23),
    case("RMSNormalization", X, constant(draw(3, 4)), axis=-2, opset=23),
    case("RMSNormalization", X, constant(draw(4)), axis=1, opset=23),
    case("RMSNormalization", draw(5), constant(draw(5)), opset=23),
]

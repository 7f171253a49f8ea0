"""Operator cases by theme: operator x dtype x attributes, as exporters write them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.differential.operators import Array, Case, Constant, case, constant, draw

X = draw(2, 3, 4)
IMAGE = draw(1, 4, 6, 6)
NEGATIVE = np.array([1, -1, 3, -4])


def ints(*shape: int, d: Any = np.int64, lo: int = -5, hi: int = 5) -> Array:
    return draw(*shape, dtype=d, low=lo, high=hi)


def nz(array: Array) -> Array:
    """Without zeros: a divisor."""
    return np.where(array == 0, 3, array).astype(array.dtype)


def weight(*shape: int) -> Constant:
    return constant(draw(*shape, low=-0.5, high=0.5))


def u8(*shape: int, seed: int = 0) -> Array:
    return draw(*shape, dtype=np.uint8, low=0, high=255, seed=seed)


def s8(*shape: int, seed: int = 0) -> Array:
    return draw(*shape, dtype=np.int8, low=-128, high=127, seed=seed)


def sc(value: Any) -> Constant:
    """A scale."""
    return constant(value, np.float32)


def recurrent(
    op: str,
    gates: int,
    direction: str = "forward",
    bias: bool = True,
    h0: bool = True,
    outs: int | None = None,
    **attrs: Any,
) -> Case:
    """Six steps, a batch of two, three features, five hidden values."""
    count, hidden = 2 if direction == "bidirectional" else 1, 5
    inputs: list[Array | Constant | None] = [
        draw(6, 2, 3),
        weight(count, gates * hidden, 3),
        weight(count, gates * hidden, hidden),
        weight(count, 2 * gates * hidden) if bias else None,
        None,
        draw(count, 2, hidden, seed=1) if h0 else None,
    ]
    if op == "LSTM":
        inputs.append(draw(count, 2, hidden, seed=2) if h0 else None)
    while inputs[-1] is None:
        inputs.pop()
    outputs = outs or (3 if op == "LSTM" else 2)
    return case(op, *inputs, outputs=outputs, hidden_size=hidden, direction=direction, **attrs)


CASES: dict[str, list[Case]] = {}
CASES["clip"] = [
    case("Clip", X, constant(-1.0, np.float32), constant(1.0, np.float32)),
    case("Clip", X, constant([-1.0], np.float32), constant([1.0], np.float32)),
    case("Clip", X, None, constant(1.0, np.float32)),
    case("Clip", X, constant(0.0, np.float32)),
    case("Clip", X, constant(0.0, np.float32), None),
    case("Clip", X),
    case("Clip", ints(3, 4), constant(-1, np.int64), constant(2, np.int64)),
    case("Clip", ints(3, 4, d=np.int32), constant(-1, np.int32)),
    case("Clip", X, np.array(-1, np.float32), np.array(1, np.float32)),
    case("Clip", X.astype(np.float16), constant(-1, np.float16), constant(1, np.float16)),
    case("Clip", ints(3, 4, d=np.uint8, lo=0, hi=9), constant(2, np.uint8), constant(5, np.uint8)),
    case("Clip", X, constant(2.0, np.float32), constant(1.0, np.float32)),
]
CASES["arith"] = (
    [
        case(op, ints(3, 4, d=d), constant(nz(ints(4, d=d))))
        for op in ("Add", "Sub", "Mul", "Div")
        for d in (np.int64, np.int32)
    ]
    + [case(op, constant(ints(3, 4)), nz(ints(4))) for op in ("Add", "Sub", "Mul", "Div")]
    + [
        case(op, ints(3, 4), constant(2, np.int64))
        for op in (
            "Add",
            "Sub",
            "Mul",
            "Div",
            "Mod",
            "Equal",
            "Less",
            "Greater",
            "LessOrEqual",
            "GreaterOrEqual",
            "Max",
            "Min",
            "Pow",
        )
    ]
    + [
        case(op, ints(3, 4, d=np.uint8, lo=1), constant(2, np.uint8))
        for op in ("Add", "Sub", "Mul", "Div", "Max", "Min")
    ]
    + [case(op, ints(3, 4, d=np.int8), constant([2], np.int8)) for op in ("Add", "Sub", "Mul", "Div")]
    + [case(op, draw(3, 4, dtype=np.float64), constant(2.0)) for op in ("Add", "Div", "Pow", "Max")]
    + [
        case("Neg", ints(3)),
        case("Abs", ints(3)),
        case("Sign", ints(3)),
        case("Equal", draw(3, dtype=bool), constant([True, False, True])),
        case("Not", draw(3, dtype=bool)),
        case("Xor", draw(3, dtype=bool), constant(True)),
        case("And", draw(3, dtype=bool), draw(3, 1, dtype=bool)),
        case("Div", X, constant(2.0, np.float32)),
        case("Div", X.astype(np.float16), constant(2.0, np.float16)),
    ]
)

CASES["gather"] = [
    case("Gather", X, constant(NEGATIVE % 4), axis=2),
    case("Gather", X, NEGATIVE, axis=2),
    case("Gather", X, constant(-1, np.int64), axis=1),
    case("Gather", X, constant(1, np.int64)),
    case("Gather", X, np.array(1, np.int64)),
    case("Gather", X, np.array(-1, np.int32), axis=-1),
    case("Gather", constant(draw(50, 8)), ints(2, 5, lo=0, hi=49)),
    case("Gather", constant(draw(50, 8)), ints(2, 5, lo=-50, hi=49, d=np.int32)),
    case("Gather", ints(5), constant([[0, -1]], np.int64)),
    case("Gather", draw(4, dtype=bool), constant([0, 3], np.int64)),
    case("Gather", ints(5), constant(2, np.int64)),
    case("GatherElements", X, ints(2, 3, 2, lo=-4, hi=3), axis=2),
    case("GatherElements", X, constant(ints(2, 3, 4, lo=0, hi=2)), axis=1),
    case("GatherElements", X, ints(1, 3, 4, lo=-2, hi=1, d=np.int32), axis=0),
    case("GatherND", X, constant([[0, 1], [1, -1]], np.int64)),
    case("GatherND", X, ints(2, 2, lo=-2, hi=1)),
    case("GatherND", X, ints(2, 1, lo=0, hi=2), batch_dims=1),
    case("GatherND", ints(3, 4, d=np.int32), ints(5, 2, lo=0, hi=2)),
    case("ScatterND", X, constant([[0, 1], [1, 2]], np.int64), draw(2, 4)),
    case("ScatterND", X, np.array([[-1], [0]], np.int64), draw(2, 3, 4, seed=4)),
    case("ScatterND", X, constant([[0, 1], [0, 1]], np.int64), draw(2, 4), reduction="add", opset=17),
    case("ScatterND", ints(6), np.array([[1], [3], [-1]], np.int64), ints(3)),
    case("ScatterElements", X, constant(np.array([[[0], [1], [2]], [[3], [2], [1]]])), draw(2, 3, 1), axis=2),
    case("ScatterElements", X, np.array([[[-1, 2, 0]] * 3] * 2, np.int64), draw(2, 3, 3), axis=-1),
    case("ScatterElements", draw(3, 3), constant(np.array([[0, 2, 0]])), draw(1, 3), axis=0, reduction="add"),
]
CASES["gather18"] = [
    case("ScatterND", X, np.array([[0, 1], [0, 1]], np.int64), draw(2, 4), reduction="max", opset=18),
    case("ScatterElements", draw(3, 3), np.array([[0, -1, 0]]), draw(1, 3), axis=0, reduction="min", opset=18),
    case("ScatterND", X, np.array([[0, 1], [0, 1]], np.int64), draw(2, 4), reduction="mul", opset=18),
]
CASES["reduce"] = (
    [
        case(op, X, axes=[1], keepdims=keep)
        for op in (
            "ReduceMean",
            "ReduceMax",
            "ReduceMin",
            "ReduceProd",
            "ReduceL1",
            "ReduceL2",
            "ReduceSumSquare",
            "ReduceLogSumExp",
        )
        for keep in (0, 1)
    ]
    + [case("ReduceLogSum", np.abs(X), axes=[-1])]
    + [
        case("ReduceSum", X, constant([1, 2], np.int64), keepdims=0),
        case("ReduceSum", X),
        case("ReduceSum", X, noop_with_empty_axes=1),
        case("ReduceSum", ints(3, 4), constant([0], np.int64)),
        case("ReduceMean", ints(3, 4, d=np.int32), axes=[0]),
        case("ReduceMax", ints(3, 4), axes=[0]),
        case("ReduceMax", ints(3, 4, d=np.uint8, lo=0), axes=[0]),
        case("ReduceMin", ints(3, 4, d=np.int8), axes=[0]),
        case("ReduceMean", X),
        case("ReduceProd", ints(3, 4), axes=[1]),
        case("ReduceL2", X.astype(np.float16), axes=[1]),
        case("ReduceSum", X.astype(np.float16), constant([1], np.int64)),
        case("ReduceMean", draw(1, 64, 50, seed=1).astype(np.float16), axes=[2]),
        case("ReduceLogSumExp", X * 100, axes=[1]),
        case("ArgMax", X, axis=1),
        case("ArgMax", X, axis=-1, keepdims=0),
        case("ArgMin", ints(3, 4), axis=0, select_last_index=1),
        case("ArgMax", ints(3, 4, d=np.int32), axis=0),
        case("TopK", X, constant([2], np.int64), outputs=2),
        case("TopK", draw(3, 20), constant([5], np.int64), outputs=2, axis=1, largest=0),
        case("TopK", draw(5, 6), constant([3], np.int64), outputs=2, axis=0),
        case("TopK", ints(5, 6, lo=-100, hi=100), constant([3], np.int64), outputs=2),
        case("TopK", draw(5, 6, dtype=np.float16), constant([3], np.int64), outputs=2),
        case("TopK", u8(3, 50), constant([1], np.int64), outputs=2, opset=17),
        case("CumSum", X, constant(1, np.int64)),
        case("CumSum", X, constant([1], np.int64), reverse=1),
        case("CumSum", X, constant(-1, np.int32), exclusive=1, reverse=1),
        case("CumSum", ints(4, 5), constant(0, np.int64)),
        case("CumSum", ints(4, 5, d=np.int32), constant(1, np.int64)),
    ]
)
CASES["reduce18"] = [
    case(op, X, constant([1], np.int64), opset=18)
    for op in (
        "ReduceMean",
        "ReduceMax",
        "ReduceMin",
        "ReduceProd",
        "ReduceL1",
        "ReduceL2",
        "ReduceSumSquare",
        "ReduceLogSumExp",
    )
] + [
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
CASES["norm"] = [
    case("LayerNormalization", X, constant(draw(4)), constant(draw(4, seed=2))),
    case("LayerNormalization", X, constant(draw(4))),
    case("LayerNormalization", X, constant(draw(3, 4)), constant(draw(3, 4)), axis=1, epsilon=1e-3),
    case("LayerNormalization", X, constant(draw(4)), constant(draw(4)), outputs=3),
    case(
        "LayerNormalization",
        X.astype(np.float16),
        constant(draw(4).astype(np.float16)),
        constant(draw(4).astype(np.float16)),
    ),
    case("InstanceNormalization", IMAGE, constant(draw(4)), constant(draw(4, seed=2))),
    case("InstanceNormalization", X, constant(draw(3)), constant(draw(3, seed=2))),
    case(
        "BatchNormalization", IMAGE, constant(draw(4)), constant(draw(4)), constant(draw(4)), constant(draw(4, low=0.5))
    ),
    case("BatchNormalization", X, constant(draw(3)), constant(draw(3)), constant(draw(3)), constant(draw(3, low=0.5))),
    case(
        "BatchNormalization",
        draw(3, 4),
        constant(draw(4)),
        constant(draw(4)),
        constant(draw(4)),
        constant(draw(4, low=0.5)),
    ),
    case("LRN", IMAGE, size=3),
    case("LRN", IMAGE, size=5, alpha=0.1, beta=0.5, bias=2.0),
    case("LpNormalization", X, p=1, axis=1),
    case("Softmax", X, axis=1),
    case("Softmax", X),
    case("LogSoftmax", X, axis=0),
    case("Softmax", X.astype(np.float16)),
    case("Hardmax", X),
    case("Softmax", draw(1, 4, 5, 5) * 100),
]
CASES["act"] = (
    [
        case(op, X)
        for op in (
            "Relu",
            "Sigmoid",
            "Tanh",
            "Elu",
            "Selu",
            "Softplus",
            "Softsign",
            "HardSwish",
            "HardSigmoid",
            "LeakyRelu",
            "ThresholdedRelu",
            "Celu",
            "Erf",
            "Exp",
            "Floor",
            "Ceil",
            "Round",
            "Sin",
            "Cos",
            "Tan",
            "Atan",
            "Sinh",
            "Cosh",
            "Asinh",
            "Reciprocal",
            "Sign",
            "Abs",
            "Neg",
            "IsNaN",
            "Identity",
            "Shrink",
        )
    ]
    + [case(op, np.abs(X) + 1) for op in ("Sqrt", "Log", "Acosh")]
    + [case(op, X / 4) for op in ("Asin", "Acos", "Atanh")]
    + [
        case(op, X.astype(np.float16))
        for op in ("Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Softplus", "HardSwish", "Elu")
    ]
    + [
        case("PRelu", IMAGE, constant(draw(4, 1, 1))),
        case("PRelu", X, constant(draw(1))),
        case("PRelu", X, draw(4)),
        case("PRelu", X, constant(draw(3, 1))),
        case("Round", np.array([0.5, 1.5, 2.5, -0.5, -1.5], np.float32)),
        case("LeakyRelu", X, alpha=0.3),
        case("Elu", X, alpha=2.0),
        case("HardSigmoid", X, alpha=0.3, beta=0.4),
        case("Relu", ints(4, d=np.int32)),
        case("Selu", X, alpha=1.2, gamma=2.0),
        case("Softplus", X * 40),
        case("Where", draw(3, 4, dtype=bool), constant(1.0, np.float32), draw(3, 4)),
        case("Where", draw(3, 1, dtype=bool), ints(4), constant(0, np.int64)),
        case("Where", constant([[True], [False]]), draw(2, 3), draw(3)),
        case("Sum", X, draw(4), constant(1.0, np.float32)),
        case("Mean", X, draw(4)),
        case("Max", X, draw(4), constant(0.0, np.float32)),
        case("Min", X),
        case("Sqrt", draw(3, dtype=np.float64, low=0)),
        case("IsInf", np.array([1, np.inf, -np.inf], np.float32)),
    ]
)
CASES["move"] = (
    [
        case("Transpose", X),
        case("Transpose", X, perm=[2, 0, 1]),
        case("Reshape", X, constant([0, -1], np.int64)),
        case("Reshape", X, constant([-1], np.int64)),
        case("Flatten", IMAGE, axis=2),
        case("Flatten", X, axis=0),
        case("Flatten", X, axis=-1),
        case("Squeeze", draw(1, 3, 1), constant([0], np.int64)),
        case("Squeeze", draw(1, 3, 1)),
        case("Unsqueeze", X, constant([0, -1], np.int64)),
        case("Concat", X, X * 2, axis=1),
        case("Concat", X, constant(draw(2, 1, 4)), axis=-2),
        case("Concat", ints(3), constant([1, 2], np.int64), axis=0),
        case("Concat", X, axis=0),
        case("Split", X, constant([1, 2], np.int64), outputs=2, axis=1),
        case("Split", draw(4, 6), outputs=2, axis=1),
        case("Split", X, outputs=1, axis=1),
        case("Split", X, constant([0, 2, 0, 1, 0], np.int64), outputs=5, axis=1),
        case("Slice", X, constant([1], np.int64), constant([100], np.int64), constant([1], np.int64)),
        case(
            "Slice",
            X,
            constant([-1, 0], np.int64),
            constant([-100, 2], np.int64),
            constant([2, 1], np.int64),
            constant([-1, 1], np.int64),
        ),
        case(
            "Slice",
            X,
            constant([0], np.int64),
            constant([9223372036854775807], np.int64),
            constant([2], np.int64),
            constant([2], np.int64),
        ),
        case(
            "Slice",
            X,
            constant([3], np.int32),
            constant([-2147483648], np.int32),
            constant([-1], np.int32),
            constant([-2], np.int32),
        ),
        case("Slice", X, constant([0, 1], np.int64), constant([1, 3], np.int64)),
        case("Pad", X, constant([0, 1, 2, 0, 0, 1], np.int64)),
        case("Pad", X, constant([0, 0, 1, 0, 0, 1], np.int64), constant(3.0, np.float32)),
        case("Pad", X, constant([0, 1, 1, 0, 1, 2], np.int64), mode="reflect"),
        case("Pad", X, constant([0, 1, 1, 0, 1, 2], np.int64), mode="edge"),
        case("Pad", X, constant([0, -1, 0, 0, 0, -1], np.int64)),
        case("Pad", ints(3, 4), constant([0, 1, 0, 1], np.int64), constant(7, np.int64)),
        case("Pad", draw(3, dtype=bool), constant([1, 1], np.int64)),
        case("Pad", ints(3, 4, d=np.uint8, lo=0), constant([1, 1, 1, 1], np.int64), constant([9], np.uint8)),
        case("Tile", X, constant([1, 2, 1], np.int64)),
        case("Expand", draw(3, 1), constant([2, 3, 4], np.int64)),
        case("Expand", draw(3, 4), constant([1, 1], np.int64)),
        case("Expand", ints(1), constant([3], np.int64)),
        case("DepthToSpace", IMAGE, blocksize=2),
        case("DepthToSpace", IMAGE, blocksize=2, mode="CRD"),
        case("SpaceToDepth", IMAGE, blocksize=2),
        case("OneHot", ints(3, lo=0, hi=4), constant(5, np.int64), constant([0.0, 1.0], np.float32)),
        case("OneHot", ints(3, lo=0, hi=4), constant([5], np.int64), constant([2, 3], np.int64), axis=0),
        case("Trilu", draw(4, 5)),
        case("Trilu", draw(2, 4, 4), constant(1, np.int64), upper=1),
        case("Trilu", draw(4, 4), constant(-1, np.int64), upper=0),
        case("Trilu", ints(4, 4), upper=0),
        case("Trilu", draw(4, 4, dtype=bool), upper=0),
        case("EyeLike", draw(3, 4)),
        case("Einsum", X, draw(2, 5, 4), equation="bij,bkj->bik"),
        case("Einsum", draw(3, 4), draw(4, 5), equation="ij,jk"),
        case("Einsum", draw(3, 3), equation="ii->i"),
        case("Einsum", draw(2, 3, 4, 5), draw(2, 6, 4, 5), equation="bnhd,bmhd->bhnm"),
        case("Einsum", X, equation="...ij->...ji"),
        case("Einsum", draw(3, 4), equation="ij->"),
        case("ReverseSequence", draw(4, 3), constant([1, 2, 4], np.int64)),
        case("Range", constant(0, np.int64), constant(5, np.int64), constant(1, np.int64)),
    ]
    + [case("Cast", X, to=t) for t in (7, 6, 9, 10, 11, 2, 3)]
    + [case("Cast", ints(4), to=t) for t in (1, 6, 9, 10, 2, 3)]
    + [case("Cast", draw(4, dtype=bool), to=t) for t in (1, 7, 6)]
    + [
        case("Cast", np.array([np.nan, np.inf, 0, -0.0, 0.5], np.float32), to=9),
        case("CastLike", X, constant([1], np.int64)),
        case("Unsqueeze", np.array(2.0, np.float32), constant([0], np.int64)),
        case("Squeeze", draw(1), constant([0], np.int64)),
        case("Reshape", draw(1), constant([], np.int64)),
        case("Shape", X),
        case("Size", X),
        case("Identity", ints(3)),
    ]
)
CASES["conv"] = [
    case("Conv", IMAGE, weight(8, 4, 3, 3), weight(8), pads=[1] * 4),
    case("Conv", IMAGE, weight(8, 4, 3, 3), strides=[2, 2], auto_pad="SAME_UPPER"),
    case("Conv", IMAGE, weight(8, 4, 3, 3), strides=[2, 2], auto_pad="SAME_LOWER"),
    case("Conv", IMAGE, weight(8, 4, 2, 2), auto_pad="SAME_LOWER"),
    case("Conv", IMAGE, weight(8, 4, 3, 3), auto_pad="VALID"),
    case("Conv", IMAGE, weight(4, 1, 3, 3), group=4, pads=[1] * 4),
    case("Conv", IMAGE, weight(8, 2, 3, 3), group=2, dilations=[2, 2]),
    case("Conv", IMAGE, weight(8, 1, 3, 3), group=4, pads=[1, 0, 1, 2]),
    case("Conv", IMAGE, weight(8, 4, 1, 1)),
    case("Conv", draw(2, 3, 10), weight(5, 3, 3), weight(5), pads=[1, 1], strides=[2]),
    case("Conv", draw(1, 3, 10), weight(3, 1, 4), group=3, dilations=[2]),
    case("Conv", draw(1, 2, 5, 5, 5), weight(4, 2, 3, 3, 3), weight(4), pads=[1] * 6),
    case("Conv", draw(1, 2, 5, 5, 5), weight(4, 1, 2, 2, 2), group=2, strides=[2] * 3),
    case("Conv", IMAGE, draw(8, 4, 3, 3)),
    case(
        "Conv",
        IMAGE.astype(np.float16),
        constant(draw(8, 4, 3, 3, low=-0.5, high=0.5).astype(np.float16)),
        pads=[1] * 4,
    ),
    case("Conv", draw(2, 4, 1, 7), weight(8, 4, 1, 3)),
    case("Conv", draw(2, 4, 7, 1), weight(8, 4, 3, 1)),
    case("ConvTranspose", IMAGE, weight(4, 6, 3, 3), weight(6), strides=[2, 2], pads=[1] * 4, output_padding=[1, 1]),
    case("ConvTranspose", IMAGE, weight(4, 6, 2, 2), strides=[2, 2]),
    case("ConvTranspose", IMAGE, weight(4, 3, 3, 3), group=2),
    case("ConvTranspose", IMAGE, weight(4, 1, 4, 4), group=4, strides=[2, 2], pads=[1] * 4),
    case("ConvTranspose", IMAGE, weight(4, 6, 3, 3), dilations=[2, 2]),
    case("ConvTranspose", draw(1, 3, 6), weight(3, 4, 4), strides=[2], pads=[1, 1]),
    case("ConvTranspose", draw(1, 2, 3, 3, 3), weight(2, 3, 2, 2, 2), strides=[2, 2, 2]),
    case("ConvTranspose", IMAGE, weight(4, 6, 3, 3), strides=[2, 2], pads=[0, 1, 2, 1]),
    case("MaxPool", IMAGE, kernel_shape=[2, 2], strides=[2, 2]),
    case("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4),
    case("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    case("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
    case("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_LOWER"),
    case("MaxPool", IMAGE, kernel_shape=[2, 2], dilations=[2, 2]),
    case("MaxPool", draw(1, 2, 9), kernel_shape=[3], strides=[2], pads=[1, 1]),
    case("MaxPool", draw(1, 2, 5, 5, 5), kernel_shape=[2, 2, 2]),
    case("MaxPool", ints(1, 2, 4, 4, d=np.uint8, lo=0), kernel_shape=[2, 2]),
    case("MaxPool", ints(1, 2, 4, 4, d=np.int8), kernel_shape=[2, 2], pads=[1] * 4),
    case("AveragePool", IMAGE, kernel_shape=[2, 2], strides=[2, 2]),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1] * 4),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1, pads=[1] * 4, count_include_pad=1),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
    case("AveragePool", draw(1, 2, 9), kernel_shape=[3]),
    case("AveragePool", draw(1, 2, 4, 4, 4), kernel_shape=[2] * 3),
    case("GlobalAveragePool", IMAGE),
    case("GlobalMaxPool", IMAGE),
    case("GlobalAveragePool", draw(1, 2, 9)),
    case("LpPool", IMAGE, kernel_shape=[2, 2]),
    case("GlobalLpPool", IMAGE),
    case("MatMul", X, draw(2, 4, 5)),
    case("MatMul", X, weight(4, 5)),
    case("MatMul", draw(4), weight(4, 5)),
    case("MatMul", X, draw(4)),
    case("MatMul", draw(2, 1, 3, 4), draw(5, 4, 6)),
    case("MatMul", draw(4), draw(4)),
    case("MatMul", ints(3, 4), constant(ints(4, 5))),
    case("MatMul", ints(3, 4, d=np.int32), ints(4, 5, d=np.int32)),
    case("MatMul", draw(3, 4, dtype=np.float64), draw(4, 5, dtype=np.float64)),
    case("MatMul", X.astype(np.float16), constant(draw(4, 5).astype(np.float16))),
    case("Gemm", draw(3, 4), weight(5, 4), weight(5), transB=1),
    case("Gemm", draw(4, 3), weight(4, 5), transA=1, alpha=0.5),
    case("Gemm", draw(3, 4), weight(4, 5), weight(3, 1), beta=2.0),
    case("Gemm", draw(3, 4), weight(4, 5), weight(1)),
    case("Gemm", draw(3, 4), draw(4, 5), draw(3, 5)),
    case("Gemm", draw(3, 4), weight(4, 5), constant(2.0, np.float32)),
]
CASES["resize"] = [
    case(
        "Resize",
        IMAGE,
        None,
        constant([1, 1, 2, 2], np.float32),
        mode=m,
        coordinate_transformation_mode=c,
        **({"nearest_mode": n} if m == "nearest" else {}),
    )
    for m, c, n in (
        ("nearest", "asymmetric", "floor"),
        ("nearest", "half_pixel", "round_prefer_floor"),
        ("nearest", "align_corners", "ceil"),
        ("linear", "half_pixel", ""),
        ("linear", "align_corners", ""),
        ("linear", "asymmetric", ""),
        ("linear", "pytorch_half_pixel", ""),
        ("cubic", "half_pixel", ""),
        ("cubic", "align_corners", ""),
    )
] + [
    case("Resize", IMAGE, None, None, constant([1, 4, 9, 5], np.int64), mode="linear"),
    case("Resize", IMAGE, None, constant([1, 1, 0.5, 0.5], np.float32), mode="nearest"),
    case("Resize", IMAGE, None, constant([1, 1, 1.7, 0.6], np.float32), mode="linear"),
    case("Resize", draw(1, 2, 8), None, constant([1, 1, 2], np.float32), mode="linear"),
    case("Resize", draw(1, 2, 3, 3, 3), None, constant([1, 1, 2, 2, 2], np.float32), mode="linear"),
    case(
        "Resize", IMAGE, None, constant([1, 1, 2, 2], np.float32), mode="cubic", cubic_coeff_a=-0.5, exclude_outside=1
    ),
]
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

CASES["quant"] = [
    case("QuantizeLinear", X, sc(0.05), constant(128, np.uint8)),
    case("QuantizeLinear", X, sc(0.05), constant(3, np.int8)),
    case("QuantizeLinear", X, sc(0.02)),
    case("QuantizeLinear", X, sc([0.1, 0.2, 0.3]), constant([1, 2, 3], np.int8), axis=1),
    case("QuantizeLinear", np.array([0.5, 1.5, 2.5, -0.5, -1.5, 300, -300], np.float32), sc(1.0), constant(0, np.int8)),
    case("DequantizeLinear", u8(3, 4), sc(0.05), constant(128, np.uint8)),
    case("DequantizeLinear", s8(3, 4), sc(0.05)),
    case("DequantizeLinear", constant(s8(4, 3, 2)), sc([0.1, 0.2, 0.3, 0.4]), constant([0, 0, 0, 0], np.int8), axis=0),
    case("DequantizeLinear", draw(4, dtype=np.int32, low=-99, high=99), sc(0.05)),
    case("DequantizeLinear", s8(2, 3), sc([0.1]), constant([2], np.int8)),
    case("DynamicQuantizeLinear", X, outputs=3),
    case("DynamicQuantizeLinear", np.abs(X) + 1, outputs=3),
    case("MatMulInteger", u8(3, 4), constant(s8(4, 5)), constant(128, np.uint8)),
    case("MatMulInteger", u8(2, 3, 4), constant(u8(4, 5, seed=2)), constant(12, np.uint8), constant(3, np.uint8)),
    case("MatMulInteger", u8(3, 4), constant(s8(4, 5)), np.array(7, np.uint8), constant([1, 2, 3, 4, 5], np.int8)),
    case("ConvInteger", u8(1, 4, 6, 6), constant(s8(8, 4, 3, 3)), constant(128, np.uint8), pads=[1] * 4),
    case("ConvInteger", u8(1, 4, 6, 6), constant(s8(4, 1, 3, 3)), constant(3, np.uint8), group=4, strides=[2, 2]),
    case("ConvInteger", u8(1, 4, 6, 6), constant(u8(8, 4, 3, 3)), np.array(3, np.uint8), constant(7, np.uint8)),
    case(
        "QLinearConv",
        u8(1, 4, 6, 6),
        sc(0.02),
        constant(128, np.uint8),
        constant(s8(8, 4, 3, 3)),
        sc(0.01),
        constant(0, np.int8),
        sc(0.2),
        constant(120, np.uint8),
        pads=[1] * 4,
    ),
    case(
        "QLinearConv",
        u8(1, 4, 6, 6),
        sc(0.02),
        constant(128, np.uint8),
        constant(s8(8, 4, 3, 3)),
        constant(draw(8, low=0.005, high=0.02)),
        constant(np.zeros(8, np.int8)),
        sc(0.2),
        constant(120, np.uint8),
        constant(draw(8, dtype=np.int32, low=-500, high=500)),
        pads=[1] * 4,
    ),
    case(
        "QLinearConv",
        u8(1, 4, 6, 6),
        sc(0.02),
        constant(128, np.uint8),
        constant(u8(4, 1, 3, 3)),
        sc(0.01),
        constant(100, np.uint8),
        sc(0.2),
        constant(120, np.uint8),
        group=4,
    ),
    case(
        "QLinearMatMul",
        u8(3, 4),
        sc(0.02),
        constant(128, np.uint8),
        constant(u8(4, 5, seed=3)),
        sc(0.01),
        constant(100, np.uint8),
        sc(0.05),
        constant(120, np.uint8),
    ),
    case(
        "QLinearMatMul",
        s8(3, 4),
        sc(0.02),
        constant(1, np.int8),
        constant(s8(4, 5, seed=3)),
        sc(0.01),
        constant(0, np.int8),
        sc(0.05),
        constant(-3, np.int8),
    ),
]
CASES["rnn"] = [
    recurrent("LSTM", 4),
    recurrent("LSTM", 4, "bidirectional"),
    recurrent("LSTM", 4, "reverse", bias=False, h0=False),
    recurrent("GRU", 3),
    recurrent("GRU", 3, "bidirectional", linear_before_reset=1),
    recurrent("GRU", 3, "reverse", h0=False, bias=False),
    recurrent("RNN", 1),
    recurrent("RNN", 1, "bidirectional", activations=["Relu", "Tanh"]),
    recurrent("LSTM", 4, outs=1),
]
CASES["misc"] = [
    case(
        "RoiAlign",
        IMAGE,
        constant([[0, 0, 4, 4], [1, 1, 5, 5]], np.float32),
        constant([0, 0], np.int64),
        output_height=2,
        output_width=2,
        spatial_scale=1.0,
        sampling_ratio=2,
    ),
    case("MaxRoiPool", IMAGE, constant([[0, 0, 0, 4, 4]], np.float32), pooled_shape=[2, 2]),
    case("GridSample", IMAGE, draw(1, 3, 3, 2, low=-1, high=1), opset=17),
    case("HannWindow", constant(10, np.int64)),
    case(
        "MelWeightMatrix",
        constant(8, np.int64),
        constant(16, np.int64),
        constant(8000, np.int64),
        constant(0.0, np.float32),
        constant(4000.0, np.float32),
    ),
    case("BitShift", ints(4, d=np.uint8, lo=0), constant(2, np.uint8), direction="LEFT"),
    case("MaxUnpool", draw(1, 1, 2, 2), constant(np.array([[[[0, 2], [9, 11]]]])), kernel_shape=[2, 2], strides=[2, 2]),
]

MICROSOFT = {"domain": "com.microsoft"}
QUANTISED = (u8(1, 4, 6, 6), sc(0.05), constant(120, np.uint8))
CASES["contrib"] = [
    case(
        "QLinearAdd",
        *QUANTISED,
        u8(4, 1, 1, seed=1),
        sc(0.02),
        constant(3, np.uint8),
        sc(0.08),
        constant(7, np.uint8),
        **MICROSOFT,
    ),
    case(
        "QLinearMul",
        *QUANTISED,
        u8(1, 4, 6, 6, seed=1),
        sc(0.02),
        constant(3, np.uint8),
        sc(0.1),
        constant(90, np.uint8),
        **MICROSOFT,
    ),
    case("QLinearSigmoid", *QUANTISED, sc(1 / 256), constant(0, np.uint8), **MICROSOFT),
    case("QLinearLeakyRelu", *QUANTISED, sc(0.04), constant(9, np.uint8), alpha=0.2, **MICROSOFT),
    case("QLinearGlobalAveragePool", *QUANTISED, sc(0.04), constant(100, np.uint8), **MICROSOFT),
    case("QLinearAveragePool", *QUANTISED, sc(0.04), constant(100, np.uint8), kernel_shape=[2, 2], **MICROSOFT),
    case(
        "QLinearConcat",
        sc(0.06),
        constant(99, np.uint8),
        *QUANTISED,
        u8(1, 2, 6, 6),
        sc(0.03),
        constant(5, np.uint8),
        axis=1,
        **MICROSOFT,
    ),
    case(
        "QGemm",
        u8(3, 4),
        sc(0.05),
        constant(120, np.uint8),
        constant(s8(5, 4)),
        sc(0.02),
        constant(0, np.int8),
        constant(ints(5, d=np.int32)),
        sc(0.2),
        constant(100, np.uint8),
        transB=1,
        **MICROSOFT,
    ),
    case("FusedMatMul", draw(2, 4, 3), draw(2, 4, 5), transA=1, alpha=0.5, **MICROSOFT),
    case("QuickGelu", X, **MICROSOFT),
    case("FastGelu", X, **MICROSOFT),
    case("BiasGelu", X, constant(draw(4)), **MICROSOFT),
    case("Gelu", X, **MICROSOFT),
    case("SkipLayerNormalization", X, draw(2, 3, 4, seed=1), constant(draw(4)), constant(draw(4, seed=2)), **MICROSOFT),
    case("SkipSimplifiedLayerNormalization", X, draw(2, 3, 4, seed=1), constant(draw(4)), **MICROSOFT),
    case(
        "MatMulNBits",
        draw(3, 40),
        constant(u8(5, 2, 16)),
        constant(draw(5, 2)),
        N=5,
        K=40,
        bits=4,
        block_size=32,
        **MICROSOFT,
    ),
    case(
        "MatMulNBits",
        draw(3, 40),
        constant(u8(5, 2, 16)),
        constant(draw(5, 2)),
        constant(u8(5, 1)),
        N=5,
        K=40,
        bits=4,
        block_size=32,
        **MICROSOFT,
    ),
]

CACHE = draw(2, 3, 6, 4)
CASES["accumulation"] = [
    case("CumSum", X, np.array(1), reverse=1, opset=14),
    case("CumSum", X, np.array(-1, np.int32), exclusive=1, opset=14),
    case("CumSum", ints(2, 3, 4, d=np.int32), np.array(0), exclusive=1, reverse=1, opset=14),
    case("CumSum", draw(5), constant(0, np.int64), exclusive=1, reverse=1, opset=14),
]
CASES["remainder"] = [
    case("Mod", draw(20, low=-50, high=50), draw(20, low=0.1, high=5, seed=1), fmod=1),
    case(
        "Mod", np.array([1e30, -7, 5, 3.5, np.inf], np.float32), np.array([3, 2.5, -3, np.inf, 2], np.float32), fmod=1
    ),
    case("Mod", draw(8, dtype=np.float16), draw(8, dtype=np.float16, seed=4), fmod=1),
]
SINGULAR = np.stack([np.eye(4), np.zeros((4, 4)), np.fliplr(np.eye(4)), np.arange(16).reshape(4, 4)])
CASES["determinant"] = [
    case("Det", draw(3, 3)),
    case("Det", draw(4, 5, 2, 2)),
    case("Det", draw(2, 1, 1)),
    case("Det", draw(6, 6)),
    case("Det", SINGULAR.astype(np.float32)),
]
WINDOW = draw(1, 3, 7, 9)
CASES["places of maxima"] = [
    case("MaxPool", WINDOW, outputs=2, kernel_shape=[2, 2], strides=[2, 2]),
    case("MaxPool", WINDOW, outputs=2, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    case("MaxPool", WINDOW, outputs=2, kernel_shape=[3, 2], pads=[1, 0, 2, 1], strides=[2, 1], storage_order=1),
    case("MaxPool", WINDOW, outputs=2, kernel_shape=[2, 3], dilations=[2, 2], strides=[1, 2]),
    case("MaxPool", WINDOW, outputs=2, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    case("MaxPool", WINDOW, outputs=2, kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_UPPER"),
    case("MaxPool", WINDOW, outputs=2, kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_LOWER"),
    case("MaxPool", WINDOW, kernel_shape=[3, 2], strides=[2, 2], auto_pad="SAME_LOWER"),
    case("MaxPool", np.zeros((2, 2, 5), np.float32), outputs=2, kernel_shape=[3], pads=[1, 1]),
    case("MaxPool", draw(1, 2, 4, 5, 3), outputs=2, kernel_shape=[2, 2, 2]),
]
TAPS = weight(3, 2, 3, 3)
CASES["transposed by shape"] = [
    case("ConvTranspose", draw(1, 3, 4, 5), TAPS, strides=[3, 2], output_shape=[10, 8]),
    case("ConvTranspose", draw(1, 3, 4, 5), TAPS, strides=[3, 2], output_shape=[12, 9], output_padding=[1, 0]),
    case("ConvTranspose", draw(1, 3, 3, 3), TAPS, strides=[3, 2], output_shape=[10, 8]),
    case("ConvTranspose", draw(1, 3, 4, 5), TAPS, strides=[2, 2], auto_pad="SAME_UPPER"),
    case("ConvTranspose", draw(1, 3, 4, 5), TAPS, strides=[2, 2], auto_pad="SAME_LOWER"),
    case("ConvTranspose", draw(1, 3, 4, 5), TAPS, strides=[2, 2], output_shape=[8, 9], auto_pad="SAME_UPPER"),
    case("ConvTranspose", draw(1, 3, 4, 5), TAPS, strides=[2, 2], dilations=[2, 2], output_shape=[9, 10]),
    case("ConvTranspose", draw(1, 4, 6), weight(4, 1, 4), weight(2), strides=[2], group=2, output_shape=[11]),
]
STATISTICS = [constant(draw(3, seed=n, low=0.1)) for n in range(4)]
CASES["training"] = [
    case("BatchNormalization", draw(4, 3, 5, 2), *STATISTICS, training_mode=1, outputs=3, momentum=0.7),
    case("BatchNormalization", draw(4, 3), *STATISTICS, training_mode=1, outputs=3, epsilon=0.1),
]
CASES["fourier"] = [
    case("DFT", draw(2, 6, 1), axis=1),
    case("DFT", draw(2, 6, 2), axis=1, inverse=1),
    case("DFT", draw(2, 7, 4, 1), axis=1, onesided=1),
    case("DFT", draw(2, 7, 4, 2), constant(5, np.int64), axis=2),
    case("DFT", draw(2, 7, 4, 1), constant(11, np.int64), axis=1),
    case("DFT", draw(2, 6, 4, 2), None, constant(-2, np.int64), opset=20),
    case("DFT", draw(2, 6, 4, 1), constant(8, np.int64), constant(1, np.int64), opset=20, onesided=1),
]
CASES["columns to images"] = [
    case("Col2Im", draw(1, 5, 5), constant([5, 5], np.int64), constant([1, 5], np.int64), opset=18),
    case("Col2Im", draw(2, 18, 4), constant([5, 5], np.int64), constant([3, 3], np.int64), strides=[2, 2], opset=18),
    case("Col2Im", draw(1, 4, 5), constant([6, 6], np.int64), constant([2, 2], np.int64), dilations=[1, 5], opset=18),
    case("Col2Im", draw(2, 9, 15), constant([5, 5], np.int64), constant([3, 3], np.int64), pads=[0, 1, 0, 1], opset=18),
]
GRAMS = {"ngram_counts": [0, 4], "ngram_indexes": [0, 1, 2, 3, 4, 5, 6], "pool_int64s": [2, 3, 5, 4, 5, 6, 7, 8, 6, 7]}
CASES["n-grams"] = [
    case(
        "TfIdfVectorizer",
        tokens,
        mode=mode,
        max_gram_length=2,
        min_gram_length=least,
        max_skip_count=skip,
        **more,
        **GRAMS,
    )
    for mode in ("TF", "IDF", "TFIDF")
    for least, skip, more in ((1, 5, {}), (2, 0, {"weights": [0.5, 2.0, 1.0, 3.0, 0.25, 1.0, 2.0]}))
    for tokens in (np.array([1, 1, 3, 3, 3, 7, 8, 6, 7, 5, 6, 8], np.int32), np.array([[1, 3, 3, 7], [8, 6, 5, 6]]))
]
CASES["cache"] = [
    case("TensorScatter", CACHE, draw(2, 3, 2, 4, seed=1), np.array([1, 4]), opset=24),
    case("TensorScatter", CACHE, draw(2, 3, 2, 4, seed=1), np.array([1, 5]), mode="circular", opset=24),
    case("TensorScatter", CACHE, draw(2, 3, 2, 4, seed=1), opset=24),
]
CASES["rotation of short heads"] = [
    case(
        "RotaryEmbedding",
        draw(2, 3, 4 * size),
        draw(2, 3, size // 2),
        draw(2, 3, size // 2, seed=5),
        num_heads=4,
        opset=23,
    )
    for size in (4, 8, 16, 32)
]

TOKENS = ints(2, 5, d=np.int32, lo=0, hi=9)
CASES["joined"] = [
    case("FusedConv", IMAGE, weight(2, 4, 3, 3), weight(2), activation="Relu", **MICROSOFT),
    case("FusedConv", IMAGE, weight(2, 4, 3, 3), activation="LeakyRelu", activation_params=[0.1], **MICROSOFT),
    case("FusedConv", IMAGE, weight(2, 4, 3, 3), activation="Clip", activation_params=[-0.5, 0.5], **MICROSOFT),
    case(
        "FusedConv",
        IMAGE,
        weight(4, 4, 3, 3),
        weight(4),
        draw(1, 4, 6, 6, seed=8),
        pads=[1, 1, 1, 1],
        activation="Relu",
        **MICROSOFT,
    ),
    case("FusedGemm", draw(3, 4), weight(4, 5), weight(5), activation="Relu", **MICROSOFT),
    case("FusedGemm", draw(3, 4), weight(5, 4), weight(5), transB=1, alpha=0.5, activation="Tanh", **MICROSOFT),
    case(
        "EmbedLayerNormalization",
        TOKENS,
        ints(2, 5, d=np.int32, lo=0, hi=1),
        weight(10, 8),
        weight(6, 8),
        weight(2, 8),
        weight(8),
        weight(8),
        ints(2, 5, d=np.int32, lo=0, hi=1),
        outputs=2,
        **MICROSOFT,
    ),
    case(
        "EmbedLayerNormalization",
        TOKENS,
        None,
        weight(10, 8),
        weight(6, 8),
        None,
        weight(8),
        weight(8),
        outputs=2,
        **MICROSOFT,
    ),
]

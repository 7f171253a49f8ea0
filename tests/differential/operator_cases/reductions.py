"""Reductions, sorting and normalisations."""

from __future__ import annotations

import numpy as np

from tests.differential.operator_cases.values import IMAGE, REDUCTIONS, X, ints, u8
from tests.differential.operators import Case, case, constant, draw

CASES: dict[str, list[Case]] = {}
CASES["reduce"] = (
    [case(op, X, axes=[1], keepdims=keep) for op in REDUCTIONS for keep in (0, 1)]
    + [case("ReduceLogSum", np.abs(X), axes=[-1])]
    + [
        case("ReduceSum", X, constant([1, 2], np.int64), keepdims=0),
        case("ReduceSum", X),
        case("ReduceSum", X, noop_with_empty_axes=1),
        case("ReduceSum", ints(3, 4), constant([0], np.int64)),
        case("ReduceSum", X, constant([1], np.int64), keepdims=-1),
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

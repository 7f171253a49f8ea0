"""Operators that move values: gathers, scatters, changes of layout, casts."""

from __future__ import annotations

import numpy as np

from tests.differential.operator_cases.values import IMAGE, NEGATIVE, X, ints
from tests.differential.operators import Case, case, constant, draw

CASES: dict[str, list[Case]] = {}
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

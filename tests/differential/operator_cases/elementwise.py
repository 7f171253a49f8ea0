"""Elementwise operators: clipping, arithmetic, activations."""

from __future__ import annotations

import numpy as np

from tests.differential.operator_cases.values import IMAGE, X, ints, nz
from tests.differential.operators import Case, case, constant, draw

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
        case("Sign", np.array([0, 1, 200], np.uint8)),
        case("Equal", draw(3, dtype=bool), constant([True, False, True])),
        case("Not", draw(3, dtype=bool)),
        case("Xor", draw(3, dtype=bool), constant(True)),
        case("And", draw(3, dtype=bool), draw(3, 1, dtype=bool)),
        case("Div", X, constant(2.0, np.float32)),
        case("Div", X.astype(np.float16), constant(2.0, np.float16)),
    ]
)
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

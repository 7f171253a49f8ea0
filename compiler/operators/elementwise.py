"""Operators that compute each element from one, and casts."""

from __future__ import annotations

from typing import Any

from heterocc.compiler.operators.arithmetic import DENOMINATOR
from heterocc.compiler.operators.record import FIRST, MICROSOFT, RANGE, Operator, nothing, same_shape
from heterocc.compiler.symbolic.requirement import Needs

_POSITIVE = (0.05, 3.0)
_OF_SERIES = 8
"""Operations of a function that code computes by a polynomial."""
_OF_ACTIVATION = 10


def bias(needs: Needs) -> None:
    """BiasGelu and FastGelu: a number for each element of a row."""
    needs.shaped(1, [needs.size(0, -1)])


def limited(needs: Needs) -> None:
    """Clip and Dropout: two numbers beside the data."""
    needs.single(1, 2)


def _unary(name: str, **facts: Any) -> Operator:
    return Operator(name, needs=nothing, **facts)


OPERATORS = (
    _unary("Abs", magnitude="kept"),
    _unary("Neg", magnitude="kept"),
    _unary("Relu", magnitude="kept"),
    _unary("Sign", choice=0),
    *(_unary(name, choice=0) for name in ("Ceil", "Floor", "Round")),
    _unary("Exp", magnitude="risen", float32_results=RANGE, flops=_OF_SERIES),
    _unary("Log", intervals={0: _POSITIVE}, flops=_OF_SERIES),
    _unary("Sqrt", intervals={0: _POSITIVE}, flops=_OF_SERIES),
    _unary("Reciprocal", float32_results=RANGE, intervals={0: DENOMINATOR}, flops=_OF_SERIES),
    *(_unary(name, flops=_OF_SERIES) for name in ("Sin", "Cos", "Asinh", "Atan", "Tanh")),
    _unary("Tan", float32_results=RANGE, flops=_OF_SERIES),
    *(_unary(name, magnitude="risen", float32_results=RANGE, flops=_OF_SERIES) for name in ("Sinh", "Cosh")),
    _unary("Acos", intervals={0: (-0.95, 0.95)}, flops=_OF_SERIES),
    _unary("Asin", intervals={0: (-0.95, 0.95)}, flops=_OF_SERIES),
    _unary("Acosh", intervals={0: (1.05, 4.0)}, flops=_OF_SERIES),
    _unary("Atanh", intervals={0: (-0.9, 0.9)}, flops=_OF_SERIES),
    *(_unary(name, flops=_OF_ACTIVATION) for name in ("Erf", "Sigmoid", "Softplus", "Mish", "Gelu", "Elu", "Selu")),
    *(Operator(name, flops=_OF_ACTIVATION) for name in ("Swish", "Celu")),
    *(_unary(name, flops=2) for name in ("HardSigmoid", "HardSwish")),
    *map(_unary, ("IsInf", "IsNaN", "LeakyRelu", "Shrink", "Softsign", "ThresholdedRelu", "Not", "BitwiseNot")),
    Operator("Clip", needs=limited, between=True),
    Operator("Dropout", needs=limited, between=True, settings=True, flops=0, unread="ratio seed"),
    _unary("Cast", between=True, choice=0, flops=0, unread="to saturate"),
    _unary("CastLike", choice=0, flops=0, unread="saturate"),
    _unary("BitCast", unread="to"),
    _unary("Identity", moves=FIRST),
    *(_unary(name, domain=MICROSOFT, shapes=same_shape, flops=_OF_ACTIVATION) for name in ("Gelu", "QuickGelu")),
    *(
        Operator(name, MICROSOFT, shapes=same_shape, needs=bias, flops=_OF_ACTIVATION)
        for name in ("BiasGelu", "FastGelu")
    ),
)

"""Operators that compute each element from one, and casts."""

from __future__ import annotations

from typing import Any

from onnx import TensorProto

from heterocc.compiler.operators.containers import copied, open_copy, same_container
from heterocc.compiler.operators.elements.arithmetic import DENOMINATOR, POSITIVE
from heterocc.compiler.operators.record import FIRST, MICROSOFT, RANGE, Operator, nothing, same_shape
from heterocc.compiler.symbolic.comparisons import differ
from heterocc.compiler.symbolic.contents import array, by_element, each, same_contents
from heterocc.compiler.symbolic.fractions import cast_fractions, rounded, same_fractions
from heterocc.compiler.symbolic.given import Contents, Given
from heterocc.compiler.symbolic.integers import absolute, truth
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import larger, number, smaller

_OF_SERIES = 8
"""Operations of a function that code computes by a polynomial."""
_OF_ACTIVATION = 10


_NUMBERS = tuple(
    TensorProto.DataType.Value(name)
    for name in "INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64 FLOAT16 FLOAT DOUBLE".split()
)


def bias(needs: Needs) -> None:
    """BiasGelu and FastGelu: a number for each element of a row."""
    needs.shaped(1, [needs.size(0, -1)])


def limited(needs: Needs) -> None:
    """Clip and Dropout: two numbers beside the data."""
    needs.single(1, 2)


def _cast_contents(given: Given) -> Contents | None:
    found, dtype = given.contents[0], given.attribute("to", TensorProto.UNDEFINED)
    if found is not None and dtype == TensorProto.BOOL:
        return each(lambda e: truth(differ(e, number(0))), found)
    return found if dtype in _NUMBERS else None


def _clip_contents(given: Given) -> Contents | None:
    data = given.contents[0]
    for index, rule in ((1, larger), (2, smaller)):
        end = given.sizes(index) if given.has(index) else ()
        if data is None or end is None or given.opset < 11:
            return None
        if end:
            data = each(rule, data, array(end, ()))
    return data


def _unary(name: str, **facts: Any) -> Operator:
    return Operator(name, needs=nothing, **facts)


OPERATORS = (
    Operator("StringConcat", lengthens=True),
    _unary("Abs", positive=True, length="first", contents=by_element(absolute), magnitude="kept"),
    _unary("Neg", symbol="-", length="first", contents=by_element(lambda a: -a), magnitude="kept"),
    _unary("Relu", positive=True, magnitude="kept"),
    _unary("Sign", choice=0),
    # What is followed is whole.
    _unary("Ceil", contents=same_contents, fractions=rounded(up=True), choice=0),
    _unary("Floor", length="first", contents=same_contents, fractions=rounded(up=False), choice=0),
    _unary("Round", contents=same_contents, choice=0),
    _unary("Exp", positive=True, magnitude="risen", float32_results=RANGE, flops=_OF_SERIES),
    _unary("Log", intervals={0: POSITIVE}, flops=_OF_SERIES),
    _unary("Sqrt", intervals={0: POSITIVE}, flops=_OF_SERIES),
    _unary("Reciprocal", float32_results=RANGE, intervals={0: DENOMINATOR}, flops=_OF_SERIES),
    *(_unary(name, flops=_OF_SERIES) for name in ("Sin", "Cos", "Asinh", "Atan", "Tanh")),
    _unary("Tan", float32_results=RANGE, flops=_OF_SERIES),
    *(_unary(name, magnitude="risen", float32_results=RANGE, flops=_OF_SERIES) for name in ("Sinh", "Cosh")),
    _unary("Acos", intervals={0: (-0.95, 0.95)}, flops=_OF_SERIES),
    _unary("Asin", intervals={0: (-0.95, 0.95)}, flops=_OF_SERIES),
    _unary("Acosh", intervals={0: (1.05, 4.0)}, flops=_OF_SERIES),
    _unary("Atanh", intervals={0: (-0.9, 0.9)}, flops=_OF_SERIES),
    _unary("Sigmoid", positive=True, flops=_OF_ACTIVATION),
    *(_unary(name, flops=_OF_ACTIVATION) for name in ("Erf", "Softplus", "Mish", "Gelu", "Elu", "Selu")),
    *(Operator(name, flops=_OF_ACTIVATION, expanded=True) for name in ("Swish", "Celu")),
    Operator("SwiGLU", flops=_OF_ACTIVATION, expanded=True, stricter="alike"),
    _unary("HardSigmoid", positive=True, flops=2),
    _unary("HardSwish", flops=2),
    *map(_unary, ("IsInf", "IsNaN", "LeakyRelu", "Shrink", "Softsign", "BitwiseNot")),
    _unary("ThresholdedRelu", taken_over=10),
    _unary("Not", contents=by_element(lambda a: None if a.number is None else number(int(not a.number)))),
    Operator("Clip", contents=_clip_contents, needs=limited, between=True),
    Operator(
        "Dropout",
        needs=limited,
        training=2,
        scalars=(1, 2),
        between=True,
        settings=True,
        reads_reals=True,
        flops=0,
        unread="ratio seed",
    ),
    _unary(
        "Cast",
        casts=True,
        length="first",
        listed=True,
        contents=_cast_contents,
        fractions=cast_fractions,
        between=True,
        choice=0,
        flops=0,
        unread="to saturate",
    ),
    _unary("CastLike", casts=True, choice=0, flops=0, unread="saturate"),
    _unary("BitCast", unread="to"),
    _unary(
        "Identity",
        copies=True,
        holds=same_container,
        opens=open_copy,
        call=copied,
        length="first",
        contents=same_contents,
        fractions=same_fractions,
        moves=FIRST,
    ),
    *(_unary(name, domain=MICROSOFT, shapes=same_shape, flops=_OF_ACTIVATION) for name in ("Gelu", "QuickGelu")),
    *(
        Operator(name, MICROSOFT, shapes=same_shape, needs=bias, flops=_OF_ACTIVATION)
        for name in ("BiasGelu", "FastGelu")
    ),
)

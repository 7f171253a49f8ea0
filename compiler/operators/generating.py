"""Operators that read shapes, and that make tensors of numbers."""

from __future__ import annotations

from heterocc.compiler.operators.record import COUNTS, Operator, nothing
from heterocc.compiler.symbolic.given import Given, Shape
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size, larger, number


def numbered(needs: Needs) -> None:
    """Range: three numbers."""
    needs.single(0, 1, 2)


def _filled_shapes(given: Given) -> list[Shape] | None:
    found = given.elements(0)
    return None if found is None else [tuple(found)]


def _whole_constant(given: Given, index: int) -> list[Size] | None:
    """The element of a constant of one floating-point number, if that is whole."""
    array = given.constants[index] if index < len(given.constants) else None
    if array is None or array.size != 1 or array.dtype.kind != "f" or not float(array.flat[0]).is_integer():
        return None
    return [number(int(array.flat[0]))]


def _range_shapes(given: Given) -> list[Shape] | None:
    ends = [given.sizes(index) or _whole_constant(given, index) for index in range(3)]
    if any(end is None for end in ends):
        return None
    start, limit, delta = (end[0] for end in ends if end is not None)
    if delta.number is None or delta.number == 0:
        return None
    if delta.number < 0:
        start, limit, delta = limit, start, -delta
    whole = start.number == 0 and limit.text in given.dims
    length = limit if whole else larger(limit - start, number(0))
    return [(quotient(length + delta - number(1), delta),)]


OPERATORS = (
    Operator("Shape", needs=nothing, flops=0),
    Operator("Size", needs=nothing, flops=0),
    Operator("Constant", needs=nothing, flops=0),
    Operator("ConstantOfShape", shapes=_filled_shapes, needs=nothing, rank_from=(0,), settings=True, flops=0),
    Operator("EyeLike", needs=nothing, flops=0, unread="dtype"),
    Operator(
        "Range",
        shapes=_range_shapes,
        needs=numbered,
        settings=True,
        float32_results=COUNTS,
        flops=0,
        unread="stash_type",
    ),
)

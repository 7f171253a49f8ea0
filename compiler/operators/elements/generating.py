"""Operators that read shapes, and that make tensors of numbers."""

from __future__ import annotations

import numpy as np
import onnx

from heterocc.compiler.operators.record import COUNTS, MICROSOFT, Operator, Renamed, nothing, rank_of_result
from heterocc.compiler.symbolic.contents import array
from heterocc.compiler.symbolic.given import Contents, Given, Shape
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.requirement import Needs
from heterocc.compiler.symbolic.sizes import Size, larger, number, product_of


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


def _shape_contents(given: Given) -> Contents | None:
    shape = given.shape()
    if shape is None:
        return None
    part = list(shape)[slice(given.attribute("start", 0), given.attribute("end"))]
    return array(part, [len(part)])


def _size_contents(given: Given) -> Contents | None:
    shape = given.shape()
    if shape is None or any(d is None for d in shape):
        return None
    return array([product_of(d for d in shape if d is not None)], [])


def _filled_contents(given: Given) -> Contents | None:
    dims, value = given.numbers(0), given.attribute("value")
    fill = np.zeros(1, np.float32) if value is None else onnx.numpy_helper.to_array(value)
    if dims is None or fill.dtype.kind not in "iub":
        return None
    return array([number(int(fill.flat[0]))] * int(np.prod(dims, dtype=np.int64)), dims)


def _range_contents(given: Given) -> Contents | None:
    ends = [given.numbers(index) for index in range(3)]
    if any(end is None for end in ends):
        return None
    start, limit, delta = (end[0] for end in ends if end is not None)
    return array([number(n) for n in range(start, limit, delta)], [len(range(start, limit, delta))])


_RANGE_BY_ONE = """
    number = Constant <value = int64 {1}> ()
    one = CastLike (number, start)
    result = Range (start, limit, one)
"""

OPERATORS = (
    Operator("Shape", length="rank", contents=_shape_contents, needs=nothing, flops=0),
    Operator("Size", length="one", contents=_size_contents, needs=nothing, flops=0),
    Operator("Constant", needs=nothing, flops=0, texts="value value_string value_strings"),
    Operator(
        "ConstantOfShape",
        fills=True,
        contents=_filled_contents,
        shapes=_filled_shapes,
        sized=True,
        needs=nothing,
        rank_from=(0,),
        length_from_ranks=rank_of_result,
        settings=True,
        flops=0,
    ),
    Operator("EyeLike", needs=nothing, flops=0, unread="dtype"),
    Operator(
        "Range",
        contents=_range_contents,
        shapes=_range_shapes,
        needs=numbered,
        scalars=range(3),
        settings=True,
        reads_reals=True,
        float32_results=COUNTS,
        flops=0,
        unread="stash_type",
    ),
    Operator(
        "Range",
        MICROSOFT,
        renamed=Renamed(
            "result = Range (start, limit, step)", ("start", "limit", "step"), since=15, without=_RANGE_BY_ONE
        ),
    ),
)

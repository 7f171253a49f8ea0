"""Fractions of sizes, which exporters compute as floating-point numbers before they round them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto

from heterocc.compiler.symbolic.given import Contents, Given
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.sizes import Size, number

_WHOLE = (TensorProto.INT32, TensorProto.INT64)
_MOST = 1 << 10
"""The largest divisor: of sizes below 2 ** 24 the quotients in float32 round as the exact ones do."""


@dataclass(frozen=True, slots=True)
class Fraction:
    """A size divided by a positive number."""

    above: Size
    below: int

    @property
    def depth(self) -> int:
        """How many quotients, minima and maxima are inside each other, as of a size."""
        return self.above.depth


Element = Size | Fraction | None


def are_whole(elements: Contents) -> bool:
    """Whether no element is a fraction."""
    return not any(isinstance(e, Fraction) for e in elements.flat)


def _each(rule: Callable[[Any], Element], data: Contents) -> Contents:
    found = np.empty(data.shape, object)
    for place in np.ndindex(data.shape):
        found[place] = rule(data[place])
    return found


def _fraction(above: Size, below: int) -> Element:
    whole = quotient(above, number(below))
    return whole if whole is not None and whole * number(below) == above else Fraction(above, below)


def _ratio(element: Element) -> tuple[Size, int] | None:
    """An element as a size and a divisor."""
    if element is None:
        return None
    return (element.above, element.below) if isinstance(element, Fraction) else (element, 1)


def _constant(given: Given, index: int) -> Contents | None:
    """A constant of one floating-point number that is a fraction of small numbers, as contents."""
    array = given.constants[index] if index < len(given.constants) else None
    if array is None or array.size != 1 or array.dtype.kind != "f" or not abs(float(array.flat[0])) <= _MOST:
        return None
    above, below = float(array.flat[0]).as_integer_ratio()
    found = np.empty(array.shape, object)
    found.flat[0] = _fraction(number(above), below) if below <= _MOST else None
    return found


def _by_element(
    rule: Callable[[tuple[Size, int], tuple[Size, int]], Element],
) -> Callable[[Given, Sequence[Contents | None]], Contents | None]:
    def apply(given: Given, read: Sequence[Contents | None]) -> Contents | None:
        known = [_constant(given, index) if data is None else data for index, data in enumerate(read)]
        if len(known) != 2 or known[0] is None or known[1] is None:
            return None
        pairs = np.broadcast(known[0], known[1])
        found = np.empty(pairs.shape, object)
        for place, (one, other) in zip(np.ndindex(pairs.shape), pairs, strict=True):
            left, right = _ratio(one), _ratio(other)
            found[place] = None if left is None or right is None else rule(left, right)
        return found

    return apply


def _sum(sign: int) -> Callable[[tuple[Size, int], tuple[Size, int]], Element]:
    def rule(left: tuple[Size, int], right: tuple[Size, int]) -> Element:
        above = left[0] * number(right[1]) + right[0] * number(sign * left[1])
        return _fraction(above, left[1] * right[1])

    return rule


def _product(left: tuple[Size, int], right: tuple[Size, int]) -> Element:
    return _fraction(left[0] * right[0], left[1] * right[1])


def _quotient(left: tuple[Size, int], right: tuple[Size, int]) -> Element:
    by = right[0].number
    if not by or abs(by) > _MOST:
        return None
    return _fraction(left[0] * number(right[1] if by > 0 else -right[1]), left[1] * abs(by))


def rounded(*, up: bool) -> Callable[[Given, Sequence[Contents | None]], Contents | None]:
    """A rule for fractions that are rounded up or down to whole numbers."""

    def apply(_given: Given, read: Sequence[Contents | None]) -> Contents | None:
        def whole(element: Element) -> Element:
            if isinstance(element, Fraction):
                return quotient(element.above + number(element.below - 1 if up else 0), number(element.below))
            return element

        return None if read[0] is None else _each(whole, read[0])

    return apply


def cast_fractions(given: Given, read: Sequence[Contents | None]) -> Contents | None:
    """Towards zero, which is downwards for what is not negative."""
    data, dtype = read[0], given.attribute("to", TensorProto.UNDEFINED)
    if data is None or dtype in (TensorProto.FLOAT, TensorProto.DOUBLE):
        return data
    if dtype not in _WHOLE:
        return None
    if any(isinstance(e, Fraction) and (e.above.least is None or e.above.least < 0) for e in data.flat):
        return None
    return rounded(up=False)(given, read)


def same_fractions(_given: Given, read: Sequence[Contents | None]) -> Contents | None:
    """The elements of the first input, perhaps in another shape."""
    return read[0]


SUM = _by_element(_sum(1))
DIFFERENCE = _by_element(_sum(-1))
PRODUCT = _by_element(_product)
QUOTIENT = _by_element(_quotient)

"""Integers that are followed element by element, as sizes, and rules that compute with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from heterocc.compiler.symbolic.given import Contents, Given
from heterocc.compiler.symbolic.sizes import Size, named, number

MOST_ELEMENTS = 64
"""The most elements of a value whose contents are followed; shapes and indices have fewer."""

Rule = Callable[[Given], Contents | None]


def as_contents(constant: np.ndarray) -> Contents | None:
    """The contents of a constant; None unless it consists of few integers or truth values."""
    if constant.dtype.kind not in "iub" or constant.size > MOST_ELEMENTS:
        return None
    return array([number(int(e)) for e in constant.flat], constant.shape)


def array(elements: Sequence[Size | None], shape: Sequence[int]) -> Contents:
    """Contents of this shape, whose elements are listed in row-major order."""
    found = np.empty(len(elements), object)
    found[:] = elements
    return found.reshape(tuple(shape))


def array_of(found: Any) -> Contents:
    """Contents, of a scalar too."""
    return found if isinstance(found, np.ndarray) else array([found], [])


def each(rule: Callable[..., Size | None], *arrays: Contents) -> Contents:
    """A rule applied to each element of arrays that are broadcast; None where one of them is not known."""

    def known(*elements: Size | None) -> Size | None:
        return None if any(e is None for e in elements) else rule(*elements)

    return array_of(np.frompyfunc(known, len(arrays), 1)(*arrays))


def same_contents(given: Given) -> Contents | None:
    """The contents of the first input, perhaps in another shape."""
    return given.contents[0]


def by_element(rule: Callable[..., Size | None]) -> Rule:
    """A rule for an operator that computes each element of its result from one of each input."""

    def apply(given: Given) -> Contents | None:
        arrays = [c for c in given.contents if c is not None]
        return each(rule, *arrays) if len(arrays) == len(given.contents) else None

    return apply


def comparison(rule: Callable[[Size, Size], Size | None]) -> Rule:
    """A rule by element that knows of dimensions that they are not negative: exporters compare them with -1."""

    def apply(given: Given) -> Contents | None:
        def plain(size: Size) -> Size:
            return named(size.text) if size.number is None and size.text in given.dims else size

        def compared(left: Size, right: Size) -> Size | None:
            found = rule(left, right)
            if found is None and (left.number is not None or right.number is not None):
                found = rule(plain(left), plain(right))
            return found

        return by_element(compared)(given)

    return apply


def fold(rule: Callable[[Size, Size], Size | None]) -> Rule:
    """A rule for an operator of any number of inputs, which are combined one after the other."""

    def apply(given: Given) -> Contents | None:
        arrays = [c for c in given.contents if c is not None]
        if len(arrays) < len(given.contents):
            return None
        total = arrays[0]
        for other in arrays[1:]:
            total = each(rule, total, other)
        return total

    return apply

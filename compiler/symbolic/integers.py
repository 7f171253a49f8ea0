"""Operators on integers that are sizes: the results as sizes; None if they are not known for all names."""

from __future__ import annotations

from heterocc.compiler.symbolic.comparisons import differ
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.sizes import Compound, Size, number

_LARGE = 1 << 40
"""More than any dimension."""


def divided(left: Size, right: Size) -> Size | None:
    """The quotient of integers, which ONNX rounds towards zero; None if it is not whole and may be negative."""
    found = quotient(left, right)
    if found is None or found * right == left:
        return found
    # for what is not negative that is downwards
    return found if left.least is not None and left.least >= 0 else None


def truth(value: bool | None) -> Size | None:
    """A truth value as a number."""
    return None if value is None else number(int(value))


def above(left: Size, right: Size, *, equal: bool) -> Size | None:
    """Whether a size exceeds another one, or is `equal`; None if that is not the same for all names."""
    gap = left - right
    if gap.least is not None and gap.least >= (0 if equal else 1):
        return number(1)
    if (-gap).least is not None and ((-gap).least or 0) >= (1 if equal else 0):
        return number(0)
    return None


def equal(left: Size, right: Size) -> Size | None:
    """Whether sizes are equal; None if that is not the same for all names."""
    different = differ(left, right)
    return truth(None if different is None else not different)


def absolute(size: Size) -> Size | None:
    """The absolute value; None if the size may be negative."""
    return size if size.least is not None and size.least >= 0 else None


def is_rising(size: Size) -> bool:
    """Whether a size never becomes smaller if a name becomes larger, as far as its form shows it."""
    return all(count > 0 or not product for product, count in size.terms) and all(
        isinstance(atom, str) or _is_rising(atom) for product, _ in size.terms for atom in product
    )


def _is_rising(atom: Compound) -> bool:
    if atom.kind == "//":
        return is_rising(atom.left) and (atom.right.number or 0) > 0
    return is_rising(atom.left) and is_rising(atom.right)


def largest_within(size: Size, most: int) -> int | None:
    """The largest value of the only name of a rising size with which it is at most `most`; None if there is none."""
    (name,) = size.names
    if size.at({name: _LARGE}) <= most:
        return None
    low, high = 0, _LARGE
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if size.at({name: middle}) <= most else (low, middle)
    return low or None

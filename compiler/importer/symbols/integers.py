"""Operators on integers that are sizes: the results as sizes; None if they are not known for all names."""

from __future__ import annotations

from heterocc.compiler.importer.symbols.sizes import Size, differ, number, quotient


def divided(left: Size, right: Size) -> Size | None:
    """The quotient of integers, which ONNX rounds towards zero; None if the dividend may be negative."""
    # for what is not negative that is downwards
    return quotient(left, right) if left.least is not None and left.least >= 0 else None


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

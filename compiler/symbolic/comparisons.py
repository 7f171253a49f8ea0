"""What is known of sizes of named dimensions, beside each other and beside 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from heterocc.compiler.symbolic.sizes import Size

_MOST_TRIED = 4096
"""The sizes that are tried in search of the least possible one."""


def broadcast_size(one: Size | None, other: Size | None) -> Size | None:
    """The size of two dimensions that are broadcast with each other; None if it is not known."""
    if one is None or other is None:
        return None
    if one == other or other.number == 1:
        return one
    if one.number == 1:
        return other
    for size in (one, other):
        if size.number is not None and size.number > 1:
            return size  # the other one is 1 or equal
    return None


def differ(left: Size, right: Size) -> bool | None:
    """Whether two sizes are different for all sizes of the names: True, False if they are always equal, else None."""
    if left == right:
        return False
    gap = left - right
    for side in (gap, -gap):
        if side.least is not None and side.least > 0:
            return True
    return None


def is_positive_dimension(size: Size) -> bool:
    """Whether a dimension of this size is at least 1 in every run, as it depends on one name alone: see `least_sizes`.

    A size that is limited from below may be 0.
    """
    return len(size.names) == 1 and "max(" not in size.text


def least_sizes(sizes: Iterable[Size]) -> Mapping[str, int]:
    """The least size of each named dimension with which none of the sizes that depend on it alone is empty, if not 1.

    Windows of convolutions and pools need that many elements. Sizes that are limited from below may be 0.
    """
    alone: dict[str, list[Size]] = {}
    for size in sizes:
        if size.name is None and is_positive_dimension(size):
            (name,) = size.names
            alone.setdefault(name, []).append(size)
    return {name: _least_size(name, those) for name, those in alone.items()}


def _least_size(name: str, sizes: Sequence[Size]) -> int:
    return next((n for n in range(1, _MOST_TRIED) if all(s.at({name: n}) > 0 for s in sizes)), 1)

"""Checks of the dimensions of an input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heterocc.artifacts.errors import InputError, ShapeOptionError


def empty_at_fault(
    shapes: Mapping[str, Sequence[int]], error: InputError, dims: Mapping[str, int] | None = None
) -> ShapeOptionError | None:
    """The error for a model that is invalid for an empty input shape, or None if no given shape or size is empty.

    Empty inputs are legal (the past of a decoder's first step), but few models can compute with them.
    """
    empty = [f"dimension {list(shape).index(0)} of '{name}'" for name, shape in shapes.items() if 0 in shape]
    empty += [f"dimension '{name}'" for name, size in (dims or {}).items() if size == 0]
    if not empty:
        return None
    return ShapeOptionError(
        f"{empty[0]} is 0, and the model cannot compute with that: {error.message}",
        where=error.where,
        hint="give it a size of 1 or more",
    )

"""Checks of the dimensions of an input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heterocc.artifacts.errors import InputError, ShapeOptionError

MAX_ELEMENTS = 2**40
"""The largest number of elements of an input: 4 TiB of float32, more than any supported machine has."""


def check_dims(name: str, shape: Sequence[object], where: str, hint: str = "dimensions are whole numbers") -> None:
    """Raise ShapeOptionError (HC106), with the dimension, if an input cannot have this shape."""
    total = 1
    for index, dim in enumerate(shape):
        if not isinstance(dim, int) or isinstance(dim, bool):
            raise ShapeOptionError(
                f"dimension {index} of '{name}' is {dim!r}, which is not a whole number", where=where, hint=hint
            )
        if dim < 0:
            raise ShapeOptionError(f"dimension {index} of '{name}' is negative: {dim}", where=where, hint=hint)
        total *= max(dim, 1)
        if total > MAX_ELEMENTS:
            raise ShapeOptionError(
                f"dimension {index} of '{name}' is {dim}, which makes the input larger than {MAX_ELEMENTS} elements",
                where=where,
                hint=hint,
            )


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

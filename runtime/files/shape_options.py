"""Shapes and sizes of dimensions in the texts of options."""

from __future__ import annotations

from collections.abc import Sequence

from heterocc.artifacts.errors import ShapeOptionError

MAX_ELEMENTS = 2**40
"""The largest number of elements of an input: 4 TiB of float32, more than any supported machine has."""


def parse_shapes(options: list[str] | None) -> dict[str, tuple[int, ...]]:
    """Parse `--shape` options `NAME=1,3,224,224`. The name may contain `=` and `:`; `NAME=` is a scalar.

    Raises ShapeOptionError (HC106) for malformed text.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for option in options or ():
        name, sign, dims = option.rpartition("=")
        where = f"--shape {option}"
        if not sign or not name:
            raise ShapeOptionError(
                f"'{option}' is not of the form NAME=1,3,224,224", where=where, hint="dimensions are integers"
            )
        listed = [d.strip() for d in dims.strip("[]() ").replace("x", ",").split(",") if d.strip()]
        for index, text in enumerate(listed):
            if not (text.isascii() and text.isdigit() and len(text) < 20):
                raise ShapeOptionError(
                    f"dimension {index} of '{name}' cannot be '{text[:40]}'",
                    where=where,
                    hint="dimensions are integers, 0 or more",
                )
        shape = tuple(int(text) for text in listed)
        check_dims(name, shape, where)
        if name in shapes:
            raise ShapeOptionError(f"input '{name}' is given twice", where=f"--shape {option}")
        shapes[name] = shape
    return shapes


def parse_dims(options: list[str] | None) -> dict[str, int]:
    """Parse `--dim` options `NAME=8`. Raises ShapeOptionError (HC106) for malformed text."""
    found: dict[str, int] = {}
    for option, (name, size) in zip(options or (), parse_sizes(options).items(), strict=True):
        if isinstance(size, tuple):
            raise ShapeOptionError(
                f"dimension '{name}' cannot be '{size[0]}..{size[1]}' here",
                where=f"--dim {option}",
                hint="give one size; bounds are for compiling",
            )
        found[name] = size
    return found


def parse_sizes(options: list[str] | None) -> dict[str, int | tuple[int, int]]:
    """Parse `--dim` options `NAME=8` or `NAME=1..64`. Raises ShapeOptionError (HC106) for malformed text."""
    dims: dict[str, int | tuple[int, int]] = {}
    for option in options or ():
        name, sign, text = option.rpartition("=")
        where = f"--dim {option}"
        if not sign or not name:
            raise ShapeOptionError(
                f"'{option}' is not of the form NAME=8", where=where, hint="a name and a whole number, or bounds: 1..64"
            )
        numbers = [part.strip() for part in text.split("..")]
        if len(numbers) > 2 or not all(n.isascii() and n.isdigit() and len(n) < 20 for n in numbers):
            raise ShapeOptionError(
                f"dimension '{name}' cannot be '{text[:40]}'",
                where=where,
                hint="sizes are whole numbers, 0 or more, and bounds two of them: 1..64",
            )
        if name in dims:
            raise ShapeOptionError(f"dimension '{name}' is given twice", where=where)
        dims[name] = int(numbers[0]) if len(numbers) == 1 else (int(numbers[0]), int(numbers[1]))
    return dims


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

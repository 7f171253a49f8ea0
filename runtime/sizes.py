"""The sizes that dynamic dimensions of inputs may have."""

from __future__ import annotations

import math
from collections.abc import Sequence

from heterocc.artifacts.frozen import frozen
from heterocc.artifacts.manifest import ANY_SIZE, Range, Variant

Shape = tuple[int | str | None, ...] | None


@frozen
class Sizes:
    """The sizes of a dynamic dimension: those with code of their own, and any in a range."""

    values: tuple[int, ...] = ()
    range: Range | None = None

    def __contains__(self, size: int) -> bool:
        return size in self.values or (self.range is not None and size in self.range)

    def __str__(self) -> str:
        """`1 or 8`, `1 to 64`, `any size`, `a multiple of 32`."""
        if self.range is not None:
            return str(self.range)
        listed = list(map(str, self.values))
        return " or ".join([", ".join(listed[:-1]), listed[-1]] if len(listed) > 1 else listed)


@frozen
class Place:
    """A dimension of an input over all variants: a number if all agree, else its name or None.

    `sizes` is None for a number, and if any size is allowed.
    """

    dim: int | str | None
    sizes: Sizes | None


def input_places(variants: Sequence[Variant], place: int, declared: Shape) -> tuple[Place, ...] | None:
    """The dimensions of input number `place` of variants for several shapes; None if a rank is unknown.

    `declared` is the shape in the manifest's record of the model, which has the names.
    """
    shapes = [variant.values[variant.inputs[place]].shape for variant in variants]
    known = [shape for shape in shapes if shape is not None]
    if len(known) < len(shapes) or len({len(shape) for shape in known}) != 1:
        return None
    names = declared if declared is not None and len(declared) == len(known[0]) else (None,) * len(known[0])
    return tuple(
        _place([(variant, shape[index]) for variant, shape in zip(variants, known, strict=True)], names[index])
        for index in range(len(known[0]))
    )


def _place(found: Sequence[tuple[Variant, int | str | None]], name: int | str | None) -> Place:
    values = tuple(sorted({dim for _, dim in found if isinstance(dim, int)}))
    ranges = [variant.bounds.get(dim or "", ANY_SIZE) for variant, dim in found if not isinstance(dim, int)]
    if len(values) == 1 and not ranges:
        return Place(values[0], None)
    own = {dim for _, dim in found if isinstance(dim, str)}
    # Code for some sizes may have one name for dimensions that may differ in others: they are then not one dimension.
    label = own.pop() if len(own) == 1 else name if isinstance(name, str) else None
    if not ranges:
        return Place(label, Sizes(values))
    ends = [found.max for found in ranges if found.max is not None]
    most = max(ends) if len(ends) == len(ranges) else None
    whole = Range(min=min(r.min for r in ranges), max=most, step=math.gcd(*(r.step for r in ranges)))
    return Place(label, None if whole == ANY_SIZE else Sizes(values, whole))

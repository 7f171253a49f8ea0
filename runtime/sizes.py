"""The sizes that dynamic dimensions of inputs may have."""

from __future__ import annotations

import math
from collections.abc import Sequence

from heterocc.artifacts.frozen import frozen
from heterocc.artifacts.manifest import Variant

Shape = tuple[int | str | None, ...] | None


@frozen
class Sizes:
    """The sizes of a dynamic dimension: those in `values`, and any multiple of `step` from `minimum` to `maximum`.

    `values` are the sizes with code of their own. `minimum` is None if only these are allowed, `maximum` None if there
    is no limit.
    """

    values: tuple[int, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    step: int = 1

    def __contains__(self, size: int) -> bool:
        if size in self.values:
            return True
        if size % self.step:
            return False
        return self.minimum is not None and self.minimum <= size and (self.maximum is None or size <= self.maximum)

    def __str__(self) -> str:
        """`1 or 8`, `1 to 64`, `any size`, `a multiple of 32`."""
        listed = [str(value) for value in self.values if self.minimum is None]
        if self.minimum is not None and self.step > 1:
            low = self.minimum > self.step
            most = "" if self.maximum is None else f" to {self.maximum}" if low else f" up to {self.maximum}"
            least = f" from {self.minimum}" if low else ""
            listed.append(f"a multiple of {self.step}{least}{most}")
        elif self.minimum is not None and self.maximum is None:
            listed.append("any size" if self.minimum == 0 else f"{self.minimum} or more")
        elif self.minimum is not None:
            listed.append(f"{self.minimum} to {self.maximum}")
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
    ranges = [_range(variant, dim) for variant, dim in found if not isinstance(dim, int)]
    if len(values) == 1 and not ranges:
        return Place(values[0], None)
    own = next((dim for _, dim in found if isinstance(dim, str)), None)
    label = own if own is not None else name if isinstance(name, str) else None
    if not ranges:
        return Place(label, Sizes(values))
    least, ends = min(low for low, _, _ in ranges), [high for _, high, _ in ranges if high is not None]
    most = max(ends) if len(ends) == len(ranges) else None
    step = math.gcd(*(step for _, _, step in ranges))
    return Place(label, None if (least, most, step) == (0, None, 1) else Sizes(values, least, most, step))


def _range(variant: Variant, dim: str | None) -> tuple[int, int | None, int]:
    bounds = None if dim is None else variant.bounds.get(dim)
    return (0, None, 1) if bounds is None else (bounds.min, bounds.max, bounds.step)

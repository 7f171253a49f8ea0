"""Shapes in which sizes that only the run knows are those of others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from heterocc.compiler.symbolic.given import Shape
from heterocc.compiler.symbolic.sizes import Size


def alike(
    shapes: Sequence[Shape], equal: Iterable[Sequence[tuple[int, int]]], unknown: Collection[str]
) -> dict[int, tuple[Size, ...]]:
    """The shapes, by place, in which sizes of unknown names become those of others; empty if known ones differ.

    Each element of `equal` has the sizes that must be equal, as places of shapes and axes.
    """
    wanted = [[size for size in shape or () if size is not None] for shape in shapes]
    for places in equal:
        known = {wanted[place][axis] for place, axis in places if wanted[place][axis].names.isdisjoint(unknown)}
        if len(known) > 1:
            return {}
        first = wanted[places[0][0]][places[0][1]]
        for place, axis in places:
            wanted[place][axis] = next(iter(known), first)
    return {n: tuple(new) for n, (new, old) in enumerate(zip(wanted, shapes, strict=True)) if tuple(new) != old}

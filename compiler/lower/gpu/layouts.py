"""The layouts of repacked weights of GPU kernels in the form in which a bundle describes them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from heterocc.artifacts import manifest as m
from heterocc.compiler.lower.arranged import Axis, block, layout, strides_of
from heterocc.compiler.lower.gpu.contraction.filtering import Transformed
from heterocc.compiler.lower.gpu.packed import LanesLast, Layout


@functools.singledispatch
def layout_of(packing: Layout, shape: Sequence[int]) -> m.Layout | None:
    """What `packing.apply` does to a weight of `shape`; None if blocks cannot describe it."""
    return None


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """A block before its axes are joined; the axes of the source keep their numbers in `axes`."""

    axes: tuple[Axis, ...]
    numbers: tuple[int, ...]
    start: int
    to: int


def _lanes_last(packing: LanesLast, shape: Sequence[int]) -> tuple[tuple[int, ...], list[_Part]]:
    length, stride = shape[packing.axis], strides_of(shape)[packing.axis]
    others = [i for i in range(len(shape)) if i != packing.axis]
    groups = max(-(-length // packing.lanes), packing.least)
    packed = (groups, *(shape[i] for i in others), packing.lanes)
    to, strides = strides_of(packed), strides_of(shape)
    inside = tuple((shape[i], strides[i], to[1 + place]) for place, i in enumerate(others))
    parts = []
    for count, lanes, group in (
        (length // packing.lanes, packing.lanes, 0),
        (1, length % packing.lanes, length // packing.lanes),
    ):
        if count and lanes:
            axes = ((count, packing.lanes * stride, to[0]), *inside, (lanes, stride, 1))
            parts.append(
                _Part(axes, (packing.axis, *others, packing.axis), group * packing.lanes * stride, group * to[0])
            )
    return packed, parts


@layout_of.register
def _(packing: LanesLast, shape: Sequence[int]) -> m.Layout | None:
    packed, parts = _lanes_last(packing, shape)
    return layout(packed, [block(p.axes, p.start, p.to) for p in parts])


@layout_of.register
def _(packing: Transformed, shape: Sequence[int]) -> m.Layout | None:
    if len(shape) != 4 or tuple(shape[2:]) != (3, 3):
        return None
    weights = packing.filtering.weights
    planes = (len(weights) ** 2, *shape[:2])
    if packing.then is None:
        strides = strides_of(planes)
        packed: tuple[int, ...] = planes
        parts = [_Part(tuple((n, s, s) for n, s in zip(planes, strides, strict=True)), (0, 1, 2), 0, 0)]
    elif isinstance(packing.then, LanesLast) and packing.then.axis != 0:
        packed, parts = _lanes_last(packing.then, planes)
    else:
        return None
    blocks = []
    for part in parts:
        kept = [(n, 9 * s, t) for (n, s, t), number in zip(part.axes, part.numbers, strict=True) if number != 0]
        (step,) = (t for (_, _, t), number in zip(part.axes, part.numbers, strict=True) if number == 0)
        blocks.append(block(kept, 9 * part.start, part.to, step))
    return layout(packed, blocks, weights)

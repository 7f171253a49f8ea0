"""The layouts of packed weights of CPU kernels in the form in which a bundle describes them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from heterocc.artifacts.manifest import Block, Layout
from heterocc.compiler.lower.arranged import Axis, block, layout, strides_of
from heterocc.compiler.lower.cpu.generate.convolution.filtering.filtered import FilteredPanels
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.sizes import as_number


def layout_of(packing: object, shape: Sequence[int]) -> Layout | None:
    """What `packing.apply` does to a weight of `shape`; None if blocks cannot describe it."""
    if isinstance(packing, Panels):
        return _of_panels(packing)
    return _of_filtered(packing, shape) if isinstance(packing, FilteredPanels) else None


def _of_panels(packing: Panels) -> Layout | None:
    if packing.group > 1:
        return None
    strides = strides_of(packing.shape)
    axes = [(packing.shape[i], strides[i]) for i in packing.order]
    outer, rest = _first(axes, packing.outer)
    terms, places = _first(rest, packing.steps)
    step = _step(places)
    if step is None:
        return None
    blocks: list[Block] = []
    first = 0
    for run in packing.runs:
        width, count, begin = run.size * packing.lanes, as_number(run.count), as_number(run.start)
        sizes = packing.steps * width
        around = [*_grown(outer, packing.block), *_grown(terms, width)]
        whole = max(0, min(count, (packing.places // packing.lanes - begin) // run.size))
        if whole:
            tiles: Axis = (whole, width * step, sizes)
            start = begin * packing.lanes * step
            blocks.append(block([*around[: len(outer)], tiles, *around[len(outer) :], (width, step, 1)], start, first))
        for number in range(whole * run.size, count * run.size):
            # A vector that would reach beyond the end starts earlier.
            column = min((begin + number) * packing.lanes, max(packing.places - packing.lanes, 0))
            tile, place = divmod(number, run.size)
            lanes = min(packing.lanes, packing.places)
            to = first + tile * sizes + place * packing.lanes
            blocks.append(block([*around, (lanes, step, 1)], column * step, to))
        first += count * sizes
    return layout((packing.size,), blocks)


def _of_filtered(packing: FilteredPanels, shape: Sequence[int]) -> Layout | None:
    outputs, inputs = shape[0], packing.panels.terms
    if packing.panels.lanes != 1 or packing.panels.vectors != outputs:
        return None
    blocks, planes = [], packing.filter.planes
    for run in packing.panels.runs:
        size, begin = run.size * inputs, as_number(run.start) * inputs
        axes = [(as_number(run.count), size * 9, planes * size), (inputs, 9, run.size), (run.size, inputs * 9, 1)]
        blocks.append(block(axes, begin * 9, planes * begin, size))
    return layout((packing.size,), blocks, packing.filter.weights)


def _first(axes: Sequence[tuple[int, int]], size: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The axes that together have `size` places, and those that follow."""
    count = next(i for i in range(len(axes) + 1) if math.prod(n for n, _ in axes[:i]) == size)
    return list(axes[:count]), list(axes[count:])


def _grown(axes: Sequence[tuple[int, int]], unit: int) -> list[Axis]:
    """Axes with their strides in the result, in which one place has `unit` elements."""
    inside = strides_of([n for n, _ in axes])
    return [(n, stride, unit * within) for (n, stride), within in zip(axes, inside, strict=True)]


def _step(axes: Sequence[tuple[int, int]]) -> int | None:
    """The stride of axes that are one, None if they are not."""
    several = [(n, stride) for n, stride in axes if n > 1]
    if any(a != m * b for (_, a), (m, b) in itertools.pairwise(several)):
        return None
    return several[-1][1] if several else 1

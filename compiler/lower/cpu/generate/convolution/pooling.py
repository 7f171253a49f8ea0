"""Generation of pooling as windows over planes. The order of additions differs from the sequential one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod

from tvm import tirx
from tvm.ir import TensorLoad
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.candidates import Done
from heterocc.compiler.lower.cpu.generate.convolution.form import ONE, Window, padding, read_window
from heterocc.compiler.lower.cpu.generate.convolution.planes import Line, PlaneWriter, Tasks, Tile, Windows
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import can_store
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, index, shape_of
from heterocc.compiler.lower.cpu.generate.read import Fold
from heterocc.compiler.lower.cpu.sizes import at_least, is_number, is_one, proved

MOST_TAPS = 16
"""The limit on unrolled taps of a row or column; longer windows are scheduled."""

MANY_TERMS = 8
"""The terms of a plane above which it is reduced: rows of 9 to 16 took two to four times as long as windows."""

TALL = 12
ROWS = 4
"""Rows of outputs of a tile, which share the combined taps of a row of inputs; by a stride they share few."""

WORK = 4
"""The cost of combining one value, in multiply-adds, for the division of work between threads."""


@dataclass(frozen=True, slots=True)
class Pooling:
    """out[outer…, depth, row, column]: `data` is the argument's buffer. With the channels last, these are columns."""

    data: tirx.Buffer
    outer: Axis
    windows: Windows

    @property
    def is_reduction(self) -> bool:
        """Whether windows are so large and apart that vectors of outputs take longer than one of terms for each: those
        of all of a plane or row, of more than MANY_TERMS.
        """
        several = [w for w in self.windows.sides if w.taps > 1]
        return (
            all(is_one(w.places) and is_number(w.size) and w.taps == w.size for w in several)
            and self.windows.taps > MANY_TERMS
        )


def generate_pooling(kernel: Fold, isa: Isa) -> Done | None:
    """The kernel written as pooling, None if it is not a sum, maximum or minimum over windows."""
    pool = find_pooling(kernel)
    if pool is None or pool.is_reduction or kernel.takes_first or not can_store(kernel):
        return None
    if max(w.taps for w in pool.windows.sides) > MOST_TAPS:
        return None
    return emit.written(kernel, {}, _Writer(kernel, pool, isa).write), ()


def find_pooling(kernel: Fold) -> Pooling | None:
    """Read a kernel as pooling of up to three dimensions, or of up to two that channels follow."""
    found = (_pooling(kernel, after) for after in range(2))
    return next((pool for pool in found if pool is not None), None)


def _pooling(kernel: Fold, after: int) -> Pooling | None:
    """Pooling whose dimensions `after` others follow."""
    data, places, terms = kernel.value, kernel.places, kernel.terms
    outer, missing = len(places) - len(terms) - after, 3 - len(terms) - after
    if not isinstance(data, TensorLoad) or outer < 0 or missing < 0 or len(data.indices) != len(places):
        return None
    padded = padding(kernel, data, kernel.start)
    shape = None if padded is None else shape_of(padded[0])
    if padded is None or shape is None:
        return None
    source, before = padded
    last = len(places) - after
    others = (*range(outer), *range(last, len(places)))
    if any(before[d] or not data.indices[d].same_as(kernel.loops[places[d]]) for d in others):
        return None
    windows = [ONE] * missing
    for d, term in enumerate(terms, outer):
        window = read_window(kernel, data.indices[d], places[d], term, shape[d], before[d])
        if window is None or not is_number(window.taps) or not proved(at_least(window.reach, window.before)):
            return None
        windows.append(window)
    depth, down, across = windows + [Window(size, 0, 1, 1, 1, size) for size in shape[last:]]
    loops = (None, None, None)[:missing] + places[outer:]
    return Pooling(source, kernel.axis(places[:outer]), Windows(depth, down, across, loops))


class _Writer(PlaneWriter):
    """A generator of pooling: the taps of a row are combined first, then the rows."""

    def __init__(self, kernel: Fold, pool: Pooling, isa: Isa) -> None:
        maps, sides = pool.outer.length, pool.windows.sides
        work = WORK * maps * prod(w.places for w in sides) * sum(w.taps for w in sides)
        super().__init__(kernel, pool.data, pool.windows, isa, Tasks(maps, work), kernel.start)
        self.fold, self.outer = kernel, pool.outer
        if not self.by_taps:
            self.tall = TALL if self.across.stride == 1 else ROWS

    def each_plane(self, arguments: Arguments, number: tirx.Expr) -> Iterator[Place]:
        """The map of outputs of a map of inputs."""
        yield self.kernel.place(emit.split(self.outer, number))

    def _joined(self, values: Sequence[tirx.Expr]) -> tirx.Expr:
        """Numbers of several taps combined."""
        # Of a maximum, a NaN that comes first would hide others.
        first = self.fold.combine(self.padding, values[0]) if math.isinf(self.start) else values[0]
        return build.bind(reduce(self.fold.combine, values[1:], first))

    def add(self, tile: Tile, lines: Sequence[Line], deep: tirx.Expr) -> None:
        """Combine rows of inputs with the rows of outputs that they meet."""
        lanes, combine = self.lanes, self.fold.combine
        for inputs, meets in lines:
            for total, line in zip(tile.sums, inputs, strict=True):
                values = [line(tap) for tap in range(self.across.taps)]
                taken = values if len(meets) == 1 else [self._joined(values)]
                for row, _ in meets:
                    place = index(row * lanes)
                    emit.put(total, reduce(combine, taken, emit.vector(total, place, lanes)), place, lanes)

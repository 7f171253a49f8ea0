"""Generation of pooling in NCHW as windows over planes. The order of additions differs from the sequential one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from tvm import tirx
from tvm.ir import TensorLoad
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.divisors import with_tables
from heterocc.compiler.lower.cpu.generate.convolution.form import Window, padding, read_window
from heterocc.compiler.lower.cpu.generate.convolution.planes import Meets, Plane, PlaneWriter, Tasks, Tile, Values
from heterocc.compiler.lower.cpu.generate.cores import Core
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import can_store
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Axis, index, shape_of
from heterocc.compiler.lower.cpu.generate.read import Fold
from heterocc.compiler.lower.cpu.sizes import is_number

MOST_TAPS = 16
"""The limit on unrolled taps of a row or column; longer windows are scheduled."""

MANY_TERMS = 8
"""The terms of a plane above which it is reduced: rows of 9 to 16 took two to four times as long as windows."""

TALL = 12
"""Rows of outputs of a tile that are many: those share the combined taps of a row of inputs."""

WORK = 4
"""The cost of combining one value, in multiply-adds, for the division of work between threads."""


@dataclass(frozen=True, slots=True)
class Pooling:
    """out[outer…, row, column, after…]: `data` is the argument's buffer.

    `loops` are those over rows, of two dimensions, and columns.
    """

    data: tirx.Buffer
    outer: Axis
    rows: Window
    columns: Window
    loops: tuple[int, ...]
    after: Axis

    @property
    def is_reduction(self) -> bool:
        """Whether windows are so large and apart that vectors of outputs take longer than one of terms for each: those
        of all of a plane or row, of more than MANY_TERMS.
        """
        whole = all(w.places == 1 and w.taps == w.size for w in (self.rows, self.columns))
        return whole and self.rows.taps * self.columns.taps > MANY_TERMS


def generate_pooling(kernel: Fold, isa: Isa) -> tuple[tirx.PrimFunc, tuple[Panels, ...]] | None:
    """The kernel written as pooling, None if it is not a sum, maximum or minimum over windows."""
    pool = find_pooling(kernel)
    if pool is None or pool.is_reduction or not can_store(kernel):
        return None
    if max(pool.rows.taps, pool.columns.taps) > MOST_TAPS:
        return None
    return emit.written(kernel, {}, _Writer(kernel, pool, isa).write), ()


def find_pooling(kernel: Fold, after: int = 0) -> Pooling | None:
    """Read a kernel as pooling of one or two dimensions, which `after` others follow."""
    data, places, terms = kernel.value, kernel.places, kernel.terms
    outer = len(places) - len(terms) - after
    if not isinstance(data, TensorLoad) or len(terms) not in (1, 2) or outer < 0 or len(data.indices) != len(places):
        return None
    padded = padding(kernel, data, kernel.start)
    shape = None if padded is None else shape_of(padded[0])
    if padded is None or shape is None:
        return None
    source, before = padded
    others = [*range(outer), *range(outer + len(terms), len(places))]
    if any(before[d] or not data.indices[d].same_as(kernel.loops[places[d]]) for d in others):
        return None
    windows = [Window(1, 0, 1, 1, 1, 1)] if len(terms) == 1 else []
    for d, term in enumerate(terms, outer):
        window = read_window(kernel, data.indices[d], (places[d], term), (shape[d], before[d]))
        if window is None or not is_number(window.taps) or window.before > window.reach:
            return None
        windows.append(window)
    inner = places[outer : outer + len(terms)]
    rows, columns = windows
    after_ = kernel.axis(places[outer + len(terms) :])
    return Pooling(source, kernel.axis(places[:outer]), rows, columns, inner, after_)


class _Writer(PlaneWriter):
    """A generator of pooling: the taps of a row are combined first, then the rows."""

    def __init__(self, kernel: Fold, pool: Pooling, isa: Isa) -> None:
        loops = (pool.loops[0] if len(pool.loops) > 1 else None, pool.loops[-1])
        rows, columns, planes = pool.rows, pool.columns, pool.outer.length
        tasks = Tasks(planes, WORK * planes * rows.places * columns.places * (rows.taps + columns.taps))
        super().__init__(kernel, pool.data, rows, columns, isa, loops, tasks, kernel.start)
        self.fold, self.pool = kernel, pool
        self.rows_first = columns.stride > 1 and not self.is_long
        self.tall = TALL if self.is_long and self.tall > 1 else self.tall

    def fixed_tile(self, core: Core, vectors: int) -> tuple[int, int]:
        """Many rows without a stride: those of outputs share the combined taps of a row of inputs."""
        return (TALL, 1) if self.across.stride == 1 else super().fixed_tile(core, vectors)

    def kernel_of_task(self) -> Fold:
        """The kernel with tables of the divisors of means."""
        whole = -(-self.across.places // self.lanes) * self.lanes
        return with_tables(self.fold, whole, self.down.taps * self.across.taps)

    def each_plane(self, arguments: Arguments, number: tirx.Expr) -> Iterator[Plane]:
        """The plane of outputs of a plane of inputs."""
        begin = emit.bound(number * index(self.down.size * self.across.size))
        self.read.copy(begin)
        yield Plane(self.kernel.place(emit.split(self.pool.outer, number)), begin)

    def joined(self, values: Sequence[tirx.Expr]) -> tirx.Expr:
        """Numbers of several rows or taps combined."""
        # Of a maximum, a NaN that comes first would hide others.
        first = self.fold.combine(self.padding, values[0]) if math.isinf(self.start) else values[0]
        return build.bind(reduce(self.fold.combine, values[1:], first))

    def add(self, tile: Tile, inputs: Sequence[Values], meets: Meets) -> None:
        """Combine a row of inputs with the rows of outputs that it meets."""
        lanes, combine = self.lanes, self.fold.combine
        for total, given in zip(tile.sums, inputs, strict=True):
            if not (values := [value for value in given if value is not None]):
                continue
            values = values if len(meets) == 1 else [self.joined(values)]
            for row, _ in meets:
                place = index(row * lanes)
                emit.put(total, reduce(combine, values, emit.vector(total, place, lanes)), place, lanes)

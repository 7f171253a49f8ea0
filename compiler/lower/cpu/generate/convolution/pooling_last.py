"""Generation of pooling with the channels last: a window at a time, in vectors of neighbouring channels.

Taps outside the image are left out. The order of additions is the sequential one.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.convolution.form import Window
from heterocc.compiler.lower.cpu.generate.convolution.pooling import Pooling, find_pooling
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import can_store, store_tile
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Place, index, overlapping
from heterocc.compiler.lower.cpu.generate.read import Fold
from heterocc.compiler.lower.cpu.generate.tiles import Run, runs
from heterocc.compiler.lower.cpu.sizes import is_number

_MOST_TAPS = 36
"""The most taps of a window; larger ones are scheduled."""

_UNROLLED = 9
"""The most taps that are written one by one."""

_CHANNELS = 4
"""The fewest channels that make vectors."""


def generate_pooling_last(kernel: Fold, isa: Isa) -> tuple[tirx.PrimFunc, tuple[Panels, ...]] | None:
    """The kernel written as pooling with the channels last, None if it is not that of a sum, maximum or minimum."""
    pool = find_pooling(kernel, after=1)
    if pool is None or len(pool.loops) != 2 or not can_store(kernel):
        return None
    channels = pool.after.length
    if not is_number(channels) or channels < _CHANNELS or pool.rows.taps * pool.columns.taps > _MOST_TAPS:
        return None
    return emit.written(kernel, {}, _Writer(kernel, pool, isa).write), ()


class _Writer:
    """A generator of pooling with the channels last: rows of outputs are divided among threads."""

    def __init__(self, kernel: Fold, pool: Pooling, isa: Isa) -> None:
        self.kernel, self.pool = kernel, pool
        self.lanes = isa.lanes
        while self.lanes > pool.after.length:
            self.lanes //= 2
        vectors = -(-pool.after.length // self.lanes)
        self.runs = runs(vectors, isa.registers // 4)
        self.work = (pool.outer.length * pool.rows.places * pool.columns.places * pool.after.length) * (
            pool.rows.taps * pool.columns.taps
        )

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        pool = self.pool
        with emit.shared_loop(pool.outer.length * pool.rows.places, self.work) as task:
            plane, line = emit.unpacked(task, (pool.outer.length, pool.rows.places))
            outer = self.kernel.place(emit.split(pool.outer, plane))
            with emit.loop(pool.columns.places) as column, emit.loop(sum(r.count for r in self.runs)) as number:
                place = [*outer, *self.kernel.place(zip(pool.loops, (line, column), strict=True))]
                emit.either_run(
                    self.runs,
                    number,
                    lambda run: self._outputs(arguments, place, (plane, line, column), run, emit.start_of(run, number)),
                )

    def _outputs(
        self,
        arguments: Arguments,
        place: Place,
        spot: tuple[tirx.Expr, tirx.Expr, tirx.Expr],
        run: Run,
        first: tirx.Expr,
    ) -> None:
        """The outputs of neighbouring vectors of channels at a place, of which `first` is the number of the first."""
        pool, lanes, length = self.pool, self.lanes, self.pool.after.length
        starts = [overlapping((first + index(v)) * index(lanes), length, lanes) for v in range(run.size)]
        totals = [emit.registers(1, lanes) for _ in starts]
        for total in totals:
            emit.put(total, build.broadcast(tirx.const(self.kernel.start, "float32"), lanes), index(0), lanes)
        flat = arguments.flat(pool.data)

        def combine(at_row: tirx.Expr, at_column: tirx.Expr) -> None:
            pixel = (spot[0] * index(pool.rows.size) + at_row) * index(pool.columns.size) + at_column
            for total, start in zip(totals, starts, strict=True):
                value = emit.vector(flat, pixel * index(length) + start, lanes)
                emit.put(total, self.kernel.combine(emit.vector(total, index(0), lanes), value), index(0), lanes)

        self._over_taps(spot[1], spot[2], combine)
        store_tile(
            self.kernel,
            arguments,
            totals,
            1,
            lanes,
            lambda _, column, lane: [*place, (pool.after, starts[column] + lane)],
            lambda _: lanes,
        )

    def _over_taps(self, line: tirx.Expr, column: tirx.Expr, combine: Callable[[tirx.Expr, tirx.Expr], None]) -> None:
        """Call `combine` for the places of the taps in the image, of the output in a row and a column."""
        rows, columns = self.pool.rows, self.pool.columns
        corner = [emit.bound(_corner(w, n)) for w, n in ((rows, line), (columns, column))]

        def at(tap: tirx.Expr, other: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
            return corner[0] + tap * index(rows.dilation), corner[1] + other * index(columns.dilation)

        def every() -> None:
            if rows.taps * columns.taps <= _UNROLLED:
                for tap in range(rows.taps):
                    for other in range(columns.taps):
                        combine(*at(index(tap), index(other)))
            else:
                with emit.loop(rows.taps) as tap, emit.loop(columns.taps) as other:
                    combine(*at(tap, other))

        def some() -> None:
            with emit.loop(rows.taps) as tap, emit.loop(columns.taps) as other:
                where = at(tap, other)
                inside = [c for w, n in zip((rows, columns), where, strict=True) for c in (n >= 0, n < index(w.size))]
                with build.If(tirx.all(*inside)), build.Then():
                    combine(*where)

        checked = [(w, n) for w, n in zip((rows, columns), corner, strict=True) if not w.is_inside]
        conditions = [c for w, n in checked for c in (n >= 0, n + index(w.reach) < index(w.size))]
        if conditions:
            emit.either(tirx.all(*conditions), every, some)
        else:
            every()


def _corner(window: Window, place: tirx.Expr) -> tirx.Expr:
    """The place of the first tap of an output, which may be before the image."""
    return place * index(window.stride) - index(window.before)

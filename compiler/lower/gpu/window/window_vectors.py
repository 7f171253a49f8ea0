"""Windows on devices that run work items one after another on vector units: an item computes several rows of a plane.

It copies the elements that they read to private memory, with the border, and with columns a stride apart stored
contiguously. So the driver's compiler can vectorise its loops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from math import prod

from tvm import tirx

from heterocc.compiler.lower.gpu import nest
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.gpu.window.window import Windows
from heterocc.compiler.lower.kernels.choices import ranked

CACHED = 3072
"""The most elements of an item's copy, which should stay in the L1 cache, unless one row of outputs needs more."""

MOST_COPIED = 1 << 14
"""The most elements of an item's copy for which this schedule is used."""

WHOLE = 16
"""The outputs of a row that are computed in one short loop, which drivers unroll and vectorise."""

LONGEST = 128
"""The longest row in outputs whose loop drivers unroll by themselves."""

EVEN = 8
"""The vector width in columns: the outputs of rows of another length than its multiples are summed as one row."""

MOST_TAPS = 64
"""The most taps of a window, as they are unrolled."""


@dataclass(frozen=True, slots=True)
class Shape:
    """An item's shape: `rows` rows of outputs. Its copy has `height` rows of `stride` parts of `width` elements."""

    rows: int
    height: int
    width: int


def shape_of(windows: Windows, limits: Limits) -> Shape | None:
    """The shape for the kernel; None if this schedule does not suit it."""
    down, along = windows.sides
    if windows.steps > MOST_TAPS:
        return None
    width = (along.size - 1) * along.stride + along.window

    def height(rows: int) -> int:
        return (rows - 1) * down.stride + down.window

    rows = [n for n in range(1, down.size + 1) if down.size % n == 0]
    fitting = [n for n in rows if height(n) * width <= CACHED]
    best = max(fitting, default=1)
    if height(best) * width > MOST_COPIED:
        return None
    best = limits.choose("rows", ranked(best, fitting[-2:-5:-1]))
    return Shape(best, height(best), width)


@dataclass
class VectorWindowWriter:
    """Writes the kernel of one shape."""

    windows: Windows
    shape: Shape
    grid: int
    buffers: list[tirx.Buffer] = field(default_factory=list)

    def kernel(self, function: tirx.PrimFunc) -> tirx.PrimFunc:
        """The function with all its loops bound."""
        extents = [*self.windows.planes, self.windows.sides[0].size // self.shape.rows]
        count = prod(extents)

        def group(number: tirx.Expr) -> tirx.Stmt:
            inside = number < nest.index(count) if nest.beyond(count, self.grid) else None
            at = nest.split_index(number, extents)
            body = nest.named(at, lambda at: self._item(at[:-1], at[-1]))
            return nest.launch("threadIdx.x", 1, lambda _: nest.when(inside, body))

        return nest.kernel(function, self.buffers, nest.launch_groups(count, self.grid, group))

    def _item(self, plane: list[tirx.Expr], block: tirx.Expr) -> tirx.Stmt:
        shape, down = self.shape, self.windows.sides[0]
        copy = nest.add_part(self.buffers, shape.height * shape.width + WHOLE, str(self.windows.source.dtype))
        first = block * nest.index(shape.rows)
        top = first * nest.index(down.stride) - nest.index(down.before)
        return nest.sequence(
            [
                nest.loop("line", shape.height, lambda line: self._copied(copy, plane, top + line, line)),
                self._outputs(copy, plane, first),
            ]
        )

    def _copied(self, copy: tirx.Buffer, plane: list[tirx.Expr], source_row: tirx.Expr, line: tirx.Expr) -> tirx.Stmt:
        """Copy one row of the source, with the border's value outside it."""
        shape, (down, along) = self.shape, self.windows.sides
        dtype = str(self.windows.source.dtype)
        border = self.windows.border if self.windows.border is not None else tirx.const(0, dtype)
        start = min(shape.width, max(0, along.before))
        stop = min(shape.width, max(start, along.extent + along.before))

        def fill(place: tirx.Expr) -> tirx.BufferStore:
            return tirx.BufferStore(copy, border, [line * nest.index(shape.width) + place])

        def take(place: tirx.Expr) -> tirx.BufferStore:
            value = self.windows.source_at(plane, source_row, place - nest.index(along.before))
            return tirx.BufferStore(copy, value, [line * nest.index(shape.width) + place])

        inner = [*_span(0, start, fill), *_span(start, stop, take), *_span(stop, shape.width, fill)]
        outer = _span(0, shape.width, fill)
        top, bottom = -down.before, (down.size - 1) * down.stride + down.window - 1 - down.before
        tests = [source_row >= nest.index(0)] if top < 0 else []
        tests += [source_row < nest.index(down.extent)] if bottom >= down.extent else []
        if not tests:
            return nest.sequence(inner)
        return tirx.IfThenElse(tirx.all(*tests), nest.sequence(inner), nest.sequence(outer))

    def _outputs(self, copy: tirx.Buffer, plane: list[tirx.Expr], first: tirx.Expr) -> tirx.Stmt:
        """All outputs of the item.

        For stride 1 all rows are summed in one loop, including the elements between them, so that loops are long enough
        for vectors even if the plane is small.
        """
        shape, (down, along) = self.shape, self.windows.sides
        dtype = self.windows.accumulator.dtypes[0]
        if down.stride == along.stride == 1 and along.size % EVEN:
            steps = -(-(shape.rows * shape.width - (along.window - 1)) // WHOLE)
            sums = nest.add_part(self.buffers, steps * WHOLE, dtype)

            def summed(place: tirx.Expr) -> tirx.BufferStore:
                return tirx.BufferStore(sums, self._sum(copy, plane, nest.index(0), place), [place])

            def row_of(row: tirx.Expr) -> tirx.Stmt:
                def output(column: tirx.Expr) -> tirx.BufferStore:
                    return self.windows.store(plane, first + row, column, sums[row * nest.index(shape.width) + column])

                return nest.loop("column", along.size, output)

            return nest.sequence([_chunks(steps * WHOLE, summed), nest.loop("row", shape.rows, row_of)])
        total = nest.add_part(self.buffers, 1, dtype)

        def row_of_sums(row: tirx.Expr) -> tirx.Stmt:
            def output(column: tirx.Expr) -> tirx.Stmt:
                start = row * nest.index(down.stride)
                found = self._sum(copy, plane, start, column * nest.index(along.stride))
                return nest.sequence(
                    [
                        tirx.BufferStore(total, found, [nest.index(0)]),
                        self.windows.store(plane, first + row, column, total[nest.index(0)]),
                    ]
                )

            if along.size <= LONGEST:
                return nest.loop("column", along.size, output)
            return _chunks(along.size, output)

        return nest.loop("row", shape.rows, row_of_sums)

    def _sum(self, copy: tirx.Buffer, plane: list[tirx.Expr], line: tirx.Expr, place: tirx.Expr) -> tirx.Expr:
        """The result of the window that starts at a row and place of the copy."""
        windows, (down, along) = self.windows, self.windows.sides
        found = windows.accumulator.starts[0]
        for y, x in product(range(down.taps), range(along.taps)):
            row = (line + nest.index(y * down.dilation)) * nest.index(self.shape.width)
            element = copy[row + nest.index(x * along.dilation) + place]
            (found,) = windows.accumulator.merge((found,), (windows.term(plane, (y, x), element),))
        return found


def _span(start: int, stop: int, body: Callable[[tirx.Expr], tirx.Stmt]) -> list[tirx.Stmt]:
    """`body(i)` for `start` ≤ i < `stop`."""
    if start == stop:
        return []
    return [nest.loop("place", stop - start, lambda i: body(i + nest.index(start)))]


def _chunks(length: int, body: Callable[[tirx.Expr], tirx.Stmt]) -> tirx.Stmt:
    """`body(i)` for i below `length`, in short loops."""
    whole, rest = divmod(length, WHOLE)
    parts = []
    if whole:
        parts.append(
            nest.loop("chunk", whole, lambda c: nest.loop("lane", WHOLE, lambda i: body(c * nest.index(WHOLE) + i)))
        )
    if rest:
        parts.append(nest.loop("lane", rest, lambda i: body(nest.index(whole * WHOLE) + i)))
    return nest.sequence(parts)

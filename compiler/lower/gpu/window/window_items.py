"""Windows on GPUs: a work item computes a tile of neighbouring outputs from a patch that it reads once."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from math import prod

from tvm import tirx

from heterocc.compiler.lower.gpu import nest
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.gpu.window.window import Side, Windows
from heterocc.compiler.lower.kernels.choices import ranked

GROUP = 64
"""The work items of a group."""

BUSY = 1 << 15
"""The number of work items that keeps a GPU busy. Tiles are made smaller to have as many."""

PREFERRED = 4
"""The preferred number of outputs of a tile, among tiles of equal cost."""

MOST_TERMS = 256
"""The most taps of all outputs of a tile, as they are unrolled."""


def tile_of(windows: Windows, limits: Limits) -> tuple[int, int]:
    """The rows and columns of a tile.

    On GPUs neighbouring items read neighbouring columns, so tiles are one column wide, and as high as possible with
    enough items. On software devices, where loads are expensive, tiles are squares.
    """
    down, along = windows.sides
    most = MOST_TERMS // windows.steps
    if limits.software:
        sizes = [
            (rows, columns)
            for rows, columns in product(range(1, min(down.size, 8) + 1), range(1, min(along.size, 8) + 1))
            if rows * columns <= most
        ]
        best = min(sizes or [(1, 1)], key=lambda tile: (_cost(tile, windows), abs(prod(tile) - PREFERRED), tile))
        return limits.choose("tile", ranked(best, [t for t in ((1, 1), (2, 2), (1, 4), (4, 4)) if t in sizes]))
    fitting = [n for n in (1, 2, 4, 8) if n <= min(down.size, most)]
    heights = [n for n in (4, 2) if n in fitting and windows.outputs // n >= BUSY]
    return limits.choose("tile", ranked((heights[0] if heights else 1, 1), [(n, 1) for n in fitting]))


def _cost(tile: tuple[int, int], windows: Windows) -> float:
    """The number of elements read and stored per output that is needed."""
    read = prod(((n - 1) * s.stride + s.window) for n, s in zip(tile, windows.sides, strict=True))
    wanted = prod(s.size / -(-s.size // n) for n, s in zip(tile, windows.sides, strict=True))
    return (read + prod(tile)) / wanted


@dataclass
class ItemWriter:
    """Writes the kernel for one tile."""

    windows: Windows
    tile: tuple[int, int]
    limits: Limits
    buffers: list[tirx.Buffer] = field(default_factory=list)

    def kernel(self, function: tirx.PrimFunc) -> tirx.PrimFunc:
        """The function with all its loops bound."""
        tiles = [-(-s.size // n) for s, n in zip(self.windows.sides, self.tile, strict=True)]
        extents = [*self.windows.planes, *tiles]
        count = prod(extents)
        size = min(GROUP, self.limits.group, 1 << (count - 1).bit_length())
        groups = -(-count // size)
        partial = count % size != 0 or nest.beyond(groups, self.limits.grid)

        def group(number: tirx.Expr) -> tirx.Stmt:
            def item(place: tirx.Expr) -> tirx.Stmt:
                linear = number * nest.index(size) + place
                inside = linear < nest.index(count) if partial else None
                at = nest.split_index(linear, extents)
                return nest.when(inside, nest.named(at, lambda at: self._tile(at[:-2], at[-2], at[-1])))

            return nest.launch("threadIdx.x", size, item)

        body = nest.launch_groups(groups, self.limits.grid, group)
        return nest.kernel(function, self.buffers, body)

    def _tile(self, plane: list[tirx.Expr], tile_row: tirx.Expr, tile_column: tirx.Expr) -> tirx.Stmt:
        windows, (rows, columns) = self.windows, self.tile
        down, along = windows.sides
        first_row, first_column = tile_row * nest.index(rows), tile_column * nest.index(columns)
        down_taps, along_taps = _reach(down, rows), _reach(along, columns)
        dtype = windows.accumulator.dtypes[0]
        patch = nest.add_part(self.buffers, len(down_taps) * len(along_taps), str(windows.source.dtype))
        sums = nest.add_part(self.buffers, rows * columns, dtype)
        parts = []
        for (i, row), (j, column) in product(enumerate(down_taps), enumerate(along_taps)):
            element = self._element(plane, first_row, row, first_column, column)
            parts.append(tirx.BufferStore(patch, element, [nest.index(i * len(along_taps) + j)]))
        for i, j in product(range(rows), range(columns)):
            total = windows.accumulator.starts[0]
            for y, x in product(range(down.taps), range(along.taps)):
                row = down_taps.index(i * down.stride + y * down.dilation)
                column = along_taps.index(j * along.stride + x * along.dilation)
                element = patch[nest.index(row * len(along_taps) + column)]
                (total,) = windows.accumulator.merge((total,), (windows.term(plane, (y, x), element),))
            parts.append(tirx.BufferStore(sums, total, [nest.index(i * columns + j)]))
        for i, j in product(range(rows), range(columns)):
            row, column = first_row + nest.index(i), first_column + nest.index(j)
            store = windows.store(plane, row, column, sums[nest.index(i * columns + j)])
            inside = [
                at < nest.index(side.size)
                for at, side, n in ((row, down, rows), (column, along, columns))
                if side.size % n
            ]
            parts.append(nest.when(tirx.all(*inside) if inside else None, store))
        return nest.sequence(parts)

    def _element(
        self, plane: list[tirx.Expr], first_row: tirx.Expr, row: int, first_column: tirx.Expr, column: int
    ) -> tirx.Expr:
        """An element of the patch, or the border's value if it is outside the source."""
        windows = self.windows
        places, tests = [], []
        for first, at, side, n in zip((first_row, first_column), (row, column), windows.sides, self.tile, strict=True):
            place = first * nest.index(side.stride) + nest.index(at - side.before)
            last = (-(-side.size // n) - 1) * n * side.stride
            places.append(place)
            if at < side.before:
                tests.append(place >= nest.index(0))
            if last + at - side.before >= side.extent:
                tests.append(place < nest.index(side.extent))
        value = windows.source_at(plane, *places)
        if not tests:
            return value
        border = windows.border if windows.border is not None else tirx.const(0, str(windows.source.dtype))
        return tirx.if_then_else(tirx.all(*tests), value, border)


def _reach(side: Side, count: int) -> list[int]:
    """The indices, relative to the tile's first, of the elements that the windows of `count` outputs read."""
    return sorted({i * side.stride + tap * side.dilation for i in range(count) for tap in range(side.taps)})

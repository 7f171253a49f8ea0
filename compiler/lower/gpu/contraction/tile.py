"""The choice of the size of a work item's tile of outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heterocc.compiler.lower.gpu.groups import SIMD
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.kernels.choices import ranked

MOST_ROWS = 14
"""The most rows of a tile on CPUs. With more, the vector registers would not suffice for the operands."""

LATENCY = 8
"""The number of vector additions that a CPU has in flight. A tile with fewer rows is bound by their latency."""

ADDITION = 0.02
"""The cost of a multiply-add relative to a load, measured on lavapipe, where a load takes a branch per item."""

MOST_SIDE = 16
"""The largest side of a tile on any device, as the loops over its outputs are unrolled."""

GPU_GROUP = 64
"""The work items of a group on GPUs: one or two warps or wavefronts."""


@dataclass(frozen=True, slots=True)
class Tile:
    """The size of a work item's tile of outputs."""

    rows: int
    lanes: int

    def __str__(self) -> str:
        return f"{self.rows} x {self.lanes}"


def choose_tile(row_extent: int, lane_extent: int, others: int, limits: Limits, pads_lanes: bool) -> Tile:
    """The tile for axes of these extents; `others` is the number of outputs along all other axes.

    Lanes are a power of two, and divide their axis unless the weights can be padded. On CPUs there are enough rows to
    hide the latency of an addition; on GPUs the tile is that with the least work per output within the limits. Larger
    tiles are further options.
    """
    widths = [n for n in (16, 8, 4, 2, 1) if pads_lanes or lane_extent % n == 0]
    if limits.vectors:
        tiles = [Tile(rows, lanes) for lanes in widths for rows in range(1, MOST_ROWS + 1)]
        tiles.sort(key=lambda t: (_waste(t, row_extent, lane_extent) * _vector_cost(t), t.lanes, -t.rows))
        return limits.choose("tile", ranked(tiles[0], _spread(tiles, 1)))
    side, area = limits.tile
    tiles = [Tile(rows, lanes) for lanes in widths for rows in range(1, min(2 * side, MOST_SIDE) + 1)]
    tiles = [t for t in tiles if t.lanes <= 2 * side and t.rows * t.lanes <= min(4 * area, MOST_SIDE**2)]
    tiles.sort(key=lambda t: (_cost(t, row_extent, lane_extent, others), t.rows, t.lanes))
    model = next(t for t in tiles if max(t.rows, t.lanes) <= side and t.rows * t.lanes <= area)
    return limits.choose("tile", ranked(model, _spread(tiles, 1 if limits.software else 2)))


def _spread(tiles: Sequence[Tile], heights: int) -> list[Tile]:
    """The best tile for each number of lanes, and then that with half its rows, as tiles in between differ little."""
    found = []
    for lanes in dict.fromkeys(t.lanes for t in tiles):
        these = [t for t in tiles if t.lanes == lanes]
        for part in range(heights):
            found += [t for t in these if t.rows << part <= these[0].rows][:1]
    return found


def _cost(tile: Tile, row_extent: int, lane_extent: int, others: int) -> float:
    """Instructions per output on a GPU: loads and additions, including those for outputs beyond the end."""
    items = others * -(-row_extent // tile.rows)
    if items < GPU_GROUP // 2:  # then the items of a group differ in their lanes too
        items *= -(-lane_extent // tile.lanes)
    idle = multiple(items, SIMD) / items
    return _waste(tile, row_extent, lane_extent) * idle * (1 / tile.rows + 1 / tile.lanes + ADDITION)


def _vector_cost(tile: Tile) -> float:
    """Relative time per output on a CPU: the cost of narrow vectors, dependent additions, and loads."""
    return 16 / tile.lanes * max(1.0, LATENCY / tile.rows) * (1 + 1 / tile.rows)


def _waste(tile: Tile, row_extent: int, lane_extent: int) -> float:
    return multiple(row_extent, tile.rows) * multiple(lane_extent, tile.lanes) / (row_extent * lane_extent)


def multiple(extent: int, size: int) -> int:
    """`extent` rounded up to a multiple of `size`."""
    return -(-extent // size) * size

"""The schedule for convolutions and matrix products: each work item computes a tile of outputs in vector registers.

A tile is `rows` × `lanes` outputs. Lanes are along the axis that only the second operand has (output channels of a
convolution, columns of a product), so that one vector load of weights serves all rows, and each element of the first
operand is loaded once for all lanes. Weights in another layout are repacked when compiling.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from tvm import s_tir, tirx

from heterocc.compiler.lower.gpu.contraction.axes import (
    Axes,
    dtype_of,
    find_axes,
    flat_pixels,
    fuse_pixels,
    is_spatial,
    lane_axis,
    only_sum,
    split_groups,
)
from heterocc.compiler.lower.gpu.contraction.one_sided import schedule_one_sided
from heterocc.compiler.lower.gpu.contraction.padding import padded
from heterocc.compiler.lower.gpu.contraction.rotation import with_rotation
from heterocc.compiler.lower.gpu.contraction.tile import GPU_GROUP, Tile, choose_tile
from heterocc.compiler.lower.gpu.groups import MOST_IDLE, LostGuardError, bind_items, move_to, needs_guard
from heterocc.compiler.lower.gpu.inlining import broadens, inlined, store_of
from heterocc.compiler.lower.gpu.limits import GRID_DEPTH, Limits
from heterocc.compiler.lower.gpu.packed import LanesLast, Layouts, Packed
from heterocc.compiler.lower.gpu.plain import bind_block

if TYPE_CHECKING:
    from tvm.s_tir.schedule import LoopRV, SBlockRV


_FUNCTIONS = ("erf", "exp", "log", "pow", "sigmoid", "sin", "cos", "tanh")

UNROLLED_TAPS = 3
"""The largest extent of a sum's last axis that is unrolled, as neighbouring taps read the same elements."""

LEAST_VECTOR = 512
"""The least outputs of a product with a vector that give tiles for all cores. With fewer, the sums are divided."""


@dataclass(frozen=True, slots=True)
class _Nest:
    """The blocks of a kernel: the sum, its store, and the `others`, with the `kinds` of their loops."""

    schedule: s_tir.Schedule
    block: SBlockRV
    store: SBlockRV
    others: tuple[SBlockRV, ...]
    kinds: tuple[str, ...]


def schedule_contraction(function: tirx.PrimFunc, limits: Limits, packable: Collection[int] = ()) -> Packed | None:
    """The scheduled kernel; None if it is not a contraction of this form. `packable` are parameters to be repacked.

    Raises tvm's ScheduleError if a step does not apply; the caller then uses the plain schedule.
    """
    schedule = s_tir.Schedule(function)
    found = only_sum(schedule)
    if found is None:
        return None
    blocks, block = found
    split_groups(schedule, block)
    least = LEAST_VECTOR if limits.side_by_side else None
    if find_axes(schedule, block, least) is None:
        return schedule_one_sided(function, limits)
    before, after = inlined(schedule, blocks, block)
    if len(after) > 1:
        return None
    if after and _apart(schedule, block, after[0].block_rv, limits):
        before, after = [*before, *after], []  # the remaining blocks get separate work items
    store = store_of(schedule, block, after)
    fuse_pixels(schedule, block, store)
    axes = find_axes(schedule, block, least)
    if axes is None:
        return None
    nest = _Nest(schedule, block, store, tuple(b.block_rv for b in before), tuple(b.dom_kind() for b in before))
    fitted = _fitted(nest, axes, limits, packable)
    if fitted is None:
        return None
    nest, tile, layouts = fitted
    if not _scheduled(nest, axes, tile, limits):
        return None
    scheduled = nest.schedule.mod["main"]
    if limits.side_by_side:
        scheduled = with_rotation(scheduled, str(nest.schedule.get(nest.store).name_hint))
    scheduled = flat_pixels(scheduled)
    return Packed(scheduled.with_attrs(dict(function.attrs.items())), layouts)


def _apart(schedule: s_tir.Schedule, block: SBlockRV, after: SBlockRV, limits: Limits) -> bool:
    """Whether the block after a sum is better computed by separate work items."""
    return broadens(schedule, block, after) or (limits.side_by_side and _computes(schedule, after))


def _computes(schedule: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether a block calls mathematical functions, which take longer unrolled in a large tile than separately."""
    text = str(schedule.get(block).body)
    return any(f"T.{name}(" in text for name in _FUNCTIONS)


def _fitted(nest: _Nest, axes: Axes, limits: Limits, packable: Collection[int]) -> tuple[_Nest, Tile, Layouts] | None:
    """The nest with axes padded to multiples of the tile and weights with lanes last; the tile; and the new layouts."""
    function, schedule = nest.schedule.mod["main"], nest.schedule
    node = schedule.get(nest.block)
    weight = node.reads[axes.weight]
    rank = len(weight.region)
    parameter = next((i for i, p in enumerate(function.params) if p.name == weight.source.name), -1)
    packs = parameter in packable
    if axes.weight_axis != rank - 1 and not packs and limits.vectors:
        return None
    extents = {i: int(v.dom.extent) for i, v in enumerate(node.iter_vars)}
    shape = [int(n) for n in weight.source.shape]
    pads = packs and extents[axes.lane] == shape[axes.weight_axis]
    others = prod(e for i, e in extents.items() if is_spatial(node, i) and i not in (axes.row, axes.lane))
    reaches_beyond = pads or not (packs or limits.vectors)
    height = 1 if axes.row is None else extents[axes.row]
    tile = choose_tile(height, extents[axes.lane], others, limits, reaches_beyond)
    sizes = -(-height // tile.rows), -(-extents[axes.lane] // tile.lanes)
    rows, lanes = sizes if limits.vectors else _even(*sizes, others, reaches_beyond, limits)
    longer = {axes.lane: lanes * tile.lanes} | ({} if axes.row is None else {axes.row: rows * tile.rows})
    whole = longer[axes.lane] == extents[axes.lane]
    if any(longer[i] != extents[i] for i in longer):
        shape[axes.weight_axis] = longer[axes.lane]
        names = [str(schedule.get(b).name_hint) for b in (nest.block, nest.store, *nest.others)]
        schedule = s_tir.Schedule(padded(function, node, longer, {weight.source.name: tuple(shape)} if pads else {}))
        block, store, *before = (schedule.get_sblock(name) for name in names)
        nest = _Nest(schedule, block, store, tuple(before), nest.kinds)
    layouts: Layouts = ()
    # On a CPU with items in SIMD lanes weights are always repacked: an item that reads a column of a wide matrix would
    # touch a page per row.
    if packs and (axes.weight_axis != rank - 1 or not whole or limits.side_by_side):
        least = lanes if lanes * tile.lanes - extents[axes.lane] >= tile.lanes else 0
        layout = LanesLast(axes.weight_axis, tile.lanes, least)
        schedule.transform_layout(nest.block, ("read", axes.weight), layout.index_map(rank))
        layouts = ((parameter, layout),)
    return nest, tile, layouts


def _even(rows: int, lanes: int, others: int, pads_lanes: bool, limits: Limits) -> tuple[int, int]:
    """The numbers of tiles along rows and lanes, increased a little if this makes groups even and avoids a guard.

    A guard makes the sums conditional, and TVM cannot prove for all stores that the condition holds.
    """
    most = min(GPU_GROUP, limits.group)

    def even(rows: int, lanes: int) -> bool:
        shared = _shares_lanes(others * rows, lanes, limits)
        return not needs_guard(others * rows * (1 if shared else lanes), most)

    sizes = [
        (r, n)
        for r in range(rows, min(rows + most, int(rows * MOST_IDLE) + 1))
        for n in range(lanes, min(lanes + most, int(lanes * MOST_IDLE) + 1) if pads_lanes else lanes + 1)
        if r * n <= MOST_IDLE * rows * lanes
    ]
    return next((size for size in sorted(sizes, key=lambda s: (s[0] * s[1], s)) if even(*size)), (rows, lanes))


def _shares_lanes(tiles: int, lane_groups: int, limits: Limits) -> bool:
    """Whether there are enough `tiles` with the same lanes for a work group."""
    return tiles >= min(GPU_GROUP, limits.group) // 2 and lane_groups <= min(limits.grid, GRID_DEPTH)


def _scheduled(nest: _Nest, axes: Axes, tile: Tile, limits: Limits) -> bool:
    """Bind each tile to a work item; False if the stores of a partial group cannot be guarded."""
    schedule, block, store = nest.schedule, nest.block, nest.store
    node = schedule.get(block)
    written, rank = lane_axis(node.writes[0], node.iter_vars[axes.lane].var), len(node.writes[0].region)
    if written is None:
        return False
    if written != rank - 1:
        schedule.transform_layout(block, ("write", 0), _moved_last(written, rank))
    loops = list(schedule.get_loops(block))
    sums = [loops[i] for i in range(len(loops)) if not is_spatial(node, i)]
    outer = [loops[i] for i in range(len(loops)) if is_spatial(node, i) and i not in (axes.lane, axes.row)]
    lane_groups, lane = schedule.split(loops[axes.lane], factors=[None, tile.lanes])
    tiles, rows = outer, []
    if axes.row is not None:
        groups, row = schedule.split(loops[axes.row], factors=[None, tile.rows])
        tiles, rows = [*outer, groups], [row]
    schedule.reorder(lane_groups, *tiles, *sums, *rows, lane)
    item = _bind_tiles(schedule, lane_groups, tiles, limits)
    try:
        move_to(schedule, store, item)
    except LostGuardError:
        return False
    if not limits.vectors and 1 < int(schedule.get(sums[-1]).extent) <= UNROLLED_TAPS:
        schedule.unroll(sums[-1])
    for row in rows:
        schedule.unroll(row)
    schedule.vectorize(lane)  # before decompose_reduction, whose result TVM does not treat as a reduction
    start = schedule.decompose_reduction(block, sums[0])
    *_, row, lane = schedule.get_loops(start)
    if rows:
        schedule.unroll(row)
    schedule.vectorize(lane)
    whole = int(schedule.get(store).iter_vars[-1].dom.extent) % tile.lanes == 0
    _bind_store(schedule, store, item, tile.lanes if written == rank - 1 and whole else 0, limits)
    for copy, kinds in zip(nest.others, nest.kinds, strict=True):
        bind_block(schedule, copy, kinds, limits)
    return True


def _bind_tiles(schedule: s_tir.Schedule, lane_groups: LoopRV, others: list[LoopRV], limits: Limits) -> LoopRV:
    """Bind each tile to a work item; return the loop over the items of a group.

    On GPUs the items of a group have the same lanes if there are enough tiles, so that they read the same weights.
    """
    if limits.vectors:
        return bind_items(schedule, schedule.fuse(lane_groups, *others), 1, limits)
    most = min(GPU_GROUP, limits.group)
    tiles = prod(int(schedule.get(loop).extent) for loop in others)
    if not _shares_lanes(tiles, int(schedule.get(lane_groups).extent), limits):
        return bind_items(schedule, schedule.fuse(lane_groups, *others), most, limits)
    schedule.bind(lane_groups, "blockIdx.z")
    return bind_items(schedule, schedule.fuse(*others), most, limits)


def _bind_store(schedule: s_tir.Schedule, store: SBlockRV, item: LoopRV, contiguous: int, limits: Limits) -> None:
    """Unroll the stores of a tile, and vectorise the last loop if it has `contiguous` lanes (0 for none).

    On a CPU that runs items one after another the loops stay: its compiler keeps the sums in registers all the same,
    and takes ten times as long for a few hundred stores.
    """
    contiguous = contiguous if _takes_vectors(schedule.get(store)) else 0
    loops = list(schedule.get_loops(store))
    inner = loops[next(i for i, loop in enumerate(loops) if schedule.get(loop).same_as(schedule.get(item))) + 1 :]
    for index, loop in enumerate(inner):
        if index == len(inner) - 1 and contiguous > 1 and int(schedule.get(loop).extent) == contiguous:
            schedule.vectorize(loop)
        elif not limits.vectors:
            schedule.unroll(loop)


def _takes_vectors(node: s_tir.SBlock) -> bool:
    """Whether a block can be vectorised in OpenCL: without booleans, and without selections by conditions of another
    width."""
    dtypes = {dtype_of(region) for region in [*node.reads, *node.writes]}
    return len(dtypes) == 1 or ("bool" not in dtypes and "Select" not in str(node.body))


def _moved_last(axis: int, rank: int) -> tirx.IndexMap:
    """The index map that moves an axis to the end."""
    order = (*(i for i in range(rank) if i != axis), axis)
    return tirx.IndexMap.from_func(lambda *axes: tuple(axes[i] for i in order), ndim=rank)

"""The schedule for convolutions and matrix products: a tile of outputs per work item, its sums in vector registers.

A work item computes `rows` × `lanes` outputs. Lanes run along the axis that only the second operand has (output
channels of a convolution, columns of a product), so that one vector load of weights serves all rows and each element
of the first operand is loaded once, for all lanes. Weights whose layout does not fit are repacked when compiling.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm_ffi
from tvm import s_tir, sym, tirx
from tvm.s_tir.dlight.analysis import normalize_prim_func

from heterocc.compiler.lower.gpu.groups import LostGuardError, bind_items, move_to
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.gpu.packed import LanesLast, Layout, Packed
from heterocc.compiler.lower.gpu.plain import bind_block, branches

UNROLLED_TAPS = 3
"""Terms of a sum's last axis up to which it is written out: neighbouring taps read the same elements again."""

GPU_GROUP = 64
"""Work items of a group on GPUs: one or two of the hardware's own bundles."""


@dataclass(frozen=True, slots=True)
class _Axes:
    """Positions among the block's iterators; `weight` is the operand that has the lanes, on axis `weight_axis`."""

    lane: int
    row: int
    weight: int
    weight_axis: int


def schedule_contraction(function: Any, limits: Limits, packable: Collection[int] = ()) -> Packed | None:
    """The scheduled kernel, or None where it is no contraction of this form. `packable` are parameters that may change.

    Raises tvm's ScheduleError where a step does not apply; the caller falls back on the plain schedule.
    """
    schedule = s_tir.Schedule(function)
    blocks = normalize_prim_func(schedule)
    if blocks is None:
        return None
    sums = [b for b in blocks if "R" in b.dom_kind()]
    if len(sums) != 1 or any("O" in b.dom_kind() for b in blocks):
        return None
    block = sums[0].block_rv
    _split_groups(schedule, block)
    axes = _axes(schedule, block)
    if axes is None:
        return None
    around = _inlined(schedule, blocks, block)
    if len(around[1]) > 1:
        return None
    return _tiled(schedule, function, block, axes, around, limits, packable)


def _inlined(schedule: Any, blocks: list[Any], block: Any) -> tuple[list[Any], list[Any]]:
    """Inline around the sum: what remains before it (padding: a branch per load costs more) and after it."""
    place = next(i for i, b in enumerate(blocks) if b.block_rv.same_as(block))
    before = [b for b in blocks[:place] if branches(schedule, b) or not _try(schedule.compute_inline, b.block_rv)]
    after = list(blocks[place + 1 :])
    while len(after) > 1:
        inlined = next((b for b in after if _try(schedule.compute_inline, b.block_rv)), None)
        if inlined is None:
            break
        after.remove(inlined)
    return before, after


def _try(step: Any, block: Any) -> bool:
    try:
        step(block)
    except s_tir.ScheduleError:
        return False
    return True


def _split_groups(schedule: Any, block: Any) -> None:
    """Give a grouped convolution, whose operands share the output channel, an axis of groups and one inside them."""
    node = schedule.get(block)
    found: list[tuple[Any, int]] = []

    def visit(division: Any) -> None:
        if isinstance(division.a, tirx.Var) and isinstance(division.b, tirx.IntImm):
            found.append((division.a, int(division.b)))

    for region in node.reads:
        for axis in region.region:
            tvm_ffi.structural_walk(axis.min, [(tirx.FloorDiv, visit)], order="post")
    for place, var in enumerate(node.iter_vars):
        size = next((k for v, k in found if v.same_as(var.var)), 0)
        if size > 1 and int(var.dom.extent) % size == 0 and var.iter_type == tirx.IterVar.DataPar:
            schedule.transform_block_layout(block, _grouped(place, size, len(node.iter_vars)))
            return


def _grouped(place: int, size: int, rank: int) -> Any:
    def mapped(*axes: Any) -> tuple[Any, ...]:
        return (*axes[:place], axes[place] // size, axes[place] % size, *axes[place + 1 :])

    return tirx.IndexMap.from_func(mapped, ndim=rank)


def _axes(schedule: Any, block: Any) -> _Axes | None:
    """Which iterators become lanes and rows; None unless each of two operands has a spatial axis of its own."""
    node = schedule.get(block)
    if len(node.reads) != 2 or len(node.writes) != 1:
        return None
    if any(_dtype(r) not in ("float32", "float16") for r in [*node.reads, *node.writes]):
        return None
    spatial = [i for i, v in enumerate(node.iter_vars) if v.iter_type == tirx.IterVar.DataPar]
    used = [_variables(r, node) for r in node.reads]
    own = [
        [i for i in spatial if node.iter_vars[i].var in used[k] and node.iter_vars[i].var not in used[1 - k]]
        for k in (0, 1)
    ]
    if not own[0] or not own[1]:
        return None
    lane = own[1][-1]
    axis = _lane_axis(node.reads[1], node.iter_vars[lane].var)
    if axis is None:
        return None
    return _Axes(lane, own[0][-1], 1, axis)


def _variables(region: Any, node: Any) -> set[Any]:
    """The iterators that a region depends on once its indices are simplified."""
    analyzer = sym.Analyzer()
    for var in node.iter_vars:
        analyzer.bind(var.var, var.dom)
    return {v for axis in region.region for v in _variables_of(analyzer.simplify(axis.min))}


def _lane_axis(region: Any, var: Any) -> int | None:
    """The one axis of a region that the variable steps through one by one: indexed by it, or by it and its group."""
    used = [i for i, axis in enumerate(region.region) if var in _variables_of(axis.min)]
    if len(used) != 1:
        return None
    index = region.region[used[0]].min
    plain = isinstance(index, tirx.Var) or (
        isinstance(index, tirx.Add) and any(isinstance(t, tirx.Var) and t.same_as(var) for t in (index.a, index.b))
    )
    return used[0] if plain else None


def _variables_of(expr: Any) -> set[Any]:
    found: set[Any] = set()
    tvm_ffi.structural_walk(expr, [(tirx.Var, found.add)], order="post")
    return found


def _dtype(region: Any) -> str:
    dtype = region.source.dtype
    return str(getattr(dtype, "dtype", dtype))


def _tiled(
    schedule: Any,
    function: Any,
    block: Any,
    axes: _Axes,
    around: tuple[list[Any], list[Any]],
    limits: Limits,
    packable: Collection[int],
) -> Packed | None:
    node = schedule.get(block)
    extents = [int(v.dom.extent) for v in node.iter_vars]
    weight = node.reads[axes.weight]
    rank = len(weight.region)
    rows, lanes = _tile(extents[axes.row], extents[axes.lane], limits)
    layouts: list[tuple[int, Layout]] = []
    if axes.weight_axis != rank - 1:
        parameter = next((i for i, p in enumerate(function.params) if p.name == weight.source.name), None)
        if parameter is None or parameter not in packable or int(weight.source.shape[axes.weight_axis]) % lanes:
            return None
        layout = LanesLast(axes.weight_axis, lanes)
        schedule.transform_layout(block, ("read", axes.weight), layout.index_map(rank))
        layouts.append((parameter, layout))

    before, after = around
    lane_axis = _lane_axis(node.writes[0], node.iter_vars[axes.lane].var)
    if lane_axis is None:
        return None
    store = after[0].block_rv if after else schedule.cache_write(block, 0, "local")
    if after:
        schedule.set_scope(block, 0, "local")
    written = len(node.writes[0].region)
    if lane_axis != written - 1:
        schedule.transform_layout(block, ("write", 0), _permutation(_last(lane_axis, written)))

    loops = list(schedule.get_loops(block))
    sums = [loops[i] for i, v in enumerate(node.iter_vars) if v.iter_type == tirx.IterVar.CommReduce]
    outer = [
        loops[i]
        for i, v in enumerate(node.iter_vars)
        if v.iter_type == tirx.IterVar.DataPar and i not in (axes.lane, axes.row)
    ]
    lane_groups, lane = schedule.split(loops[axes.lane], factors=[None, lanes])
    row_groups, row = schedule.split(loops[axes.row], factors=[None, rows])
    schedule.reorder(lane_groups, *outer, row_groups, *sums, row, lane)
    item = _bind_tiles(schedule, lane_groups, [*outer, row_groups], limits)
    try:
        move_to(schedule, store, item)
    except LostGuardError:
        return None
    if not limits.vectors and 1 < int(schedule.get(sums[-1]).extent) <= UNROLLED_TAPS:
        schedule.unroll(sums[-1])
    schedule.unroll(row)
    schedule.vectorize(lane)  # before the next step: its result counts as no reduction any more
    start = schedule.decompose_reduction(block, sums[0])
    row, lane = schedule.get_loops(start)[-2:]
    schedule.unroll(row)
    schedule.vectorize(lane)
    _bind_store(schedule, store, item, lanes if lane_axis == written - 1 else 0)
    for info in before:
        bind_block(schedule, info.block_rv, info.dom_kind(), limits)
    return Packed(schedule.mod["main"].with_attrs(dict(function.attrs.items())), tuple(layouts))


def _bind_tiles(schedule: Any, lane_groups: Any, others: list[Any], limits: Limits) -> Any:
    """Give each tile a work item; gives the loop over the items of a group.

    On GPUs the items of a group share their lanes where there are enough tiles: what depends on lanes alone, the
    weights, is then the same for all of them.
    """
    if limits.vectors:
        return bind_items(schedule, schedule.fuse(lane_groups, *others), 1, limits)
    most = min(GPU_GROUP, limits.group)
    tiles = prod(int(schedule.get(loop).extent) for loop in others)
    if tiles < most // 2 or int(schedule.get(lane_groups).extent) > limits.grid:
        return bind_items(schedule, schedule.fuse(lane_groups, *others), most, limits)
    schedule.bind(lane_groups, "blockIdx.z")
    return bind_items(schedule, schedule.fuse(*others), most, limits)


def _bind_store(schedule: Any, store: Any, item: Any, contiguous: int) -> None:
    """Unroll the stores of a tile; vectorise them where `contiguous` lanes lie side by side in the output."""
    contiguous = contiguous if _takes_vectors(schedule.get(store)) else 0
    loops = list(schedule.get_loops(store))
    inner = loops[next(i for i, loop in enumerate(loops) if schedule.get(loop).same_as(schedule.get(item))) + 1 :]
    for index, loop in enumerate(inner):
        if index == len(inner) - 1 and contiguous > 1 and int(schedule.get(loop).extent) == contiguous:
            schedule.vectorize(loop)
        else:
            schedule.unroll(loop)


def _takes_vectors(node: Any) -> bool:
    """Whether OpenCL has vectors for what a block computes: not of booleans, nor choices by values of another width."""
    dtypes = {_dtype(region) for region in [*node.reads, *node.writes]}
    return len(dtypes) == 1 or ("bool" not in dtypes and "Select" not in str(node.body))


def _tile(row_extent: int, lane_extent: int, limits: Limits) -> tuple[int, int]:
    """Rows and lanes of a tile: divisors, so that no store needs a test.

    Lanes are a power of two. On CPUs rows are as many as hide the latency of an addition; on GPUs the tile is the one
    with the fewest loads per output that the limits allow.
    """
    widths = [n for n in (16, 8, 4, 2, 1) if lane_extent % n == 0]
    if limits.vectors:
        rows = _divisor(row_extent, 8)
        return (rows if rows >= 4 else _divisor(row_extent, 14)), widths[0]
    side, area = limits.tile
    tiles = [
        (rows, lanes)
        for lanes in widths
        for rows in range(1, side + 1)
        if row_extent % rows == 0 and lanes <= side and rows * lanes <= area
    ]
    return min(tiles, key=lambda tile: (1 / tile[0] + 1 / tile[1], tile))


def _divisor(extent: int, most: int) -> int:
    return max(n for n in range(1, most + 1) if extent % n == 0)


def _last(axis: int, rank: int) -> tuple[int, ...]:
    return (*(i for i in range(rank) if i != axis), axis)


def _permutation(order: tuple[int, ...]) -> Any:
    return tirx.IndexMap.from_func(lambda *axes: tuple(axes[i] for i in order), ndim=len(order))

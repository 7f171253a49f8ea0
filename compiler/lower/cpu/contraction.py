"""Convolutions and matrix products: a register tile of outputs, vectors along output channels, packed weights.

The block is C[…, v, …, m, …] += A[…] * B[…, v, …] with v in B and not in A (or only through a division, in grouped
convolution). B, a weight, is repacked at compile time to [v / T][other dimensions][T], so that T channels lie in a row.
A tile of `rows` values of m times T of v is accumulated in registers over all reduction loops.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from tvm import s_tir, tirx

from heterocc.compiler.lower.cpu.blocks import (
    BlockView,
    divisor_up_to,
    dtype_of,
    is_iters,
    itemsize,
    loads,
    uses,
    view,
)

if TYPE_CHECKING:
    from tvm.ir import TensorLoad
    from tvm.s_tir.schedule import SBlockRV


TILE_BYTES = 1024
"""The size in bytes below which code generation puts buffers on the stack, so that LLVM can keep them in registers."""

PARALLEL_WORK = 1 << 14


@dataclass(frozen=True, slots=True)
class Packing:
    """The layout [axis / tile][other dimensions][tile] of a weight argument."""

    argument: int
    axis: int
    tile: int

    @property
    def key(self) -> str:
        """A name for the layout."""
        return f"{self.axis}_{self.tile}"

    def apply(self, array: np.ndarray) -> np.ndarray:
        """The packed copy of a weight."""
        split = array.reshape(*array.shape[: self.axis], -1, self.tile, *array.shape[self.axis + 1 :])
        moved = np.moveaxis(split, (self.axis, self.axis + 1), (0, split.ndim - 1))
        return np.ascontiguousarray(moved)


@dataclass(frozen=True, slots=True)
class Contraction:
    """A block for this rule: loop indices of v and m, groups, and the weight's argument, None if B is not a weight."""

    block: BlockView
    vector: int
    row: int
    groups: int
    weight: TensorLoad
    weight_axis: int
    argument: int | None


@dataclass(frozen=True, slots=True)
class Tile:
    """Register tile: `rows` of m times `blocks` vectors of `lanes` channels."""

    rows: int
    blocks: int
    lanes: int

    @property
    def channels(self) -> int:
        """Output channels of a tile."""
        return self.blocks * self.lanes


def find_contraction(block: BlockView, func: tirx.PrimFunc, weights: Collection[int]) -> Contraction | None:
    """Read a block as a contraction; `weights` are the argument numbers that are parameters of the partition."""
    iters = block.iters
    value = block.store.value
    if block.block.init is None or not isinstance(value, tirx.Add) or not _is_zero(block.block.init.value):
        return None
    spatial = [i for i, kind in enumerate(block.kinds) if kind == "S"]
    if not block.is_reduction or not is_iters(block.store.indices, [iters[i] for i in spatial]):
        return None
    product = value.b
    while isinstance(product, tirx.Cast):
        product = product.value
    if not isinstance(product, tirx.Mul) or len(loads(product)) != 2:
        return None
    data, weight = (_single_load(product.a), _single_load(product.b))
    if data is None or weight is None:
        return None
    found = _vector_axis(block, data, weight, spatial)
    if found is None:
        return None
    vector, axis, groups = found
    rows = [i for i in spatial if i != vector and block.extents[i] > 1 and any(uses(x, iters[i]) for x in data.indices)]
    outer = [i for i in spatial if i != vector]
    if not outer:
        return None
    row = rows[-1] if rows else outer[-1]
    argument = next((n for n, p in enumerate(func.params) if p.same_as(weight.source)), None)
    if argument not in weights:
        argument = None
    if argument is None and axis != len(weight.indices) - 1:
        return None
    return Contraction(block, vector, row, groups, weight, axis, argument)


def choose_tile(found: Contraction, lanes: int) -> Tile | None:
    """The tile of a contraction for vectors of `lanes` float32, None if no vector fits the channels."""
    size = itemsize(dtype_of(found.block.store.value))
    return best_tile(found.block.extents[found.row], found.block.extents[found.vector] // found.groups, lanes, size)


def best_tile(row: int, channels: int, lanes: int, size: int = 4) -> Tile | None:
    """The tile that divides `row` and `channels` with the highest estimated rate, None if no vector fits the channels.

    The estimate counts cycles of one step of the reduction: two fused multiply-adds and two loads a cycle, and four
    cycles before an accumulator can be used again. Numbers have `size` bytes, vectors those of `lanes` float32.
    """
    lanes = max(1, lanes * 4 // size)
    registers = 28 if lanes * size == 64 else 12
    best: tuple[float, int, Tile] | None = None
    for width in range(2, lanes + 1):
        if channels % width:
            continue
        for blocks in range(1, 9):
            if channels % (width * blocks):
                continue
            for rows in range(1, registers // blocks + 1):
                if row % rows or rows * blocks * width * size >= TILE_BYTES:
                    continue
                cycles = max(rows * blocks / 2, (rows + blocks) / 2, 4.0)
                # Other widths are loaded and stored in pieces.
                whole = 1.0 if width & (width - 1) == 0 else 0.75
                rate = whole * rows * blocks * width / cycles
                if best is None or (rate, rows) > best[:2]:
                    best = (rate, rows, Tile(rows, blocks, width))
    return best[2] if best is not None else None


def schedule_contraction(
    sch: s_tir.Schedule, found: Contraction, tile: Tile, epilogue: SBlockRV | None
) -> Packing | None:
    """Schedule the block; `epilogue` is the block that consumes it element by element, None if there is none.

    Returns the packing of the weight.
    """
    block = found.block
    packing = None
    if found.argument is not None:
        packing = Packing(found.argument, found.weight_axis, tile.channels)
        sch.transform_layout(block.rv, _read_of(block, found.weight), _packed_index(found, tile.channels))
    if epilogue is None:
        epilogue = sch.cache_write(block.rv, 0, "global")
    spatial = [i for i, kind in enumerate(block.kinds) if kind == "S"]
    place = spatial.index(found.vector)
    rank = len(spatial)
    sch.transform_layout(block.rv, ("write", 0), lambda *i: [i[d] for d in range(rank) if d != place] + [i[place]])
    loops = dict(zip(spatial, sch.get_loops(epilogue), strict=True))
    vector, inner_vector = sch.split(loops[found.vector], [None, tile.channels])
    row, inner_row = sch.split(loops[found.row], [None, tile.rows])
    outer = [loops[i] for i in spatial if i not in (found.vector, found.row)]
    before = [loops[i] for i in spatial if i < found.vector and i != found.row]
    after = [lo for lo in outer if not any(lo.same_as(b) for b in before)]
    sch.reorder(*before, vector, *after, row, inner_row, inner_vector)
    sch.compute_at(block.rv, row, preserve_unit_loops=True)
    if block.work >= PARALLEL_WORK:
        sch.parallel(sch.fuse(*before, vector, *after) if before or after else vector)
    blocks, lane = sch.split(inner_vector, [None, tile.lanes])
    sch.vectorize(lane)
    sch.unroll(blocks)
    _schedule_inner(sch, found, tile)
    return packing


def _schedule_inner(sch: s_tir.Schedule, found: Contraction, tile: Tile) -> None:
    """The tile's loops inside the reduction, and its initialisation before."""
    block = found.block
    rank = len(block.kinds)
    inner = list(sch.get_loops(block.rv))[-rank:]
    reduction = [lo for lo, kind in zip(inner, block.kinds, strict=True) if kind == "R"]
    row, vector = inner[found.row], inner[found.vector]
    rest = [lo for i, lo in enumerate(inner) if block.kinds[i] == "S" and i not in (found.row, found.vector)]
    sch.reorder(*rest, *reduction, row, vector)
    blocks, lane = sch.split(vector, [None, tile.lanes])
    sch.vectorize(lane)
    sch.unroll(blocks)
    sch.unroll(row)
    init = sch.decompose_reduction(block.rv, reduction[0])
    init_loops = list(sch.get_loops(init))
    extents = [int(sch.get(lo).extent) for lo in init_loops]
    if extents[-1] == tile.lanes:
        for loop, extent in zip(init_loops[-3:-1], extents[-3:-1], strict=True):
            if extent > 1 and extent in (tile.rows, tile.blocks):
                sch.unroll(loop)


def _vector_axis(
    block: BlockView, data: TensorLoad, weight: TensorLoad, spatial: list[int]
) -> tuple[int, int, int] | None:
    """Loop index of v, the weight's dimension that is v alone, and the number of groups."""
    iters = block.iters
    for index in spatial:
        places = [d for d, x in enumerate(weight.indices) if x.same_as(iters[index])]
        if len(places) != 1 or block.extents[index] < 2:
            continue
        if any(uses(x, iters[index]) for d, x in enumerate(weight.indices) if d != places[0]):
            continue
        if not any(uses(x, iters[index]) for x in data.indices):
            return index, places[0], 1
        per_group = _group_size(data, iters[index])
        if per_group and per_group > 1 and block.extents[index] % per_group == 0:
            return index, places[0], block.extents[index] // per_group
    return None


def _group_size(data: TensorLoad, var: tirx.Var) -> int | None:
    """n if the data's indices contain `var` only as var // n; None otherwise."""
    sizes: set[int] = set()

    def check(expr: tirx.Expr) -> bool:
        if isinstance(expr, tirx.FloorDiv) and expr.a.same_as(var) and isinstance(expr.b, tirx.IntImm):
            sizes.add(int(expr.b))
            return True
        if isinstance(expr, tirx.Var):
            return not expr.same_as(var)
        if isinstance(expr, tirx.Add | tirx.Sub | tirx.Mul | tirx.FloorDiv | tirx.FloorMod):
            return check(expr.a) and check(expr.b)
        return isinstance(expr, tirx.IntImm)

    if not all(check(x) for x in data.indices):
        return None
    return sizes.pop() if len(sizes) == 1 else None


def _packed_index(found: Contraction, tile: int) -> Callable[..., list[tirx.Expr]]:
    axis, rank = found.weight_axis, len(found.weight.indices)

    def index_map(*i: tirx.Var) -> list[tirx.Expr]:
        return [i[axis] // tile, *(i[d] for d in range(rank) if d != axis), i[axis] % tile]

    return index_map


def _read_of(block: BlockView, load: TensorLoad) -> tuple[str, int]:
    for index, region in enumerate(block.block.reads):
        if region.source.same_as(load.source):
            return ("read", index)
    raise AssertionError("a block reads what it does not declare")


def _single_load(expr: tirx.Expr) -> TensorLoad | None:
    while isinstance(expr, tirx.Cast):
        expr = expr.value
    found = loads(expr)
    return expr if len(found) == 1 and found[0].same_as(expr) else None


def _is_zero(expr: tirx.Expr) -> bool:
    return isinstance(expr, tirx.FloatImm | tirx.IntImm) and float(expr.value) == 0.0


__all__ = [
    "Contraction",
    "Packing",
    "Tile",
    "choose_tile",
    "divisor_up_to",
    "find_contraction",
    "schedule_contraction",
    "view",
]

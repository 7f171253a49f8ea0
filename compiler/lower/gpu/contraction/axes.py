"""The axes of a contraction: the iterators that become the rows and lanes of a tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.dlight.analysis import normalize_prim_func

if TYPE_CHECKING:
    from tvm.ir import TensorLoad, TensorRegion
    from tvm.s_tir.dlight.analysis import SBlockInfo
    from tvm.s_tir.schedule import SBlockRV


@dataclass(frozen=True, slots=True)
class Axes:
    """The positions of lane and row among the block's iterators.

    `weight` is the operand that depends on the lane, along axis `weight_axis`. `row` is None for a product with a
    vector.
    """

    lane: int
    row: int | None
    weight: int
    weight_axis: int


def only_sum(schedule: s_tir.Schedule) -> tuple[list[SBlockInfo], SBlockRV] | None:
    """TVM's analysis of a kernel's blocks, and the block of its only sum; None if it has several, or opaque loops."""
    blocks = normalize_prim_func(schedule)
    if blocks is None:
        return None
    sums = [b for b in blocks if "R" in b.dom_kind()]
    if len(sums) != 1 or any("O" in b.dom_kind() for b in blocks):
        return None
    return blocks, sums[0].block_rv


def split_groups(schedule: s_tir.Schedule, block: SBlockRV) -> None:
    """Split the output channel of a grouped convolution, which both operands depend on, into group and channel."""
    node = schedule.get(block)
    found: list[tuple[tirx.Var, int]] = []

    def visit(division: tirx.FloorDiv) -> None:
        if isinstance(division.a, tirx.Var) and isinstance(division.b, tirx.IntImm):
            found.append((division.a, int(division.b)))

    for region in node.reads:
        for axis in region.region:
            tvm_ffi.structural_walk(axis.min, [(tirx.FloorDiv, visit)], order="post")
    for place, var in enumerate(node.iter_vars):
        size = next((k for v, k in found if v.same_as(var.var)), 0)
        fixed = isinstance(var.dom.extent, tirx.IntImm)
        if size > 1 and fixed and int(var.dom.extent) % size == 0 and var.iter_type == tirx.IterVar.DataPar:
            schedule.transform_block_layout(block, _grouped(place, size, len(node.iter_vars)))
            return


def _grouped(place: int, size: int, rank: int) -> tirx.IndexMap:
    def mapped(*axes: tirx.Var) -> tuple[tirx.Expr, ...]:
        return (*axes[:place], axes[place] // size, axes[place] % size, *axes[place + 1 :])

    return tirx.IndexMap.from_func(mapped, ndim=rank)


def find_axes(schedule: s_tir.Schedule, block: SBlockRV, least: int | None = None) -> Axes | None:
    """The iterators for lanes and rows; None unless each of two operands has a spatial axis that the other lacks.

    With `least`, a product with a vector is accepted too if it has at least so many outputs.
    """
    node = schedule.get(block)
    if len(node.reads) != 2 or len(node.writes) != 1:
        return None
    if any(dtype_of(r) not in ("float32", "float16") for r in [*node.reads, *node.writes]):
        return None
    own = operand_axes(node)
    if not own[1] or (not own[0] and least is None):
        return None
    lane = own[1][-1]
    if not own[0] and int(node.iter_vars[lane].dom.extent) < (least or 0):
        return None
    axis = lane_axis(node.reads[1], node.iter_vars[lane].var)
    if axis is None:
        return None
    return Axes(lane, own[0][-1] if own[0] else None, 1, axis)


def operand_axes(node: s_tir.SBlock) -> tuple[list[int], list[int]]:
    """The positions of the spatial iterators that only the first, and that only the second operand depends on."""
    spatial = [i for i, v in enumerate(node.iter_vars) if v.iter_type == tirx.IterVar.DataPar]
    used = [_variables(r, node) for r in node.reads]
    first, second = (
        [i for i in spatial if node.iter_vars[i].var in used[k] and node.iter_vars[i].var not in used[1 - k]]
        for k in (0, 1)
    )
    return first, second


def _variables(region: TensorRegion, node: s_tir.SBlock) -> set[tirx.Var]:
    """The iterators that a region depends on after simplification of its indices."""
    analyzer = sym.Analyzer()
    for var in node.iter_vars:
        analyzer.bind(var.var, var.dom)
    return {v for axis in region.region for v in variables_of(analyzer.simplify(axis.min))}


def lane_axis(region: TensorRegion, var: tirx.Var) -> int | None:
    """The axis of a region that is indexed by the variable with stride 1, alone or with its group."""
    used = [i for i, axis in enumerate(region.region) if var in variables_of(axis.min)]
    if len(used) != 1:
        return None
    index = region.region[used[0]].min
    plain = isinstance(index, tirx.Var) or (
        isinstance(index, tirx.Add) and any(isinstance(t, tirx.Var) and t.same_as(var) for t in (index.a, index.b))
    )
    return used[0] if plain else None


def variables_of(expr: tirx.Expr) -> set[tirx.Buffer | tirx.Var]:
    """The variables in an expression."""
    found: set[tirx.Buffer | tirx.Var] = set()
    tvm_ffi.structural_walk(expr, [(tirx.Var, found.add)], order="post")
    return found


def is_spatial(node: s_tir.SBlock, place: int) -> bool:
    """Whether an iterator of a block is one of its outputs' axes."""
    return bool(node.iter_vars[place].iter_type == tirx.IterVar.DataPar)


def dtype_of(region: TensorRegion) -> str:
    """The dtype of a region's buffer."""
    dtype = region.source.dtype
    return str(getattr(dtype, "dtype", dtype))


def fuse_pixels(schedule: s_tir.Schedule, block: SBlockRV, store: SBlockRV) -> None:
    """Fuse the last two axes if rows of the image need not be distinguished, as in 1 x 1 convolutions."""
    node, stored = schedule.get(block), schedule.get(store)
    spatial = [i for i, v in enumerate(node.iter_vars) if v.iter_type == tirx.IterVar.DataPar]
    rank, held = len(spatial), len(node.writes[0].region)
    if spatial != list(range(rank)) or rank < 2:
        return
    pixels, weights = [v.var for v in node.iter_vars[rank - 2 : rank]], _variables(node.reads[1], node)
    if not all(_ends_in(region, pixels, node) for region in (node.writes[0], node.reads[0])):
        return
    source = next(r for r in stored.reads if r.source.same_as(node.writes[0].source))
    if not _ends_in(source, [v.var for v in stored.iter_vars[-2:]], stored) or any(v in weights for v in pixels):
        return
    width = int(node.iter_vars[rank - 1].dom.extent)
    schedule.transform_block_layout(block, _joined(rank - 2, width, len(node.iter_vars)))
    schedule.transform_block_layout(store, _joined(len(stored.iter_vars) - 2, width, len(stored.iter_vars)))
    schedule.transform_layout(block, ("write", 0), _joined(held - 2, width, held))


def flat_pixels(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A scheduled function that addresses pixel p of an image by p instead of by row and column.

    TVM computes both with divisions for each load, and does not simplify them to p. This must be the last step: the
    index is correct for the memory, but not for the shape.
    """

    def joined(buffer: tirx.Buffer, indices: Sequence[tirx.Expr]) -> list[tirx.Expr] | None:
        if len(indices) < 2:
            return None
        row, place = indices[-2], indices[-1]
        width = int(buffer.shape[-1])
        if not (isinstance(row, tirx.FloorDiv) and isinstance(place, tirx.FloorMod)):
            return None
        if not (_is(row.b, width) and _is(place.b, width) and tvm_ffi.structural_equal(row.a, place.a)):
            return None
        return [*indices[:-2], tirx.IntImm(row.a.ty, 0), row.a]

    def load(found: TensorLoad) -> TensorLoad:
        indices = joined(found.source, found.indices)
        return found if indices is None else tirx.BufferLoad(found.source, indices)

    def store(found: tirx.BufferStore) -> tirx.BufferStore:
        indices = joined(found.buffer, found.indices)
        return found if indices is None else tirx.BufferStore(found.buffer, found.value, indices)

    return tvm_ffi.structural_map(function, [(ir.TensorLoad, load), (tirx.BufferStore, store)], order="post")


def _is(expr: tirx.Expr, value: int) -> bool:
    return isinstance(expr, tirx.IntImm) and int(expr) == value


def _ends_in(region: TensorRegion, variables: list[tirx.Var], node: s_tir.SBlock) -> bool:
    """Whether the last indices of a region are these variables, and they cover the buffer's last axes."""
    analyzer = sym.Analyzer()
    for var in node.iter_vars:
        analyzer.bind(var.var, var.dom)
    last = region.region[-len(variables) :]
    sizes = [int(v.dom.extent) for v in node.iter_vars if any(v.var.same_as(o) for o in variables)]
    return (
        len(last) == len(variables)
        and all(analyzer.simplify(axis.min).same_as(v) for axis, v in zip(last, variables, strict=True))
        and [int(n) for n in region.source.shape[-len(variables) :]] == sizes
    )


def _joined(place: int, width: int, rank: int) -> tirx.IndexMap:
    """The index map that fuses the axis at `place` with the next one, of extent `width`."""

    def mapped(*axes: tirx.Var) -> tuple[tirx.Expr, ...]:
        return (*axes[:place], axes[place] * width + axes[place + 1], *axes[place + 2 :])

    return tirx.IndexMap.from_func(mapped, ndim=rank)

"""Padding of a sum's axes to a multiple of the tile, for extents that tiles do not divide."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

from heterocc.compiler.lower.gpu.contraction.axes import variables_of

if TYPE_CHECKING:
    from tvm.ir import Range, TensorLoad, TensorRegion


def padded(
    function: tirx.PrimFunc, node: s_tir.SBlock, extents: Mapping[int, int], weights: Mapping[str, tuple[int, ...]]
) -> tirx.PrimFunc:
    """The function with longer axes for one of its blocks, which must write a temporary buffer.

    `extents` are the new extents by position of the iterator. Results beyond the end are not used. Reads beyond the end
    are clamped to the last element, so that a tile does not need a test. `weights` are parameters, by name, that get a
    longer shape instead.

    Raises tvm's ScheduleError if the block's reads cannot be kept in their buffers.
    """
    block = _longer(node, extents, weights)
    (loops,) = _found(function, s_tir.SBlockRealize, lambda r: r.block.same_as(node) and [*r.iter_values])
    sizes = [(loops[place], size) for place, size in extents.items()]
    result = node.writes[0].source
    shape = [int(n) for n in result.shape]
    for axis, region in enumerate(node.writes[0].region):
        for place, size in extents.items():
            if region.min.same_as(node.iter_vars[place].var):
                shape[axis] = size
    replaced = [(result, _like(result, shape))]
    replaced += [(p, _like(p, weights[p.name])) for p in function.params if p.name in weights]

    def loop(found: tirx.For) -> tirx.Stmt:
        size = next((s for v, s in sizes if v.same_as(found.loop_var)), None)
        if size is None:
            return found
        return tirx.For(
            found.loop_var,
            found.min,
            tirx.IntImm(found.extent.ty, size),
            found.kind,
            found.body,
            None,
            found.annotations,
        )

    def variable(found: tirx.Buffer | tirx.Var) -> tirx.Buffer | tirx.Var:
        return next((new for old, new in replaced if old.same_as(found)), found)

    def sum_(found: s_tir.SBlock) -> s_tir.SBlock:
        return block if found.name_hint == node.name_hint else found

    with_block = tvm_ffi.structural_map(function, [(tirx.For, loop), (s_tir.SBlock, sum_)], order="post")
    return tvm_ffi.structural_map(with_block, [(ir.Var, variable)], order="post")


def _longer(node: s_tir.SBlock, extents: Mapping[int, int], weights: Mapping[str, tuple[int, ...]]) -> s_tir.SBlock:
    """The block with longer iterators, and reads clamped to the elements that it already read."""
    before, after = sym.Analyzer(), sym.Analyzer()
    iterators = []
    for place, iterator in enumerate(node.iter_vars):
        extent = iterator.dom.extent
        longer = ir.Range(iterator.dom.min, tirx.IntImm(extent.ty, extents.get(place, int(extent))))
        before.bind(iterator.var, iterator.dom)
        after.bind(iterator.var, longer)
        iterators.append(tirx.IterVar(longer, iterator.var, iterator.iter_type, iterator.thread_tag))

    divided = [(v, tirx.min(v, tirx.IntImm(v.ty, int(dom.extent) - 1))) for v, dom in _divided(node, extents)]

    def clamped(index: tirx.Expr) -> tirx.Expr:
        for var, inside in divided:
            index = tvm_ffi.structural_map(index, [(ir.Var, lambda v, a=var, b=inside: b if v.same_as(a) else v)])
        old, new = before.const_int_bound(index), after.const_int_bound(index)
        if new.min_value < old.min_value:
            raise s_tir.ScheduleError(f"{node.name_hint} would read before the start of a buffer")
        return tirx.min(index, tirx.IntImm(index.ty, old.max_value)) if new.max_value > old.max_value else index

    def free(source: tirx.Buffer) -> bool:
        return source.name in weights or source.same_as(node.writes[0].source)

    def load(found: TensorLoad) -> TensorLoad:
        return found if free(found.source) else tirx.BufferLoad(found.source, [clamped(i) for i in found.indices])

    def region(found: TensorRegion) -> TensorRegion:
        if free(found.source):
            return found
        ranges = [ir.Range.from_min_extent(clamped(r.min), r.extent) for r in found.region]
        return type(found)(found.source, ranges, found.ty)

    body = tvm_ffi.structural_map(node.body, [(ir.TensorLoad, load)], order="post")
    return s_tir.SBlock(
        iterators,
        [region(r) for r in node.reads],
        list(node.writes),
        node.name_hint,
        body,
        node.init,
        list(node.alloc_buffers),
        list(node.match_buffers),
        node.annotations,
    )


def _divided(node: s_tir.SBlock, extents: Mapping[int, int]) -> list[tuple[tirx.Var, Range]]:
    """The iterators that occur in divisions, with their domains. They are clamped themselves, before the division."""
    found: list[tirx.Expr] = []
    tvm_ffi.structural_walk(node.body, [(tirx.FloorDiv, found.append), (tirx.FloorMod, found.append)], order="post")
    inside = [v for division in found for v in variables_of(division)]
    return [
        (node.iter_vars[place].var, node.iter_vars[place].dom)
        for place in extents
        if any(node.iter_vars[place].var.same_as(v) for v in inside)
    ]


def _like(buffer: tirx.Buffer, shape: Sequence[int]) -> tirx.Buffer:
    sizes = [tirx.IntImm(old.ty, new) for old, new in zip(buffer.shape, shape, strict=True)]
    return tirx.decl_buffer(sizes, buffer.dtype, buffer.name, scope=buffer.scope())


def _found(function: tirx.PrimFunc, kind: type, test: Callable[[Any], Any]) -> list[Any]:
    found: list[Any] = []

    def visit(node: s_tir.SBlockRealize) -> None:
        value = test(node)
        if value:
            found.append(value)

    tvm_ffi.structural_walk(function.body, [(kind, visit)], order="post")
    return found

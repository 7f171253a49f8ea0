"""Analysis of kernels that are matrix products, including convolutions, whose rows are pixels."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import tvm_ffi
from tvm import s_tir, sym, tirx
from tvm.ir import TensorLoad
from tvm.s_tir.dlight.analysis import normalize_prim_func

from heterocc.compiler.lower.gpu import nest
from heterocc.compiler.lower.gpu.contraction.axes import split_groups, variables_of
from heterocc.compiler.lower.kernels.expressions import dtype_of, loads, substituted

if TYPE_CHECKING:
    from tvm.s_tir.schedule import SBlockRV


FLOATS = ("float32", "float16")


@dataclass(frozen=True, slots=True)
class Axis:
    """Iterators of a block that are treated as one axis, the last fastest."""

    iterators: tuple[tirx.Var, ...]
    extents: tuple[Any, ...]

    @property
    def length(self) -> Any:
        """The product of the extents; 1 without iterators."""
        return prod(self.extents)

    def at(self, place: tirx.Expr) -> list[tuple[tirx.Var, tirx.Expr]]:
        """The iterators' values at a place along the axis."""
        return list(zip(self.iterators, nest.split_index(place, self.extents), strict=True))


@dataclass(frozen=True, slots=True)
class Product:
    """out[batch, row, column] = after(sum over `terms` of left[batch, row, term] * right[batch, term, column]).

    `left` and `right` are expressions of the axes' iterators. `sum_` is the buffer that the block writes at `place`.
    `store` is the final store, if it is not the sum's; `stored` are its iterators, each with the axis of `sum_` that it
    indexes.
    """

    batch: Axis
    rows: Axis
    columns: Axis
    terms: Axis
    left: tirx.Expr
    right: tirx.Expr
    sum_: tirx.Buffer
    place: tuple[tirx.Expr, ...]
    store: tirx.BufferStore | None
    stored: tuple[tuple[tirx.Var, int], ...]

    def output(self, values: Sequence[tuple[tirx.Var, tirx.Expr]], total: tirx.Expr) -> tirx.BufferStore:
        """The store of one output, for values of the iterators and the sum."""
        typed = [(old, new.astype(dtype_of(old))) for old, new in values]
        place = [substituted(index, typed) for index in self.place]
        total = total.astype(dtype_of(self.sum_))
        inside = [(var, place[axis].astype(dtype_of(var))) for var, axis in self.stored]

        def load(found: TensorLoad) -> tirx.Expr:
            return total if found.source.same_as(self.sum_) else found

        if self.store is None:
            return tirx.BufferStore(self.sum_, total, place)
        return tirx.BufferStore(
            self.store.buffer,
            substituted(self.store.value, inside, load),
            [substituted(i, inside) for i in self.store.indices],
        )


def uses(expr: tirx.Expr, axis: Axis) -> bool:
    """Whether an expression depends on an axis."""
    return any(v.same_as(i) for v in variables_of(expr) for i in axis.iterators)


def last_index(expr: tirx.Expr) -> tirx.Expr:
    """The last index of an operand's load; neighbours along it are contiguous in memory."""
    found: list[TensorLoad] = []
    tvm_ffi.structural_walk(expr, [(TensorLoad, found.append)], order="post")
    return found[-1].indices[-1] if found else expr


def product_of(function: tirx.PrimFunc, *, sized: bool = False) -> Product | None:
    """The kernel as a matrix product of floats; None if it has another form.

    Extents are numbers; with `sized` those that are known only at run time are expressions, otherwise the result is
    None.
    """
    schedule = s_tir.Schedule(function)
    blocks = normalize_prim_func(schedule)
    if blocks is None:
        return None
    sums = [b for b in blocks if "R" in b.dom_kind()]
    if len(sums) != 1 or any("O" in b.dom_kind() for b in blocks):
        return None
    if not sized and not all(isinstance(n, int) for b in blocks for n in b.dom()):
        return None
    block = sums[0].block_rv
    split_groups(schedule, block)
    for info in blocks:
        if info is not sums[0]:
            _inline(schedule, info.block_rv)
    left = [schedule.get(b) for b in schedule.get_child_blocks(schedule.get_sblock("root"))]
    node = schedule.get(block)
    if len(left) > 2 or not left[0].same_as(node):
        return None
    return _product(node, left[1] if len(left) == 2 else None)


def _inline(schedule: s_tir.Schedule, block: SBlockRV) -> None:
    with suppress(s_tir.ScheduleError):
        schedule.compute_inline(block)


def _product(node: s_tir.SBlock, after: s_tir.SBlock | None) -> Product | None:
    factors = _factors(node)
    if factors is None:
        return None
    used = [variables_of(f) for f in factors]
    kinds: dict[str, list[tirx.IterVar]] = {"batch": [], "rows": [], "columns": [], "terms": []}
    for iterator in node.iter_vars:
        mine = [iterator.var in u for u in used]
        if iterator.iter_type == tirx.IterVar.CommReduce:
            kinds["terms"].append(iterator)
        else:
            kinds["batch" if mine[0] == mine[1] else "rows" if mine[0] else "columns"].append(iterator)
    if not kinds["rows"] or not kinds["columns"]:
        return None
    axes = {k: Axis(tuple(i.var for i in v), tuple(_size(i.dom.extent) for i in v)) for k, v in kinds.items()}
    place = tuple(node.body.indices)
    stored = _stored(node.body.buffer, after)
    if stored is None:
        return None
    store = None if after is None else after.body
    left, right = factors
    return Product(**axes, left=left, right=right, sum_=node.body.buffer, place=place, store=store, stored=stored)


def _size(extent: tirx.Expr) -> int | tirx.Expr:
    return int(extent) if isinstance(extent, tirx.IntImm) else extent


def _factors(node: s_tir.SBlock) -> tuple[tirx.Expr, tirx.Expr] | None:
    """The two factors of the block's terms; None unless it sums products of floats from zero."""
    body, start = node.body, getattr(node.init, "value", None)
    if not isinstance(body, tirx.BufferStore) or not isinstance(body.value, tirx.Add) or start is None:
        return None
    if float(getattr(start, "value", 1)) != 0:
        return None
    kept, term = body.value.a, body.value.b
    if not isinstance(kept, TensorLoad) or not kept.source.same_as(body.buffer) or not isinstance(term, tirx.Mul):
        return None
    analyzer = sym.Analyzer()
    for iterator in node.iter_vars:
        analyzer.bind(iterator.var, iterator.dom)
    factors = (analyzer.simplify(_uncast(term.a)), analyzer.simplify(_uncast(term.b)))
    return factors if all(dtype_of(f) in FLOATS for f in (*factors, kept)) else None


def _uncast(expr: tirx.Expr) -> tirx.Expr:
    """A factor without casts after its load, as sums are computed in float32 anyway."""
    narrow = isinstance(expr, tirx.Cast) and dtype_of(expr) == "float32" and dtype_of(expr.value) == "float16"
    return expr.value if narrow else expr


def _stored(sum_: tirx.Buffer, after: s_tir.SBlock | None) -> tuple[tuple[tirx.Var, int], ...] | None:
    """The iterators of the storing block, each with the axis of the sums' buffer that it indexes."""
    if after is None:
        return ()
    if not isinstance(after.body, tirx.BufferStore):
        return None
    places = [tuple(r.indices) for r in loads(after.body.value) if r.source.same_as(sum_)]
    found: list[tuple[tirx.Var, int]] = []
    for iterator in after.iter_vars:
        axes = [d for d, index in enumerate(places[0]) if index.same_as(iterator.var)] if places else []
        extent = iterator.dom.extent
        if len(axes) != 1 or not sym.Analyzer().can_prove_equal(extent, sum_.shape[axes[0]]):
            if isinstance(extent, tirx.IntImm) and int(extent) == 1:
                continue
            return None
        found.append((iterator.var, axes[0]))
    return tuple(found) if all(_same(place, places[0]) for place in places) else None


def _same(left: Sequence[tirx.Expr], right: Sequence[tirx.Expr]) -> bool:
    return all(a.same_as(b) or _zeros(a, b) for a, b in zip(left, right, strict=True))


def _zeros(left: tirx.Expr, right: tirx.Expr) -> bool:
    return all(isinstance(i, tirx.IntImm) and int(i) == 0 for i in (left, right))

"""Maxima and minima in scheduled loops, in which no NaN hides a number (decision 7).

`max(a, b)` is compiled to `a > b ? a : b`, which gives b if one of them is NaN. So the number so far is the second
operand: a NaN is left out, in place of all that was before it. The first term is the initial value, so that the
maximum of NaN alone is NaN; not of windows, which are combined in several kernels, and whose first element may be
padding. TVM's schedules need its own form of reductions; this is for what they made of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.cpu.blocks import of_windows
from heterocc.compiler.lower.kernels.expressions import dtype_of, substituted

_REDUCTION = 2


def without_hidden_numbers(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The scheduled kernel in which no NaN hides a number from a maximum or minimum."""
    extremes: list[_Extreme] = []

    def visit(block: s_tir.SBlock) -> None:
        extreme = _extreme(block)
        if extreme is not None:
            extremes.append(extreme)

    tvm_ffi.structural_walk(function.body, [(s_tir.SBlock, visit)], order="post")
    if not extremes:
        return function

    def replace(block: s_tir.SBlock) -> s_tir.SBlock:
        extreme = _extreme(block)
        if extreme is not None:
            return extreme.swapped()
        begun = next((e for e in extremes if e.is_begun_by(block)), None)
        return block if begun is None else begun.begun(block)

    body = tvm_ffi.structural_map(function.body, [(s_tir.SBlock, replace)], order="post")
    return tirx.PrimFunc(list(function.params), body, attrs=function.attrs)


@dataclass(frozen=True, slots=True)
class _Extreme:
    """A block that stores the larger or smaller one of the number so far and a term, all of them floats."""

    block: s_tir.SBlock

    @property
    def store(self) -> tirx.BufferStore:
        return self.block.body

    def is_begun_by(self, block: s_tir.SBlock) -> bool:
        """Whether a block sets the initial value of this one: TVM writes it apart from the terms."""
        store = block.body
        alike = isinstance(store, tirx.BufferStore) and store.buffer.same_as(self.store.buffer)
        alike = alike and _is_infinite(store.value) and len(block.iter_vars) == len(self._places)
        return alike and not of_windows(self.block)

    @property
    def _places(self) -> list[tirx.Var]:
        return [i.var for i in self.block.iter_vars if int(i.iter_type) != _REDUCTION]

    def swapped(self) -> s_tir.SBlock:
        """The block with the number so far as the second operand, and the first term as the initial value, if any."""
        value, init = self.store.value, self.block.init
        store = tirx.BufferStore(self.store.buffer, type(value)(value.b, value.a), self.store.indices)
        if init is not None and not of_windows(self.block):
            init = tirx.BufferStore(init.buffer, self._first(self._places, init.value), init.indices)
        return _with(self.block, store, init)

    def begun(self, block: s_tir.SBlock) -> s_tir.SBlock:
        """The block of the initial value, with the first term."""
        store = block.body
        value = self._first([i.var for i in block.iter_vars], store.value)
        return _with(block, tirx.BufferStore(store.buffer, value, store.indices), block.init)

    def _first(self, places: list[tirx.Var], neutral: tirx.Expr) -> tirx.Expr:
        """The first term of the element at `places`, or the neutral number if there are no terms."""
        terms = [i for i in self.block.iter_vars if int(i.iter_type) == _REDUCTION]
        pairs = [*zip(self._places, places, strict=True), *((i.var, i.dom.min) for i in terms)]
        first = substituted(self.store.value.b, pairs)
        some = [i.dom.extent > _zero(i.dom.extent) for i in terms if not isinstance(i.dom.extent, tirx.IntImm)]
        return tirx.if_then_else(tirx.all(*some), first, neutral) if some else first


def _extreme(block: s_tir.SBlock) -> _Extreme | None:
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tirx.Max | tirx.Min):
        return None
    held = store.value.a
    same = isinstance(held, TensorLoad) and held.source.same_as(store.buffer)
    if not same or not dtype_of(store.value).startswith(("float", "bfloat")):
        return None
    if not all(a.same_as(b) for a, b in zip(held.indices, store.indices, strict=True)):
        return None
    return _Extreme(block) if any(int(i.iter_type) == _REDUCTION for i in block.iter_vars) else None


def _is_infinite(value: tirx.Expr) -> bool:
    return isinstance(value, tirx.FloatImm) and math.isinf(float(value.value))


def _zero(like: tirx.Expr) -> tirx.Expr:
    return tirx.const(0, dtype_of(like))


def _with(block: s_tir.SBlock, body: tirx.Stmt, init: tirx.Stmt | None) -> s_tir.SBlock:
    return s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        body,
        init,
        block.alloc_buffers,
        block.match_buffers,
        block.annotations,
    )

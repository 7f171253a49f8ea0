"""Stores of a tile of sums as a loop that rotates the sums, for devices whose compiler takes long for many stores.

Sums are in registers as long as their indices are constant, so that a loop over the outputs of a tile cannot address
them. It can move them: each turn stores the first few, and moves all others forward by as many.

    for turn in 0 … 7:                       instead of 256 stores one after the other
        store sums 0 … 31 as outputs 32·turn …
        sums[i] = sums[i + 32] for i in 0 … 223

Mesa's llvmpipe writes a loop over SIMD lanes with a branch for each store, and its compiler's time grows faster than
the number of branches: a convolution with a tile of 16 × 16 took 0.65 s to compile with all stores written out, and
0.16 s with eight turns. Moves are cheap beside stores: the kernel takes as long as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.gpu import nest
from heterocc.compiler.lower.kernels.expressions import substituted

FEW = 64
"""The most stores of a tile that are written out."""

STORES = 32
"""The most stores of a turn, if a turn has more than one row."""

_INNER = (int(tirx.ForKind.UNROLLED), int(tirx.ForKind.VECTORIZED))


def with_rotation(function: tirx.PrimFunc, store: str) -> tirx.PrimFunc:
    """A scheduled function whose block `store`, if it stores more than FEW sums, does so in turns.

    The block must be in two loops that are unrolled or vectorised, and read the sums from local memory at one place.
    """

    def rotated(loop: tirx.For) -> tirx.Stmt:
        found = _found(loop, store)
        return loop if found is None else found.written()

    return tvm_ffi.structural_map(function, [(tirx.For, rotated)], order="post")


@dataclass(frozen=True, slots=True)
class _Stores:
    """The stores of a tile: the loop over its rows, that along a row, the block, and the sums with their indices in
    terms of the loops' variables, of which that at `axis` is the row's."""

    outer: tirx.For
    inner: tirx.For
    realize: s_tir.SBlockRealize
    sums: tirx.Buffer
    indices: tuple[tirx.Expr, ...]

    @property
    def step(self) -> int:
        """The number of rows that a turn stores."""
        rows, row = int(self.outer.extent), int(self.inner.extent)
        return max(n for n in range(1, rows + 1) if rows % n == 0 and (n == 1 or n * row <= STORES))

    def written(self) -> tirx.Stmt:
        """The loop over turns."""
        turns = int(self.outer.extent) // self.step
        return nest.loop("turn", turns, lambda turn: nest.sequence([self._stores(turn), self._moves()]), rolled=True)

    def _stores(self, turn: tirx.Expr) -> tirx.Stmt:
        """Store the sums that come first as the outputs of this turn."""
        block = self.realize.block

        def body(row: tirx.Expr) -> tirx.Stmt:
            first = self._at(row)

            def load(found: TensorLoad) -> TensorLoad:
                return tirx.BufferLoad(self.sums, first) if found.source.same_as(self.sums) else found

            at = [(self.outer.loop_var, turn * self.step + row)]
            reads = [r for r in block.reads if not r.source.same_as(self.sums)]
            stored = s_tir.SBlock(
                block.iter_vars,
                [*reads, _region(self.sums, first)],
                block.writes,
                block.name_hint,
                tvm_ffi.structural_map(block.body, [(TensorLoad, load)], order="post"),
            )
            values = [substituted(value, at) for value in self.realize.iter_values]
            inside = substituted(self.realize.predicate, at)
            return self._along(s_tir.SBlockRealize(values, inside, stored), self.inner.loop_var)

        return nest.loop("row", self.step, body, tirx.ForKind.UNROLLED)

    def _moves(self) -> tirx.Stmt:
        """Move the sums forward."""

        def body(row: tirx.Expr) -> tirx.Stmt:
            place = tirx.Var("place", "int64")
            old, new = (
                [substituted(i, [(self.inner.loop_var, place)]) for i in self._at(at)] for at in (row + self.step, row)
            )
            move = tirx.BufferStore(self.sums, tirx.BufferLoad(self.sums, old), new)
            block = s_tir.SBlock([], [_region(self.sums, old)], [_region(self.sums, new)], "rotation", move)
            return self._along(s_tir.SBlockRealize([], tirx.const(True, "bool"), block), place)

        return nest.loop("row", int(self.outer.extent) - self.step, body, tirx.ForKind.UNROLLED)

    def _at(self, row: tirx.Expr) -> list[tirx.Expr]:
        return [substituted(i, [(self.outer.loop_var, row)]) for i in self.indices]

    def _along(self, body: tirx.Stmt, var: tirx.Var) -> tirx.Stmt:
        return tirx.For(var, self.inner.min, self.inner.extent, self.inner.kind, body)


def _found(loop: tirx.For, store: str) -> _Stores | None:
    """The stores in a loop; None if it is not the outer loop of the block `store`, or if they cannot be rotated."""
    inner = loop.body
    if int(loop.kind) != int(tirx.ForKind.UNROLLED) or not isinstance(inner, tirx.For) or int(inner.kind) not in _INNER:
        return None
    realize = inner.body
    if not isinstance(realize, s_tir.SBlockRealize) or str(realize.block.name_hint) != store:
        return None
    if int(loop.extent) * int(inner.extent) <= FEW:
        return None
    block = realize.block
    loads: list[TensorLoad] = []
    tvm_ffi.structural_walk(block.body, [(TensorLoad, loads.append)], order="post")
    local = [load for load in loads if load.source.scope() == "local"]
    if not local or any(not tvm_ffi.structural_equal(load, local[0], map_free_vars=False) for load in local):
        return None
    bound = [(v.var, value) for v, value in zip(block.iter_vars, realize.iter_values, strict=True)]
    indices = tuple(substituted(i, bound) for i in local[0].indices)
    return _Stores(loop, inner, realize, local[0].source, indices) if _is_row(indices, loop.loop_var) else None


def _is_row(indices: Sequence[tirx.Expr], var: tirx.Var) -> bool:
    """Whether a variable moves one of the indices by 1 and no other."""
    analyzer = sym.Analyzer()
    steps = [analyzer.simplify(substituted(i, [(var, var + 1)]) - i) for i in indices]
    numbers = [int(s) for s in steps if isinstance(s, tirx.IntImm)]
    return len(numbers) == len(steps) and sorted(numbers) == [0] * (len(numbers) - 1) + [1]


def _region(buffer: tirx.Buffer, indices: Sequence[tirx.Expr]) -> tirx.BufferRegion:
    return tirx.BufferRegion(buffer, [ir.Range.from_min_extent(i, nest.index(1)) for i in indices])

"""Loops over remainders as two loops, because LLVM takes `v % 8` for `v` in the second half of a loop of 16 turns.

Seen with LLVM 22 at level 2 and vectors of 512 bits, where the body of the loop has a condition, which the loop
vectorizer removes: rows of a head behind the first one read what lies behind their own.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import sym, tirx

from heterocc.compiler.lower.kernels.expressions import is_zero, uses

_DIVISIONS = (tirx.FloorMod, tirx.FloorDiv)


def without_remainders(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel whose serial loops of a known number of turns have an inner loop for each remainder of their variable.

    Only powers of two that divide the number of turns count: LLVM computes no other remainder as a mask.
    """
    return tvm_ffi.structural_map(function, [(tirx.For, _divided)], order="post")


def _divided(loop: tirx.For) -> tirx.For:
    if loop.kind != tirx.ForKind.SERIAL or not isinstance(loop.extent, tirx.IntImm) or not is_zero(loop.min):
        return loop
    turns, var = int(loop.extent), loop.loop_var
    each = max((n for n in _divisors(loop) if 1 < n < turns and turns % n == 0 and n & (n - 1) == 0), default=None)
    if each is None:
        return loop
    zero, size = tirx.IntImm(var.ty, 0), tirx.IntImm(var.ty, each)
    outer, inner = tirx.Var(f"{var.name}_o", var.ty), tirx.Var(f"{var.name}_i", var.ty)
    analyzer = sym.Analyzer()
    analyzer.bind(outer, tvm.ir.Range(zero, tirx.IntImm(var.ty, turns // each)))
    analyzer.bind(inner, tvm.ir.Range(zero, size))
    whole = outer * size + inner
    body = tvm_ffi.structural_map(loop.body, [(tirx.Var, lambda v: whole if v.same_as(var) else v)], order="post")
    body = tvm_ffi.structural_map(body, [(kind, analyzer.simplify) for kind in _DIVISIONS], order="post")
    below = _divided(tirx.For(inner, zero, size, tirx.ForKind.SERIAL, body))
    return tirx.For(outer, zero, tirx.IntImm(var.ty, turns // each), tirx.ForKind.SERIAL, below)


def _divisors(loop: tirx.For) -> set[int]:
    """The numbers by which expressions of a loop's variable are divided."""
    found: set[int] = set()

    def division(node: tirx.Expr) -> None:
        if isinstance(node.b, tirx.IntImm) and uses(node.a, loop.loop_var):
            found.add(int(node.b))

    tvm_ffi.structural_walk(loop.body, [(kind, division) for kind in _DIVISIONS], order="pre")
    return found

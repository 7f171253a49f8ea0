"""Loops over remainders as two loops, because LLVM takes `v % 8` for `v` where vectors go past the first 8 turns.

Seen with LLVM 22 at level 2 and vectors of 512 bits, where the body of the loop has a condition, which the loop
vectorizer removes: what one branch alone reads at `v % 8` is read with one masked load of neighbours, as if it were at
`v`. It happens for variables of 32 bits, whether or not the number of turns is known or a multiple of 8, and for
`(v + 5) % 16`. Loops whose number of turns only the run knows have variables of 64 bits: none was wrong in 156 small
models with such sizes (rotary halves, channel shuffles, tiles, windows, ranges; five types), nor in single kernels.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import sym, tirx

from heterocc.compiler.lower.kernels.expressions import dtype_of, is_zero, uses

_DIVISIONS = (tirx.FloorMod, tirx.FloorDiv, tirx.Mod, tirx.Div)
"""Those that round down, and those that truncate, which kernels of sizes of the run have."""


def without_remainders(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """A kernel whose serial loops have an inner loop for each remainder of their variable, the last one maybe shorter.

    Only powers of two count: LLVM computes no other remainder as a mask. Of loops of an unknown number of turns, only
    those with variables of 32 bits are changed.
    """
    return tvm_ffi.structural_map(function, [(tirx.For, _without)], order="post")


def _without(loop: tirx.For) -> tirx.Stmt:
    """The loop as two; where a remainder is of its variable and a number, the turns before it is 0 are another loop."""
    first = _turns_before_zero(loop)
    if not first:
        return _divided(loop)
    rest = tirx.Var(f"{loop.loop_var.name}_rest", loop.loop_var.ty)
    return tirx.SeqStmt([_part(loop, loop.loop_var, 0, first), _part(loop, rest, first, int(loop.extent) - first)])


def _part(loop: tirx.For, var: tirx.Var, start: int, turns: int) -> tirx.For:
    """Some turns of a loop, from one on, with their own variable, which begins at 0."""
    analyzer = sym.Analyzer()
    analyzer.bind(var, tvm.ir.Range(loop.min, tirx.IntImm(var.ty, turns)))
    place, whole = var + start, loop.loop_var
    body = tvm_ffi.structural_map(loop.body, [(tirx.Var, lambda v: place if v.same_as(whole) else v)], order="post")
    body = tvm_ffi.structural_map(body, [(kind, analyzer.simplify) for kind in _DIVISIONS], order="post")
    return _divided(tirx.For(var, loop.min, tirx.IntImm(var.ty, turns), loop.kind, body))


def _turns_before_zero(loop: tirx.For) -> int:
    """The turns until `(v + 3) % 8` is 0, for a known number of turns; 0 for a loop without such a remainder.

    Loops with loops or buffers of their own have none: LLVM makes vectors of innermost loops.
    """
    if loop.kind != tirx.ForKind.SERIAL or not isinstance(loop.extent, tirx.IntImm) or not is_zero(loop.min):
        return 0
    inside: list[tirx.Stmt] = []
    kinds = [(kind, inside.append) for kind in (tirx.For, tirx.AllocBuffer, tirx.Bind)]
    tvm_ffi.structural_walk(loop.body, kinds, order="pre")
    found: set[tuple[int, int]] = set()

    def remainder(node: tirx.Expr) -> None:
        if isinstance(node.b, tirx.IntImm) and isinstance(node.a, tirx.Add) and isinstance(node.a.b, tirx.IntImm):
            by, offset = int(node.b), int(node.a.b)
            if node.a.a.same_as(loop.loop_var) and by & (by - 1) == 0 and offset > 0 and offset % by:
                found.add((by, by - offset % by))

    tvm_ffi.structural_walk(loop.body, [(kind, remainder) for kind in (tirx.FloorMod, tirx.Mod)], order="pre")
    first = max(found)[1] if found and not inside else 0
    return first if first < int(loop.extent) else 0


def _divided(loop: tirx.For, below: int | None = None) -> tirx.For:
    """The loop as two, or more if it has several remainders; `below` bounds a number of turns that is not known."""
    if loop.kind != tirx.ForKind.SERIAL or not is_zero(loop.min):
        return loop
    var, turns = loop.loop_var, loop.extent
    known = isinstance(turns, tirx.IntImm)
    if not known and dtype_of(var) != "int32":
        return loop
    most = int(turns) if known else below
    fitting = (n for n in _divisors(loop) if n > 1 and n & (n - 1) == 0 and (most is None or n < most))
    each = max(fitting, default=None)
    if each is None:
        return loop
    zero, size = tirx.IntImm(var.ty, 0), tirx.IntImm(var.ty, each)
    outer, inner = tirx.Var(f"{var.name}_o", var.ty), tirx.Var(f"{var.name}_i", var.ty)
    analyzer = sym.Analyzer()
    parts = analyzer.simplify(tirx.floordiv(turns + (each - 1), size))
    analyzer.bind(outer, tvm.ir.Range(zero, parts))
    analyzer.bind(inner, tvm.ir.Range(zero, size))
    whole = outer * size + inner
    body = tvm_ffi.structural_map(loop.body, [(tirx.Var, lambda v: whole if v.same_as(var) else v)], order="post")
    body = tvm_ffi.structural_map(body, [(kind, analyzer.simplify) for kind in _DIVISIONS], order="post")
    divides = analyzer.can_prove_equal(tirx.floormod(turns, size), zero)
    extent = size if divides else tirx.min(size, turns - outer * size)
    serial = tirx.ForKind.SERIAL
    return tirx.For(outer, zero, parts, serial, _divided(tirx.For(inner, zero, extent, serial, body), each))


def _divisors(loop: tirx.For) -> set[int]:
    """The numbers by which expressions of a loop's variable are divided."""
    found: set[int] = set()

    def division(node: tirx.Expr) -> None:
        if isinstance(node.b, tirx.IntImm) and uses(node.a, loop.loop_var):
            found.add(int(node.b))

    tvm_ffi.structural_walk(loop.body, [(kind, division) for kind in _DIVISIONS], order="pre")
    return found

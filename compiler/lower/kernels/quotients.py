"""Divisions of indices by sizes of the run, without tests of signs.

Division that rounds down tests the signs of both operands if it is not known that they are positive. A kernel whose
sizes are known only at run time has such divisions for each element, most of them several times. In vectors each test
is a selection, and a chain of them takes TVM minutes to simplify.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, s_tir, sym, tirx

from heterocc.compiler.lower.kernels.expressions import parts_of

_MOST = 2**40
"""More than any index or size."""


def truncating(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with divisions that truncate, where both operands are indices or sizes and so not negative.

    Those of places in a vector by numbers stay: TVM finds that all places have one quotient, but not if they truncate.
    """
    analyzer = _bounds(function)
    loops = parts_of(function.body, tirx.For)
    lanes = {loop.loop_var for loop in loops if loop.kind == tirx.ForKind.VECTORIZED}
    counted = {loop.loop_var for loop in loops}

    def in_vector(place: tirx.Expr, divisor: tirx.Expr) -> bool:
        used = set(tirx.analysis.undefined_vars(place)) if isinstance(divisor, tirx.IntImm) and lanes else set()
        return not used.isdisjoint(lanes) and used <= counted

    def positive(*operands: tirx.Expr) -> bool:
        return all(analyzer.const_int_bound(operand).min_value >= 0 for operand in operands)

    def truncates(e: tirx.FloorDiv | tirx.FloorMod) -> bool:
        return positive(e.a, e.b) and not in_vector(e.a, e.b)

    rules = [
        (tirx.FloorDiv, lambda e: tirx.truncdiv(e.a, e.b) if truncates(e) else e),
        (tirx.FloorMod, lambda e: tirx.truncmod(e.a, e.b) if truncates(e) else e),
    ]
    body = tvm_ffi.structural_map(function.body, rules, order="post")
    return tirx.PrimFunc(list(function.params), body, attrs=function.attrs)


def _bounds(function: tirx.PrimFunc) -> sym.Analyzer:
    """An analyzer that knows the sizes and indices of a kernel. A size may be 0."""
    analyzer = sym.Analyzer()
    known: set[tirx.Var] = set()

    def bind(var: tirx.Var, least: tirx.Expr | int) -> None:
        low = analyzer.const_int_bound(least).min_value if isinstance(least, tirx.Expr) else least
        if low >= 0 and var not in known:
            known.add(var)
            analyzer.bind(var, ir.Range(tirx.const(0, var.ty.dtype), tirx.const(_MOST, var.ty.dtype)))

    def loop(found: tirx.For) -> None:
        bind(found.loop_var, found.min)

    def block(found: s_tir.SBlock) -> None:
        for var in found.iter_vars:
            bind(var.var, var.dom.min)

    shapes = [dim for p in function.params if isinstance(p.ty, tirx.BufferType) for dim in p.ty.shape]
    sizes = {v for dim in shapes for v in tirx.analysis.undefined_vars(dim)}
    for var in sizes:
        bind(var, 0)
    tvm_ffi.structural_walk(function.body, [(tirx.For, loop), (s_tir.SBlock, block)], order="pre")
    stored: dict[tirx.Var, tirx.Expr | None] = {}

    def store(found: tirx.BufferStore) -> None:
        stored[found.buffer] = None if found.buffer in stored else found.value

    def bound(found: tirx.Bind) -> None:
        if "int" not in str(found.var.ty.dtype):
            return
        value = stored.get(found.value.source) if isinstance(found.value, ir.TensorLoad) else found.value
        if isinstance(value, tirx.Min) and sizes.issuperset(tirx.analysis.undefined_vars(value.b)):
            value = value.a  # the start of the last vector of a row, which is as long as a vector
        if value is not None:
            bind(found.var, value)

    tvm_ffi.structural_walk(function.body, [(tirx.BufferStore, store)], order="pre")
    tvm_ffi.structural_walk(function.body, [(tirx.Bind, bound)], order="pre")
    return analyzer

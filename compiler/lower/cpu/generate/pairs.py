"""Pairs of numbers rounded to bfloat16, in 32-bit lanes, and sums of their products, by AVX512-BF16.

TVM replaces bfloat16 by float32 early in its passes, so kernels have vectors of int32 and call functions on them, which
the last pass adds as LLVM code. LLVM puts their instructions in the place of the calls.
"""

from __future__ import annotations

import tvm
from tvm import tirx
from tvm.ir import Call, StringImm

from heterocc.compiler.lower.kernels.expressions import parts_of

_DOT, _ROUNDED = ("heterocc_bfloat_" + name for name in ("dot", "rounded"))
_BITS = {16: 512, 8: 256, 4: 128}
"""The bits of the vectors that have instructions, by their lanes."""


def rounded(first: tirx.Expr, second: tirx.Expr) -> tirx.Expr:
    """Two vectors of float32, rounded, one after the other: pairs of neighbours.

    To the nearest, ties to even. Denormal numbers become zero.
    """
    return _call("int32", _ROUNDED, first, second)


def plus_products(total: tirx.Expr, left: tirx.Expr, right: tirx.Expr) -> tirx.Expr:
    """A vector of float32 plus the products of two vectors of pairs."""
    return _call("float32", _DOT, total, left, right)


def _call(dtype: str, name: str, first: tirx.Expr, *more: tirx.Expr) -> tirx.Expr:
    lanes = int(first.ty.dtype.lanes)
    return tirx.call_pure_extern(f"{dtype}x{lanes}", f"{name}_{lanes}", first, *more)


def with_pairs(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with the functions on pairs beside the kernels that call them."""
    functions = {gvar: _with_functions(function) for gvar, function in mod.functions_items()}
    return tvm.IRModule(functions, attrs=mod.attrs)


def _with_functions(function: tirx.PrimFunc) -> tirx.PrimFunc:
    calls = parts_of(function.body, Call) if isinstance(function, tirx.PrimFunc) else ()
    names = [str(call.args[0].value) for call in calls if getattr(call.op, "name", "") == "tirx.call_pure_extern"]
    if not any(name.startswith((_DOT, _ROUNDED)) for name in names):
        return function
    code = StringImm("\n".join(text for lanes in _BITS for text in _of_lanes(lanes)))
    body = tirx.AttrStmt(tirx.IntImm("int32", 0), "pragma_import_llvm", code, function.body)
    return tirx.PrimFunc(list(function.params), body, ret_type=function.ret_type, attrs=function.attrs)


def _of_lanes(n: int) -> tuple[str, ...]:
    """LLVM code of the functions of vectors of so many lanes."""
    floats, words, pairs = f"<{n} x float>", f"<{2 * n} x bfloat>", f"<{n} x i32>"
    dot, rounding = (f"@llvm.x86.avx512bf16.{name}.{_BITS[n]}" for name in ("dpbf16ps", "cvtne2ps2bf16"))
    # The second operand of the instruction that rounds becomes the lower half.
    return (
        f"declare {floats} {dot}({floats}, {words}, {words})",
        f"declare {words} {rounding}({floats}, {floats})",
        f"define internal {floats} @{_DOT}_{n}({floats} %s, {pairs} %a, {pairs} %b) alwaysinline {{",
        f"  %x = bitcast {pairs} %a to {words}",
        f"  %y = bitcast {pairs} %b to {words}",
        f"  %r = call {floats} {dot}({floats} %s, {words} %x, {words} %y)",
        f"  ret {floats} %r",
        "}",
        f"define internal {pairs} @{_ROUNDED}_{n}({floats} %a, {floats} %b) alwaysinline {{",
        f"  %x = call {words} {rounding}({floats} %b, {floats} %a)",
        f"  %r = bitcast {words} %x to {pairs}",
        f"  ret {pairs} %r",
        "}",
    )

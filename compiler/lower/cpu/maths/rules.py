"""The table of functions computed by this package, and the two passes that put their arithmetic into kernels.

TVM's vectorizer splits calls of unknown functions into lanes, and its rules for functions apply to the whole process.
Therefore one pass replaces the calls by calls of our own operators, which can be vectorized, and another replaces these
by arithmetic after vectorization, depending on the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir import Call, Op, register_op_attr

from heterocc.compiler.lower.cpu.maths.activations import sigmoid, silu
from heterocc.compiler.lower.cpu.maths.circular import atan, cos, sin
from heterocc.compiler.lower.cpu.maths.library import by_library
from heterocc.compiler.lower.cpu.maths.power import power
from heterocc.compiler.lower.cpu.maths.remainder import fmod
from heterocc.compiler.lower.cpu.maths.scaling import AVX512_LANES, scaled_by_instruction
from heterocc.compiler.lower.kernels.expressions import parts_of
from heterocc.compiler.lower.kernels.functions.arc_sine import acos, asin
from heterocc.compiler.lower.kernels.functions.error_function import erf
from heterocc.compiler.lower.kernels.functions.exponential import exp, log
from heterocc.compiler.lower.kernels.functions.hyperbolic import cosh, sinh, tanh
from heterocc.compiler.lower.kernels.functions.lanes import FLOAT32, Lanes, Value

FUNCTIONS: Mapping[str, Callable[..., Value]] = {
    "acos": acos,
    "acosh": by_library("acoshf"),
    "asin": asin,
    "asinh": by_library("asinhf"),
    "atan": atan,
    "atanh": by_library("atanhf"),
    "cos": cos,
    "cosh": cosh,
    "erf": erf,
    "exp": exp,
    "fmod": fmod,
    "log": log,
    "pow": power,
    "sigmoid": sigmoid,
    "silu": silu,
    "sin": sin,
    "sinh": sinh,
    "tan": by_library("tanf"),
    "tanh": tanh,
}
"""By the names of TVM's operators, but for silu, x · sigmoid(x); of float32."""

INSTRUCTIONS: Mapping[str, Callable[..., Value]] = {"nearbyint": lambda x: x.nearest()}
"""Functions that are one instruction on a vector, by the names of TVM's operators, which its vectorizer splits."""

_OURS = "heterocc."
_LAZY = "prim.if_then_else"
_NARROW = frozenset(["float16", "bfloat16"])
_BOUNDED = frozenset(["tirx.erf", "tirx.tanh", "tirx.sigmoid"])
"""Functions that networks use as activations, with bounded results: small errors of arguments stay small."""
_PURE = 1  # TVM's CallEffectKind


def _registered(name: str) -> Op:
    """Our operator for a function, which TVM allows to register once in a process; that has no other effect."""
    own = f"{_OURS}{name}"
    register_op_attr(own, "TVectorizable", True)
    register_op_attr(own, "TCallEffectKind", _PURE)
    register_op_attr(own, "TScriptPrinterName", own)
    return Op.get(own)


_OPERATORS: Mapping[str, Op] = {f"tirx.{name}": _registered(name) for name in (*FUNCTIONS, *INSTRUCTIONS)}
"""Our operators by the names of TVM's."""


def mark_functions(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with functions of float32 as calls of our operators, those of half precision as such between casts.

    A product of x and sigmoid(x), which networks have more often than sigmoid alone, is a function of its own.
    Activations multiply by the reciprocal of a constant instead of dividing.
    """

    def marked(call: tirx.Expr) -> tirx.Expr:
        name = getattr(call.op, "name", "")
        operator = _OPERATORS.get(name)
        dtype = str(call.ty.dtype) if operator is not None else ""
        if dtype == FLOAT32:
            arguments = [_times_reciprocal(a) for a in call.args] if name in _BOUNDED else list(call.args)
            return Call(operator, arguments, ret_ty=FLOAT32)
        if dtype in _NARROW:
            return Call(operator, [a.astype(FLOAT32) for a in call.args], ret_ty=FLOAT32).astype(dtype)
        return call

    def product(expr: tirx.Mul) -> tirx.Expr:
        for factor, call in ((expr.a, expr.b), (expr.b, expr.a)):
            is_sigmoid = isinstance(call, Call) and call.op.same_as(_OPERATORS["tirx.sigmoid"])
            if is_sigmoid and tvm_ffi.structural_equal(factor, call.args[0]):
                return Call(_OPERATORS["tirx.silu"], [factor], ret_ty=FLOAT32)
        return expr

    steps = [(Call, marked), (tirx.Mul, product), (tirx.Div, _clamped_quotient)]
    functions = {gvar: tvm_ffi.structural_map(f, steps, order="post") for gvar, f in mod.functions_items()}
    return tvm.IRModule(functions, attrs=mod.attrs)


def _clamped_quotient(quotient: tirx.Div) -> tirx.Expr:
    """The quotient of hard sigmoid or hard swish: of a clamped number, or a product with one, and a constant."""
    factors = (quotient.a.a, quotient.a.b) if isinstance(quotient.a, tirx.Mul) else (quotient.a,)
    return _times_reciprocal(quotient) if any(map(_is_clamp, factors)) else quotient


def _times_reciprocal(expr: tirx.Expr) -> tirx.Expr:
    """A quotient by a constant as a product, which takes a tenth of the time; another expression as it is.

    The result differs by at most one unit in the last place. That is for activations only: other quotients may be
    rounded to integers later.
    """
    if not isinstance(expr, tirx.Div) or not isinstance(expr.b, tirx.FloatImm) or str(expr.ty.dtype) != FLOAT32:
        return expr
    by = float(expr.b.value)
    return expr.a * tirx.FloatImm(FLOAT32, 1.0 / by) if 2.0**-100 < abs(by) < 2.0**100 else expr


def _is_clamp(expr: tirx.Expr) -> bool:
    """Whether an expression is a number limited to a range."""
    for outer, inner in ((tirx.Min, tirx.Max), (tirx.Max, tirx.Min)):
        if isinstance(expr, outer):
            return isinstance(expr.a, inner) or isinstance(expr.b, inner)
    return False


def expand_functions(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with arithmetic for each function's target in place of the calls of our operators.

    Each result is stored and loaded, which LLVM removes again: TVM's analyser substitutes values for their names, so
    that its time would grow as the product of the lengths of nested functions. So is an argument with choices.
    """
    functions = {
        gvar: _expanded(function) if _calls_functions(function) else function
        for gvar, function in mod.functions_items()
    }
    return tvm.IRModule(functions, attrs=mod.attrs)


def _calls_functions(code: tirx.PrimFunc | tirx.Stmt | tirx.Expr) -> bool:
    return any(map(_is_ours, parts_of(code, Call)))


def _expanded(function: tirx.PrimFunc) -> tirx.PrimFunc:
    avx512 = bool(tvm.target.codegen.target_has_features("avx512f", function.attrs["target"]))

    def in_place(call: tirx.Expr) -> tirx.Expr:
        return expression(_name(call), list(call.args), avx512) if _is_ours(call) else call

    def statement(stmt: tirx.Stmt) -> tirx.Stmt:
        if not _calls_functions(stmt):
            return stmt
        before, left = _stored(stmt, avx512)
        return tirx.SeqStmt([*before, left])

    def flat(sequence: tirx.SeqStmt) -> tirx.SeqStmt:
        parts = [p for s in sequence.seq for p in (s.seq if isinstance(s, tirx.SeqStmt) else [s])]
        return tirx.SeqStmt(parts)

    function = tvm_ffi.structural_map(function, [(tirx.Cast, _selected)], order="post")
    steps = [(tirx.BufferStore, statement), (tirx.Bind, statement), (tirx.SeqStmt, flat)]
    function = tvm_ffi.structural_map(function, steps, order="post")
    return tvm_ffi.structural_map(function, [(Call, in_place)], order="post")


def _stored(part: Any, avx512: bool) -> tuple[list[tirx.Stmt], Any]:
    """Statements that store the results of functions, and the statement or expression that loads them instead.

    A choice of which only one side must be computed, because the other one reads outside of a tensor, is a condition.
    """
    before: list[tirx.Stmt] = []
    while (choice := next(filter(_is_choice, parts_of(part, Call)), None)) is not None:  # outer ones before inner ones
        condition, *sides = choice.args
        result, index = _result(str(choice.ty.dtype).split("x")[0], int(choice.ty.dtype.lanes))
        first, decided = _stored(condition, avx512)
        branches = []
        for side in sides:
            inner, value = _stored(side, avx512)
            store = tirx.BufferStore(result, value, [index])
            branches.append(tirx.SeqStmt([*inner, store]) if inner else store)
        before += [tirx.AllocBuffer(result), *first, tirx.IfThenElse(decided, *branches)]
        part = _with(part, choice, tirx.BufferLoad(result, [index]))

    def loaded(value: tirx.Expr) -> tirx.Expr:
        buffer, index = _result(str(value.ty.dtype).split("x")[0], int(value.ty.dtype.lanes))
        before.extend([tirx.AllocBuffer(buffer), tirx.BufferStore(buffer, value, [index])])
        return tirx.BufferLoad(buffer, [index])

    def stored(call: tirx.Expr) -> tirx.Expr:
        if not _is_ours(call):
            return call
        arguments = [loaded(a) if parts_of(a, tirx.Select) else a for a in call.args]
        return loaded(expression(_name(call), arguments, avx512))

    return before, tvm_ffi.structural_map(part, [(Call, stored)], order="post")


def _selected(cast: tirx.Cast) -> tirx.Expr:
    """A cast of truth values in a vector as a choice of 1 or 0: TVM's analyser fails to bound a name for a cast."""
    if str(cast.value.ty.dtype).startswith("bool") and (lanes := int(cast.ty.dtype.lanes)) > 1:
        one, zero = (tirx.Broadcast(tirx.const(n, str(cast.ty.dtype).split("x")[0]), lanes) for n in (1, 0))
        return tirx.Select(cast.value, one, zero)
    return cast


def _result(dtype: str, lanes: int) -> tuple[tirx.Buffer, tirx.Expr]:
    """A buffer for a scalar or a vector, and the index of all of it."""
    place = tirx.IntImm("int32", 0)
    index = place if lanes == 1 else tirx.Ramp(place, tirx.IntImm("int32", 1), lanes)
    return tirx.decl_buffer((lanes,), dtype, "result"), index


def _is_choice(call: Call) -> bool:
    """Whether a call decides by one truth value which side is computed, and calls functions."""
    if _name(call) != _LAZY:
        return False
    decides = int(call.args[0].ty.dtype.lanes) == 1 and not str(call.ty.dtype).startswith("bool")
    return decides and _calls_functions(call)


def _with(part: Any, old: Call, new: tirx.Expr) -> Any:
    return tvm_ffi.structural_map(part, [(Call, lambda c: new if c.same_as(old) else c)], order="pre")


def _name(call: Call) -> str:
    return str(getattr(call.op, "name", "")).removeprefix(_OURS)


def _is_ours(call: Call) -> bool:
    return str(getattr(call.op, "name", "")).startswith(_OURS)


def expression(name: str, arguments: list[tirx.Expr], avx512: bool) -> tirx.Expr:
    """A function of float32 numbers or vectors as arithmetic."""
    count = int(arguments[0].ty.dtype.lanes)
    lanes = Lanes(count, scaled_by_instruction if avx512 and count % AVX512_LANES == 0 else None)
    values = [lanes.argument(a) for a in arguments]
    return lanes.closed({**FUNCTIONS, **INSTRUCTIONS}[name](*values))

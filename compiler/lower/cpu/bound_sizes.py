"""Sizes that are known only at run time as variables, computed once at the beginning of a kernel.

The size of a map after several convolutions is a long expression, and a kernel's indices repeat it hundreds of times.
TVM and LLVM simplify each of them apart: one kernel takes ten seconds to compile.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx

_OPERATIONS = (tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max)


def with_bound_sizes(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with a variable in place of each expression of its sizes that has more than one operation."""
    sizes = _Sizes(function)
    body = tvm_ffi.structural_map(function.body, [(_OPERATIONS, sizes.bound)], order="pre")
    if not sizes.known:
        return function
    return tirx.PrimFunc(list(function.params), tirx.SeqStmt([*sizes.statements, body]), attrs=function.attrs)


class _Sizes:
    """The size variables of a kernel, and the variables of expressions of them."""

    def __init__(self, function: tirx.PrimFunc) -> None:
        given = [v for p in function.params for v in _variables(p)]
        self.given: list[tirx.Var] = []
        for var in given:
            if not any(var.same_as(known) for known in self.given):
                self.given.append(var)
        self.known: list[tuple[tirx.Expr, tirx.Var]] = []
        self.statements: list[tirx.Stmt] = []

    def bound(self, expr: tirx.Expr) -> tirx.Expr:
        """The variable of an expression of sizes only; any other expression unchanged."""
        if not self._operations(expr):
            return expr
        found = next((var for known, var in self.known if tvm_ffi.structural_equal(known, expr)), None)
        if found is None:
            # A variable's value would take its place in every index again; that of an element in memory does not.
            held = tirx.decl_buffer((1,), str(expr.ty), f"size_{len(self.known)}")
            zero = [tirx.const(0, "int64")]
            found = tirx.Var(f"s{len(self.known)}", str(expr.ty))
            self.statements += [
                tirx.AllocBuffer(held),
                tirx.BufferStore(held, expr, zero),
                tirx.Bind(found, tirx.BufferLoad(held, zero)),
            ]
            self.known.append((expr, found))
        return found

    def _operations(self, expr: tirx.Expr) -> bool:
        """Whether an expression has several operations, and no variables but sizes."""
        if not isinstance(expr, _OPERATIONS) or not any(isinstance(side, _OPERATIONS) for side in (expr.a, expr.b)):
            return False
        used = tirx.analysis.undefined_vars(expr)
        return bool(used) and all(any(var.same_as(size) for size in self.given) for var in used)


def _variables(param: tirx.Var) -> list[tirx.Var]:
    if isinstance(param.ty, tirx.BufferType):
        return [var for dim in param.ty.shape for var in tirx.analysis.undefined_vars(dim)]
    return [param]

"""Sizes that are known only at run time as variables, computed once at the beginning of a kernel.

The size of a map after several convolutions is a long expression, and a kernel's indices repeat it hundreds of times.
TVM and LLVM simplify each of them apart: one kernel takes ten seconds to compile.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx

_OPERATIONS = (
    tirx.Add,
    tirx.Sub,
    tirx.Mul,
    tirx.Div,
    tirx.Mod,
    tirx.FloorDiv,
    tirx.FloorMod,
    tirx.Min,
    tirx.Max,
)


def with_bound_sizes(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with a variable in place of each expression of its sizes that has more than one operation.

    A kernel with a buffer outside shared loops whose length is a size stays as it is: TVM moves such a buffer to the
    beginning, where the variables have no values yet.
    """
    if _sized_buffers(function.body) > sum(_sized_buffers(loop.body) for loop in _shared_loops(function.body)):
        return function
    sizes = _Sizes(function)
    body = tvm_ffi.structural_map(function.body, [(_OPERATIONS, sizes.bound)], order="pre")
    if not sizes.known:
        return function
    return tirx.PrimFunc(list(function.params), tirx.SeqStmt([*sizes.statements, body]), attrs=function.attrs)


def _sized_buffers(body: tirx.Stmt) -> int:
    """The number of buffers whose lengths are not numbers."""
    found: list[tirx.AllocBuffer] = []
    tvm_ffi.structural_walk(body, [(tirx.AllocBuffer, found.append)], order="pre")
    return sum(not all(isinstance(dim, tirx.IntImm) for dim in alloc.buffer.shape) for alloc in found)


def _shared_loops(body: tirx.Stmt) -> list[tirx.For]:
    """The loops that threads share, which do not contain each other."""
    found: list[tirx.For] = []
    tvm_ffi.structural_walk(body, [(tirx.For, found.append)], order="pre")
    return [loop for loop in found if loop.kind == tirx.ForKind.PARALLEL]


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

"""Sizes that are known only at run time as variables, computed once at the beginning of a kernel.

The size of a map after several convolutions is a long expression, and a kernel's indices repeat it hundreds of times.
TVM and LLVM simplify each of them apart: one kernel takes ten seconds to compile.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx

from heterocc.compiler.lower.cpu.sizes import dims_of
from heterocc.compiler.lower.kernels.expressions import parts_of

_TOGETHER = 64
"""Elements of a buffer of sizes: fewer bytes than TVM keeps on the stack."""

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
_KINDS = frozenset(_OPERATIONS)
"""The same for exact types: a test of an instance takes TVM's classes several times as long."""


def with_bound_sizes(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with a variable in place of each expression of its sizes that has more than one operation.

    A kernel with a buffer outside shared loops whose length is a size stays as it is: TVM moves such a buffer to the
    beginning, where the variables have no values yet.
    """
    shared = (loop for loop in parts_of(function.body, tirx.For) if loop.kind == tirx.ForKind.PARALLEL)
    if _sized_buffers(function.body) > sum(_sized_buffers(loop.body) for loop in shared):
        return function
    sizes = _Sizes(function)
    body = tvm_ffi.structural_map(function.body, [(_OPERATIONS, sizes.bound)], order="pre")
    if not sizes.statements:
        return function
    return tirx.PrimFunc(list(function.params), tirx.SeqStmt([*sizes.statements, body]), attrs=function.attrs)


def _sized_buffers(body: tirx.Stmt) -> int:
    """The number of buffers whose lengths are not numbers."""
    shapes = [alloc.buffer.shape for alloc in parts_of(body, tirx.AllocBuffer)]
    return sum(not all(isinstance(dim, tirx.IntImm) for dim in shape) for shape in shapes)


class _Sizes:
    """The size variables of a kernel, and the variables of expressions of them."""

    def __init__(self, function: tirx.PrimFunc) -> None:
        self.given = [var for dim in dims_of(function) for var in tirx.analysis.undefined_vars(dim)]
        self._known: dict[int, list[tuple[tirx.Expr, tirx.Expr]]] = {}
        self.statements: list[tirx.Stmt] = []
        self._held: tirx.Buffer | None = None
        self._count = 0

    def bound(self, expr: tirx.Expr) -> tirx.Expr:
        """The variable of an expression of sizes only; any other expression unchanged.

        Operands that are such expressions have variables, too: large expressions have most parts in common.
        """
        if not self._operations(expr):
            return expr
        alike = self._known.setdefault(tvm_ffi.structural_hash(expr, map_free_vars=True), [])
        variable = next((var for known, var in alike if tvm_ffi.structural_equal(known, expr)), None)
        if variable is None:
            value = type(expr)(self.bound(expr.a), self.bound(expr.b))
            variable = self._variable(value)
            alike.append((expr, variable))
        return variable

    def _variable(self, value: tirx.Expr) -> tirx.Var:
        """A new variable with this value, which would take its place in every index again; an element in memory does
        not.

        Buffers of one element each would share memory, and LLVM describes each store to it for each of them.
        """
        place = self._count % _TOGETHER
        if not place:
            self._held = tirx.decl_buffer((_TOGETHER,), "int64", f"sizes_{self._count // _TOGETHER}")
            self.statements.append(tirx.AllocBuffer(self._held))
        var, at = tirx.Var(f"s{self._count}", "int64"), [tirx.const(place, "int64")]
        self.statements += [
            tirx.BufferStore(self._held, value, at),
            tirx.Bind(var, tirx.BufferLoad(self._held, at)),
        ]
        self._count += 1
        return var

    def _operations(self, expr: tirx.Expr) -> bool:
        """Whether an expression has several operations, no variables but sizes, and an integer as its value."""
        if type(expr) not in _KINDS or (type(expr.a) not in _KINDS and type(expr.b) not in _KINDS):
            return False
        if str(expr.ty.dtype) != "int64":
            return False  # the scale of a Resize, say
        used = tirx.analysis.undefined_vars(expr)
        return bool(used) and all(any(var.same_as(size) for size in self.given) for var in used)

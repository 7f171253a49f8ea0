"""Kernels whose sizes are quotients of a model's named dimensions, with a variable for each dimension of an argument.

The maps of a network are the image's, halved once, twice and so on: a layer at `height // 16` and one at `height // 32`
are the same kernel but for these divisors. With the dimension itself as a variable, which a call reads from the shape
of its argument, they are written and compiled once, or differ only in numbers that common code reads from shapes.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm_ffi
from tvm import tirx

from heterocc.compiler.lower.cpu.assumptions import Assumptions, is_bounded
from heterocc.compiler.lower.cpu.sizes import dims_of
from heterocc.compiler.lower.kernels.expressions import parts_of
from heterocc.compiler.lower.variables import size_variable, typical_of, with_typical
from heterocc.compiler.lower.written import REQUEST, WRITTEN


def with_own_sizes(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with variables in place of expressions that are dimensions, where these say no more than a variable.

    That is so if all that depends on a named dimension are dimensions with one and the same expression, which is at
    least 1, or with quotients of it: the rows of a convolution with a stride, and those of its padded input. Other
    kernels stay as they are.
    """
    if REQUEST in function.attrs or WRITTEN in function.attrs:
        return function
    compound: list[tirx.Expr] = []
    for dim in dims_of(function):
        if not isinstance(dim, tirx.IntImm | tirx.Var) and not any(tvm_ffi.structural_equal(dim, f) for f in compound):
            compound.append(dim)
    if not compound or not all(is_bounded(dim) for dim in compound):
        return function
    shapes = [dim for param in function.params for dim in getattr(param, "shape", [])]
    plain = [dim for dim in shapes if isinstance(dim, tirx.Var)]
    first: list[tuple[tirx.Var, _Quotient]] = []
    for dim in sorted(map(_Quotient.of, compound), key=lambda quotient: quotient.by):
        (named,) = tirx.analysis.undefined_vars(dim.whole)
        known = next((base for var, base in first if var.same_as(named)), None)
        if any(named.same_as(var) for var in plain) or (known is not None and known.times(dim) is None):
            return function
        if known is None:
            first.append((named, dim if dim.plus in (0, 1) else _Quotient(dim.whole, dim.whole)))
    assumed = Assumptions(dims_of(function))
    own = [(dim, _variable(n, dim.whole, assumed)) for n, (_, dim) in enumerate(first)]

    def replaced(expr: tirx.Expr) -> tirx.Expr:
        return next((new for dim, var in own if (new := dim.with_own(var, expr)) is not None), expr)

    kinds = tuple({tirx.Add, tirx.FloorDiv, *(type(dim) for dim in compound)})
    made = tvm_ffi.structural_map(function, [(kinds, replaced)], order="pre")
    made = tirx.PrimFunc(list(made.params), made.body, attrs=made.attrs)  # its type has the variables, too
    left = parts_of(made.body, tirx.Var)
    return function if any(var.same_as(name) for var in left for name, _ in first) else made


def with_typical_batch(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with 1 as the typical value of a batch: a size that is the first dimension wherever it occurs.

    Images come one by one more often than in dozens, and the work on one is little to share among threads. The number
    of rows of a matrix is not a batch.
    """
    shapes = [list(param.shape) for param in function.params if isinstance(param.ty, tirx.BufferType)]
    firsts = [shape[0] for shape in shapes if len(shape) > 2 and isinstance(shape[0], tirx.Var)]
    inner = [var for shape in shapes for dim in shape[1:] for var in tirx.analysis.undefined_vars(dim)]
    batches = [var for var in firsts if typical_of(var) is None and not any(var.same_as(other) for other in inner)]
    if not batches:
        return function
    typical = {var: with_typical(var, 1) for var in batches}
    made = tvm_ffi.structural_map(function, [(tirx.Var, lambda var: typical.get(var, var))], order="post")
    return tirx.PrimFunc(list(made.params), made.body, attrs=made.attrs)  # its type has the variables, too


@dataclass(frozen=True, slots=True)
class _Quotient:
    """A dimension: `part // by + plus`, or another expression, which is its own `part`.

    One whose `plus` is more than 1 has no variable as a quotient: TVM would not know that its quotient is not negative.
    """

    whole: tirx.Expr
    part: tirx.Expr
    by: int = 1
    plus: int = 0

    @classmethod
    def of(cls, dim: tirx.Expr) -> _Quotient:
        quotient, plus = _sum(dim)
        return cls(dim, quotient.a, int(quotient.b), plus) if _is_quotient(quotient) else cls(dim, dim)

    def times(self, other: _Quotient) -> int | None:
        """How many times as large the divisor of another quotient is; None if it is none of the same expression."""
        divides = other.by % self.by == 0 and tvm_ffi.structural_equal(self.part, other.part)
        return other.by // self.by if divides else None

    def with_own(self, variable: tirx.Var, expr: tirx.Expr) -> tirx.Expr | None:
        """An expression in which `variable` is this dimension, in place of one with its quotient; None for others.

        A quotient of a quotient is the quotient by both divisors.
        """
        if tvm_ffi.structural_equal(self.whole, expr):
            return variable
        quotient, plus = _sum(expr)
        times = self.times(_Quotient(quotient, quotient.a, int(quotient.b))) if _is_quotient(quotient) else None
        if times is None:
            return None
        own = variable - self.plus
        return variable + (plus - self.plus) if times == 1 else tirx.floordiv(own, tirx.const(times, "int64")) + plus


def _sum(expr: tirx.Expr) -> tuple[tirx.Expr, int]:
    """An expression as the sum of another one and a number."""
    return (expr.a, int(expr.b)) if isinstance(expr, tirx.Add) and isinstance(expr.b, tirx.IntImm) else (expr, 0)


def _is_quotient(expr: tirx.Expr) -> bool:
    """Whether an expression is a quotient by a number, rounded down."""
    return isinstance(expr, tirx.FloorDiv) and isinstance(expr.b, tirx.IntImm) and int(expr.b) > 0


def _variable(number: int, dim: tirx.Expr, assumed: Assumptions) -> tirx.Var:
    """The variable for a dimension, with its typical value: generators choose as they do for the expression."""
    return size_variable(str(number), dim.ty.dtype, typical=assumed.typical(dim))

"""Kernels whose sizes are quotients of a model's named dimensions, with a variable for each dimension of an argument.

The maps of a network are the image's, halved once, twice and so on: a layer at `height // 16` and one at `height // 32`
are the same kernel but for these divisors. With the dimension itself as a variable, which a call reads from the shape
of its argument, they are written and compiled once, or differ only in numbers that common code reads from shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tvm_ffi
from tvm import tirx

from heterocc.compiler.lower.cpu.assumptions import Assumptions, is_bounded
from heterocc.compiler.lower.cpu.sizes import dims_of
from heterocc.compiler.lower.kernels.expressions import parts_of
from heterocc.compiler.lower.variables import may_be_empty, size_variable, typical_of, with_typical
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
    if not compound:
        return function
    function = tvm_ffi.structural_map(function, [(tirx.Or, _largest_end)], order="post")
    if not all(is_bounded(dim) for dim in compound):
        return function
    shapes = [dim for param in function.params for dim in getattr(param, "shape", [])]
    plain = [dim for dim in shapes if isinstance(dim, tirx.Var)]
    first: list[tuple[tirx.Var, _Quotient]] = []
    for dim in sorted(map(_Quotient.of, compound), key=lambda quotient: quotient.by):
        (named,) = tirx.analysis.undefined_vars(dim.whole)
        known = next((base for var, base in first if var.same_as(named)), None)
        if any(named.same_as(var) for var in plain) or (known is not None and known.of_this(dim) is None):
            return function
        if known is None:
            first.append((named, dim))
    assumed = Assumptions(dims_of(function))
    # Generators choose by typical values as they do for the expressions.
    own = [
        (d, size_variable(str(n), d.whole.ty.dtype, typical=assumed.typical(d.whole))) for n, (_, d) in enumerate(first)
    ]

    def replaced(expr: tirx.Expr) -> tirx.Expr:
        return next((new for dim, var in own if (new := dim.with_own(var, expr)) is not None), expr)

    kinds = tuple({tirx.Add, tirx.Sub, tirx.FloorDiv, *(type(dim) for dim in compound)})
    made = tvm_ffi.structural_map(function, [(kinds, replaced)], order="pre")
    made = tvm_ffi.structural_map(made, [(tirx.LT, _at_most)], order="post")
    made = tirx.PrimFunc(list(made.params), made.body, attrs=made.attrs)  # its type has the variables, too
    left = parts_of(made.body, tirx.Var)
    return function if any(var.same_as(name) for var in left for name, _ in first) else made


def with_numbered_sizes(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with its sizes called by the order of its arguments: kernels that differ in names alone are equal."""
    found: dict[tirx.Var, tirx.Var] = {}
    for dim in dims_of(function):
        for var in tirx.analysis.undefined_vars(dim):
            empty, typical = may_be_empty(var), typical_of(var)
            found.setdefault(var, size_variable(str(len(found)), var.ty, empty=empty, typical=typical))
    return _renamed(function, found)


def with_typical_batch(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with 1 as the typical value of a batch: a size that is the first dimension wherever it occurs.

    Images come one by one more often than in dozens, and the work on one is little to share among threads. The number
    of rows of a matrix is not a batch.
    """
    shapes = [list(param.shape) for param in function.params if isinstance(param.ty, tirx.BufferType)]
    firsts = [shape[0] for shape in shapes if len(shape) > 2 and isinstance(shape[0], tirx.Var)]
    inner = [var for shape in shapes for dim in shape[1:] for var in tirx.analysis.undefined_vars(dim)]
    batches = [var for var in firsts if typical_of(var) is None and not any(var.same_as(other) for other in inner)]
    return _renamed(function, {var: with_typical(var, 1) for var in batches})


def _renamed(function: tirx.PrimFunc, variables: Mapping[tirx.Var, tirx.Var]) -> tirx.PrimFunc:
    """The kernel with other variables in place of these."""
    if not variables:
        return function
    made = tvm_ffi.structural_map(function, [(tirx.Var, lambda var: variables.get(var, var))], order="post")
    return tirx.PrimFunc(list(made.params), made.body, attrs=made.attrs)  # its type has the variables, too


@dataclass(frozen=True, slots=True)
class _Quotient:
    """A dimension: `part // by + plus`, or another expression, which is its own `part`."""

    whole: tirx.Expr
    part: tirx.Expr
    by: int = 1
    plus: int = 0

    @classmethod
    def of(cls, dim: tirx.Expr) -> _Quotient:
        quotient, plus = _sum(dim)
        return cls(dim, quotient.a, int(quotient.b), plus) if _is_quotient(quotient) else cls(dim, dim)

    def of_this(self, other: _Quotient) -> tuple[int, int] | None:
        """What is added to this quotient, and what it is divided by then, for another one: `(part + n * by) // by` is
        `part // by + n`, and a quotient of a quotient that by both divisors. None if the other one is none of these.
        """
        (one, before), (another, further) = _sum(self.part), _sum(other.part)
        more, rest = divmod(further - before, self.by)
        times, left = divmod(other.by, self.by)
        return (more, times) if rest == left == 0 and tvm_ffi.structural_equal(one, another) else None

    def with_own(self, variable: tirx.Var, expr: tirx.Expr) -> tirx.Expr | None:
        """An expression in which `variable` is this dimension, in place of one with its quotient; None for others."""
        if tvm_ffi.structural_equal(self.whole, expr):
            return variable
        quotient, plus = _sum(expr)
        found = self.of_this(_Quotient.of(quotient)) if _is_quotient(quotient) else None
        if found is None:
            return None
        more, times = found
        if times == 1:
            return _added(variable, plus - self.plus + more)
        # At least -1 is added, so that TVM knows that what is divided is not negative, and always in the same way.
        whole, more = divmod(more - self.plus + 1, times)
        return _added(tirx.floordiv(_added(variable, more - 1), tirx.const(times, "int64")), plus + whole)


def _sum(expr: tirx.Expr) -> tuple[tirx.Expr, int]:
    """An expression as the sum of another one and a number."""
    if isinstance(expr, tirx.Add | tirx.Sub) and isinstance(expr.b, tirx.IntImm):
        rest, number = _sum(expr.a)
        return rest, number + int(expr.b) if isinstance(expr, tirx.Add) else number - int(expr.b)
    return expr, 0


def _at_most(less: tirx.LT) -> tirx.Expr:
    """`a < b + 1` as `a <= b`: the end of a padded input is written as either, by what its length is in the model."""
    end, more = _sum(less.b)
    return tirx.LE(less.a, end) if more == 1 else less


def _largest_end(either: tirx.Or) -> tirx.Expr:
    """`v <= a or v < b + 1` as `v <= max(a, b)`, the size of a map, which TVM's rules take apart."""
    (one, first), (other, second) = _upper(either.a), _upper(either.b)
    if one is None or other is None or not one.same_as(other):
        return either
    return tirx.LE(one, tirx.max(first, second))


def _upper(condition: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr] | tuple[None, None]:
    """The value and the bound of `value + number <= bound`, less this number; None for other conditions."""
    if not isinstance(condition, tirx.LE | tirx.LT):
        return None, None
    value, more = _sum(condition.a)
    return value, _added(condition.b, -more - isinstance(condition, tirx.LT))


def _added(expr: tirx.Expr, number: int) -> tirx.Expr:
    """An expression and a number, as a sum or a difference."""
    return expr - -number if number < 0 else expr + number


def _is_quotient(expr: tirx.Expr) -> bool:
    """Whether an expression is a quotient by a number, rounded down."""
    return isinstance(expr, tirx.FloorDiv) and isinstance(expr.b, tirx.IntImm) and int(expr.b) > 0

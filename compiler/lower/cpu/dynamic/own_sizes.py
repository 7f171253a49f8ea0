"""Kernels whose sizes are quotients of a model's named dimensions, with a variable for each dimension of an argument.

The maps of a network are the image's, halved once, twice and so on: a layer at `height // 16` and one at `height // 32`
are the same kernel but for these divisors. With the dimension itself as a variable, which a call reads from the shape
of its argument, they are written and compiled once, or differ only in numbers that common code reads from shapes.
"""

from __future__ import annotations

import tvm_ffi
from tvm import tirx

from heterocc.compiler.lower.cpu.assumptions import Assumptions, is_bounded
from heterocc.compiler.lower.cpu.sizes import dims_of
from heterocc.compiler.lower.variables import size_variable
from heterocc.compiler.lower.written import REQUEST, WRITTEN


def with_own_sizes(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with variables in place of expressions that are dimensions, where these say no more than a variable.

    That is so if all that depends on a named dimension are dimensions with one and the same expression, which is at
    least 1. Other kernels, such as a convolution with a stride, stay as they are.
    """
    if REQUEST in function.attrs or WRITTEN in function.attrs:
        return function
    compound: list[tirx.Expr] = []
    for dim in dims_of(function):
        if not isinstance(dim, tirx.IntImm | tirx.Var) and not any(tvm_ffi.structural_equal(dim, f) for f in compound):
            compound.append(dim)
    if not compound or not all(is_bounded(dim) for dim in compound):
        return function
    named = [var for dim in compound for var in tirx.analysis.undefined_vars(dim)]
    shapes = [dim for param in function.params for dim in getattr(param, "shape", [])]
    plain = [dim for dim in shapes if isinstance(dim, tirx.Var)]
    if any(a.same_as(b) for n, a in enumerate(named) for b in [*named[:n], *plain]):
        return function
    assumed = Assumptions(dims_of(function))
    own = [(dim, _variable(n, dim, assumed)) for n, dim in enumerate(compound)]

    def replaced(expr: tirx.Expr) -> tirx.Expr:
        return next((var for dim, var in own if tvm_ffi.structural_equal(dim, expr)), expr)

    made = tvm_ffi.structural_map(function, [(tuple({type(dim) for dim in compound}), replaced)], order="pre")
    made = tirx.PrimFunc(list(made.params), made.body, attrs=made.attrs)  # its type has the variables, too
    left: list[tirx.Var] = []
    tvm_ffi.structural_walk(made.body, [(tirx.Var, left.append)], order="pre")
    return function if any(var.same_as(name) for var in left for name in named) else made


def _variable(number: int, dim: tirx.Expr, assumed: Assumptions) -> tirx.Var:
    """The variable for a dimension, with its typical value: generators choose as they do for the expression."""
    return size_variable(str(number), dim.ty.dtype, typical=assumed.typical(dim))

"""Reads whose place in memory is a linear form of the loops, though their indices are not.

A Reshape between other operators leaves quotients and remainders in indices: element [c, l // 14, l % 14] of an image
is its element 14 * 14 * c + l in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm import ir, sym, tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.cpu.generate.places import index, linear, offset, shape_of
from heterocc.compiler.lower.cpu.generate.read import Nest
from heterocc.compiler.lower.cpu.sizes import is_number
from heterocc.compiler.lower.kernels.expressions import substituted


def with_linear_reads(value: tirx.Expr, loops: Sequence[tirx.Var], nest: Nest) -> tirx.Expr:
    """An expression of `loops`, which have the extents of the nest's, with places in memory as indices of such reads.

    Only reads of arguments are changed: a place is their last index, and the others are zero.
    """
    known: sym.Analyzer | None = None

    def read(load: TensorLoad) -> tirx.Expr:
        nonlocal known
        if nest.argument(load.source) is None or offset(load.indices, load.source, loops) is not None:
            return load
        if known is None:
            known = sym.Analyzer()
            for var, extent in zip(loops, nest.extents, strict=True):
                known.bind(var, ir.Range(index(0), index(extent)))
        place = _place(load, known)
        if place is None or linear(place, loops) is None:
            return load
        return load.source[(*(index(0) for _ in load.indices[1:]), place)]

    return substituted(value, [], read)


def _place(load: TensorLoad, known: sym.Analyzer) -> tirx.Expr | None:
    """The place in memory, in elements; None for sizes known only at run time, whose products cannot be simplified."""
    shape = shape_of(load.source)
    if shape is None or not all(is_number(n) for n in shape[1:]):
        return None
    place: tirx.Expr = index(0)
    for extent, expr in zip(shape, load.indices, strict=True):
        place = place * index(extent) + expr
    return known.simplify(place)

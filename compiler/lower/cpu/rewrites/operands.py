"""The tensors that attention reads and writes in a Relax function: their shapes, and how they lie in memory."""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import relax, tirx

from heterocc.compiler.lower.cpu.generate.attention.description import Operand, broadcast
from heterocc.compiler.lower.cpu.sizes import Size, size_of
from heterocc.compiler.lower.relax.importer import dtype_name


def dims_of(param: relax.Var) -> Sequence[tirx.Expr]:
    """The dimensions of a tensor, or the sizes that a parameter of sizes has."""
    dims: Sequence[tirx.Expr] = param.ty.values if isinstance(param.ty, relax.ShapeType) else param.ty.shape.values
    return dims


def repeated_heads(before: Sequence[tirx.Expr], wide: Sequence[tirx.Expr], merged: Sequence[tirx.Expr]) -> int | None:
    """How often heads are repeated if [..., heads, 1, rows, columns] is broadcast to [..., heads, n, rows, columns].

    The last shape is that of [..., heads * n, rows, columns]; None for all other shapes.
    """
    if not len(before) == len(wide) == len(merged) + 1 or len(merged) < 3:
        return None
    heads, count, both = wide[-4], wide[-3], merged[-3]
    if not all(isinstance(n, tirx.IntImm) for n in (heads, count, both, before[-3])) or int(before[-3]) != 1:
        return None
    pairs = ((before[:-3], wide[:-3]), (before[-2:], wide[-2:]), (merged[-2:], wide[-2:]), (merged[:-3], wide[:-4]))
    same = all(tvm_ffi.structural_equal(x, y) for one, other in pairs for x, y in zip(one, other, strict=True))
    return int(count) if same and int(both) == int(heads) * int(count) else None


def broadcast_operand(mask: relax.Expr, shape: Sequence[Size]) -> Operand | None:
    """A tensor as an operand that is broadcast to the shape of the scores; None if it cannot be."""
    own = _shape(mask.ty)
    return None if own is None else broadcast(own, dtype_name(mask.ty), shape)


def float_shape(expr: relax.Expr) -> tuple[Size, ...] | None:
    """The shape of a float32 tensor."""
    ty = expr.ty
    return _shape(ty) if isinstance(ty, relax.TensorType) and dtype_name(ty) == "float32" else None


def _shape(ty: relax.TensorType) -> tuple[Size, ...] | None:
    if not isinstance(ty.shape, relax.ShapeExpr):
        return None
    sizes = [size_of(dim) for dim in ty.shape.values]
    return None if any(n is None for n in sizes) else tuple(n for n in sizes if n is not None)

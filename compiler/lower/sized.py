"""Kernels of tensor expressions whose bodies use sizes of named dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tvm_ffi
from tvm import relax, te, tirx

from heterocc.compiler.lower.variables import Extent, as_int64
from heterocc.compiler.lower.written import OPAQUE, PATTERN

Compute = Callable[[list[te.Tensor], list[tirx.Expr], list[tirx.Expr]], te.Tensor]


def emit_sized(
    bb: relax.BlockBuilder,
    compute: Compute,
    tensors: Sequence[relax.Expr],
    extents: Sequence[Extent],
    shape: Sequence[Extent],
    dtype: str,
    name: str,
    *,
    opaque: bool = False,
    shapes: Sequence[Sequence[Extent]] | None = None,
    attrs: Mapping[str, object] | None = None,
) -> relax.Expr:
    """Emit a call of the kernel `compute(tensors, extents, shape)`, which writes a tensor of this shape.

    An `opaque` kernel consists of statements, and is not fused with others. `shapes` are those with which it declares
    its tensors, if they are not to be those of their types. `attrs` are further attributes of the kernel.
    Unlike TVM's `emit_te`, it gives the kernel the sizes that no tensor's shape shows in the order of their names.
    """
    tensors = [bb.normalize(t) for t in tensors]
    fresh: dict[str, tirx.Var] = {}
    old: dict[str, tirx.Var] = {}

    def own(expr: Extent) -> tirx.Expr:
        def variable(var: tirx.Var) -> tirx.Expr:
            old.setdefault(var.name, var)
            return fresh.setdefault(var.name, tirx.Var(var.name, "int64"))

        return tvm_ffi.structural_map(as_int64(expr), [(tirx.Var, variable)], order="post")

    declared = [t.ty.shape.values for t in tensors] if shapes is None else shapes
    given = [
        te.placeholder([own(d) for d in dims], str(t.ty.dtype.dtype), f"given_{i}")
        for i, (t, dims) in enumerate(zip(tensors, declared, strict=True))
    ]
    numbers, wanted = [own(e) for e in extents], [own(d) for d in shape]
    result = compute(given, numbers, wanted)
    shown = {d.name for t in (*given, result) for d in t.shape if isinstance(d, tirx.Var)}
    hidden = sorted(set(fresh) - shown)
    kernel = te.create_prim_func([*given, *(fresh[n] for n in hidden), result]).without_attr("global_symbol")
    if opaque:
        kernel = kernel.with_attr(PATTERN, OPAQUE)
    if attrs:
        kernel = kernel.with_attr(dict(attrs))
    call = relax.call_tir(
        bb.add_func(kernel, name),
        [*tensors, *(old[n] for n in hidden)],
        relax.TensorType([as_int64(d) for d in shape], dtype),
    )
    return bb.emit(call)


def checked(bb: relax.BlockBuilder, tensor: relax.Expr, shape: Sequence[Extent]) -> relax.Expr:
    """A copy of a tensor with a shape that each run's must have, although its type does not show it.

    A run in which it has another one fails in the kernel, which checks sizes that are known only at run time (see
    `codegen/argument_checks.py`). Raises NotImplementedError for a size that is a number, which it does not check.
    """
    own = list(tensor.ty.shape.values)
    if len(own) != len(shape):
        raise NotImplementedError(f"a tensor of {len(own)} dimensions in place of {len(shape)}")
    for left, right in zip(own, shape, strict=True):
        if isinstance(as_int64(left), tirx.IntImm) != isinstance(as_int64(right), tirx.IntImm):
            raise NotImplementedError(f"a size that is known only at run time has to be {left}, and nobody checks it")

    def compute(tensors: list[te.Tensor], _: list[tirx.Expr], wanted: list[tirx.Expr]) -> te.Tensor:
        return te.compute(wanted, lambda *i: tensors[0](*i), name="checked")

    dtype = str(tensor.ty.dtype.dtype)
    return emit_sized(bb, compute, [tensor], [], shape, dtype, "checked", opaque=True, shapes=[shape])

"""Kernels of tensor expressions whose bodies use sizes of named dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tvm_ffi
from tvm import relax, te, tirx

from heterocc.compiler.lower.variables import Extent, as_int64

_OPAQUE = 8  # TVM's pattern of kernels that are not fused with others

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
) -> relax.Expr:
    """Emit a call of the kernel `compute(tensors, extents, shape)`, which writes a tensor of this shape.

    An `opaque` kernel consists of statements, and is not fused with others.
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

    given = [
        te.placeholder([own(d) for d in t.ty.shape.values], str(t.ty.dtype.dtype), f"given_{i}")
        for i, t in enumerate(tensors)
    ]
    numbers, wanted = [own(e) for e in extents], [own(d) for d in shape]
    result = compute(given, numbers, wanted)
    shown = {d.name for t in (*given, result) for d in t.shape if isinstance(d, tirx.Var)}
    hidden = sorted(set(fresh) - shown)
    kernel = te.create_prim_func([*given, *(fresh[n] for n in hidden), result]).without_attr("global_symbol")
    if opaque:
        kernel = kernel.with_attr("op_pattern", _OPAQUE)
    call = relax.call_tir(
        bb.add_func(kernel, name),
        [*tensors, *(old[n] for n in hidden)],
        relax.TensorType([as_int64(d) for d in shape], dtype),
    )
    return bb.emit(call)

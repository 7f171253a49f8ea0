"""Requests for kernels that the CPU back end writes, which knows the vectors of the CPU."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.converters.values import dims_of, dtype_of
from heterocc.compiler.lower.variables import Extent, as_int64
from heterocc.compiler.lower.written import OPAQUE, PATTERN, REQUEST, WRITTEN

"""TVM's pattern of kernels that are not fused with others."""

Typed = tuple[Sequence[Extent], str]
"""The shape and the dtype of a tensor."""


def has_fixed_sizes(value: relax.Expr) -> bool:
    """Whether all dimensions of a tensor are positive numbers, which kernels on request need."""
    return all(isinstance(n, int) and n > 0 for n in dims_of(value))


def has_plain_sizes(value: relax.Expr) -> bool:
    """Whether all dimensions of a tensor are positive numbers or single variables, which some kernels allow."""
    return all(n > 0 if isinstance(n, int) else isinstance(n, tirx.Var) for n in dims_of(value))


def has_positive_sizes(value: relax.Expr) -> bool:
    """Whether no dimension of a tensor is 0 in every run."""
    return all(n > 0 for n in dims_of(value) if isinstance(n, int))


def requested(
    ctx: Context, kind: str, given: Sequence[relax.Expr], results: Sequence[Typed], **options: int | str
) -> relax.Expr:
    """A call of the kernel `kind` of lower/cpu/generate/requested: a tensor, or a tuple of several results."""
    inputs = [ctx.bb.emit(value) for value in given]
    variables: dict[str, tirx.Var] = {}

    def own(extent: Extent) -> tirx.Expr:
        """A dimension in the kernel, which has variables of its own: one for each dimension that is not a number."""
        if isinstance(extent, int):
            return as_int64(extent)
        name = extent.name if isinstance(extent, tirx.Var) else f"size_{len(variables)}"
        return variables.setdefault(str(extent), tirx.Var(name, "int64"))

    with IRBuilder() as builder, build.prim_func(s_tir=True):
        build.func_name(kind)
        request = {"kind": kind, **options}
        build.func_attr({"tirx.noalias": True, WRITTEN: True, PATTERN: OPAQUE, REQUEST: request})
        for number, (shape, dtype) in enumerate([*((dims_of(v), dtype_of(v)) for v in inputs), *results]):
            build.arg(f"a{number}", build.Buffer(tuple(own(n) for n in shape), dtype))
        build.evaluate(tirx.const(0))
    kernel = ctx.bb.add_func(builder.get().without_attr("global_symbol"), ctx.node.op_type.lower())
    types = [relax.TensorType([as_int64(n) for n in shape], dtype) for shape, dtype in results]
    return ctx.bb.emit(relax.call_tir(kernel, inputs, types if len(types) > 1 else types[0]))

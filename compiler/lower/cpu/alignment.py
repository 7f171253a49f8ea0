"""Kernels that take arguments at any address, so that a run can work on its caller's arrays."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx


def at_any_address(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel without TVM's assumption that its arguments start at multiples of 64 bytes.

    Vectors are then loaded by instructions that take any address; they are as fast if it is a multiple. The arguments
    are named by their numbers, so that the same kernel in two places is equal code.
    """
    arguments = [
        (param, _unaligned(param, f"a{number}"))
        for number, param in enumerate(function.params)
        if isinstance(param.ty, tirx.BufferType)
    ]

    def variable(var: tirx.Var) -> tirx.Var:
        return next((new for old, new in arguments if old.same_as(var)), var)

    return tvm_ffi.structural_map(function, [(tirx.Var, variable)], order="post")


def _unaligned(buffer: tirx.Buffer, name: str) -> tirx.Buffer:
    ty = buffer.ty
    return tirx.decl_buffer(
        ty.shape,
        ty.dtype,
        name,
        strides=list(ty.strides) or None,
        elem_offset=ty.elem_offset,
        scope=ty.storage_scope,
        data_alignment=1,
        offset_factor=ty.offset_factor,
    )

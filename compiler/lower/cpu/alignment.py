"""Kernels that take arguments at any address, so that a run can work on its caller's arrays."""

from __future__ import annotations

from collections.abc import Collection

from tvm import tirx
from tvm.ir import Call

from heterocc.compiler.lower.kernels.expressions import parts_of, substituted

ANY_ADDRESS = 1
"""The alignment of an argument of which none is assumed, in bytes."""


def argument_name(number: int) -> str:
    """The name of an argument, the same in every kernel."""
    return f"a{number}"


def at_any_address(function: tirx.PrimFunc, parts: Collection[int] = ()) -> tirx.PrimFunc:
    """The kernel without TVM's assumption that its arguments start at multiples of 64 bytes.

    Vectors are then loaded by instructions that take any address; they are as fast if it is a multiple. Arguments
    numbered in `parts` may begin inside a larger tensor. All are named by their numbers, so that the same kernel in two
    places is equal code.
    """
    buffers = [(n, param) for n, param in enumerate(function.params) if isinstance(param.ty, tirx.BufferType)]
    if not parts and all(_is_anywhere(number, param) for number, param in buffers):
        return function
    replace: list[tuple[tirx.Var, tirx.Var]] = []
    starts: list[tuple[tirx.Var, tirx.Var]] = []
    for number, param in buffers:
        start = None
        if number in parts:
            start = tirx.Var(f"start_{number}", "int64")
            starts.append((param, start))
        replace.append((param, _placed(param, argument_name(number), start)))
    for statement in parts_of(function.body, tirx.DeclBuffer) if starts else ():
        inside = statement.data.args if isinstance(statement.data, Call) else ()
        start = next((s for param, s in starts if any(param.same_as(a) for a in inside)), None)
        if start is not None:
            replace.append((statement.buffer, _placed(statement.buffer, statement.buffer.name, start)))
    return substituted(function, replace)


def _is_anywhere(number: int, param: tirx.Buffer) -> bool:
    """Whether a buffer was written as an argument at any address."""
    return param.name == argument_name(number) and int(param.ty.data_alignment) == ANY_ADDRESS


def _placed(buffer: tirx.Buffer, name: str, start: tirx.Var | None) -> tirx.Buffer:
    """A buffer at any address, from an element of its memory on."""
    ty = buffer.ty
    return tirx.decl_buffer(
        ty.shape,
        ty.dtype,
        name,
        strides=list(ty.strides) or None,
        elem_offset=ty.elem_offset if start is None else start,
        scope=ty.storage_scope,
        data_alignment=ANY_ADDRESS,
        offset_factor=ty.offset_factor if start is None else 1,
    )

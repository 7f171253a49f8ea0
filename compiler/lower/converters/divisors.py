"""Quotients and remainders of integers, of which code for CPUs compares the divisors with 0 before it divides."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import relax, te, tirx

from heterocc.compiler.lower.converters.checked import asserted, nest
from heterocc.compiler.lower.converters.registry import Context
from heterocc.compiler.lower.converters.values import dims_of, dtype_of, scalar
from heterocc.compiler.lower.sized import emit_sized


def checked_divisors(ctx: Context, divisors: relax.Expr) -> relax.Expr:
    """The divisors of a run that ends with an error if one is 0; a division by 0 would end the process.

    Constants without 0 are returned as they are. Raises NotImplementedError for others on a device whose code cannot
    end a run.
    """
    known = ctx.array(divisors)
    if known is not None and known.all():
        return divisors
    if ctx.backend != "cpu":
        raise NotImplementedError("its divisors may be 0, which only code for CPUs can report")

    def compute(given: list[te.Tensor], _: list[tirx.Expr], shape: list[tirx.Expr]) -> te.Tensor:
        dtype = dtype_of(divisors)
        buffers = {
            "in_buffers": [tirx.decl_buffer(given[0].shape, dtype, "divisors")],
            "out_buffers": [tirx.decl_buffer(shape, dtype, "checked")],
        }

        def body(ins: Sequence[tirx.Buffer], outs: Sequence[tirx.Buffer]) -> tirx.Stmt:
            return _body(ctx, ins[0], outs[0])

        return te.extern([tuple(shape)], given, body, name="checked", dtype=[dtype], **buffers)

    dims = dims_of(divisors)
    return emit_sized(ctx.bb, compute, [divisors], [], dims, dtype_of(divisors), "checked_divisors", opaque=True)


def _body(ctx: Context, divisors: tirx.Buffer, checked: tirx.Buffer) -> tirx.Stmt:
    """A loop that finds a 0, the check, and a copy: LLVM makes vectors of both loops, as the check is between them."""
    dtype = str(divisors.dtype)
    found = tirx.decl_buffer([1], dtype, "found", scope="local")
    none, one = tirx.const(0, dtype), tirx.const(1, dtype)

    def seen(i: Sequence[tirx.Var]) -> list[tirx.Stmt]:
        is_zero = tirx.Select(tirx.BufferLoad(divisors, i) == none, one, none)
        return [tirx.BufferStore(found, tirx.bitwise_or(found[0], is_zero), [0])]

    return tirx.SeqStmt(
        [
            tirx.AllocBuffer(found),
            tirx.BufferStore(found, none, [0]),
            nest(divisors.shape, seen),
            asserted(ctx, found[0] == none, "an integer is divided by 0"),
            nest(divisors.shape, lambda i: [tirx.BufferStore(checked, tirx.BufferLoad(divisors, i), i)]),
        ]
    )


def may_overflow(ctx: Context, divisors: relax.Expr) -> bool:
    """Whether one may be -1, whose quotient of the least number exceeds the dtype, which ends a process as well."""
    known = ctx.array(divisors)
    return not dtype_of(divisors).startswith("uint") and (known is None or bool((known == -1).any()))


def is_minus_one(divisors: relax.Expr) -> relax.Expr:
    """Which divisors are -1."""
    return relax.op.equal(divisors, scalar(-1, dtype_of(divisors)))


def without_minus_one(ctx: Context, divisors: relax.Expr) -> relax.Expr:
    """The divisors with 1, which leaves no rest either, in place of -1."""
    if not may_overflow(ctx, divisors):
        return divisors
    return ctx.bb.emit(relax.op.where(is_minus_one(divisors), scalar(1, dtype_of(divisors)), divisors))

"""Generation of kernels that write new rows after earlier ones, in memory that may have room for more rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.converters.elementwise.narrow import bits_of_bfloat16
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.kernels.expressions import dtype_of
from heterocc.compiler.lower.written import APPENDS, OPAQUE, PATTERN, WRITTEN

PAST_ROOM = tirx.Var("room_past", "int64")
RESULT_ROOM = tirx.Var("room_result", "int64")

SHARED = 1 << 15
"""The least number of elements to write that threads share."""


@dataclass(frozen=True, slots=True)
class Append:
    """The concatenation of `count` earlier rows and `added` new ones along an axis of tensors of `shape`.

    The size of `shape` along the axis is not used. Sizes are variables or numbers. If `total` is known, the new rows of
    each item of axis 0 begin at its start instead, and zeros follow them up to `total` rows. New rows of float32 are
    rounded to a `dtype` of 16 bits; "uint16" are the bits of bfloat16.
    """

    shape: tuple[tirx.Expr, ...]
    axis: int
    count: tirx.Var
    added: tirx.Expr
    dtype: str
    total: tirx.Expr | None = None
    given: str | None = None
    """The type of the new rows, if it is another one."""

    @property
    def hidden(self) -> list[tirx.Var]:
        """The variables of `total` that the shapes of tensors and `count` do not show."""
        if self.total is None:
            return []
        shown = [self.count, self.added, *(d for axis, d in enumerate(self.shape) if axis != self.axis)]
        used = tirx.analysis.undefined_vars(self.total)
        return sorted((v for v in used if not any(v.same_as(s) for s in shown)), key=lambda v: str(v.name))

    def sized(self, rows: tirx.Expr) -> tuple[tirx.Expr, ...]:
        """The shape of so many rows."""
        return (*self.shape[: self.axis], rows, *self.shape[self.axis + 1 :])


def write_append(form: Append) -> tirx.PrimFunc:
    """The kernel `(past, new, count, result)`, or `(past, new, starts, count, *hidden, result)`.

    The sizes of `past` and `result` along the axis are those of their memory, which are `count` rows or more and as
    many as the result has or more. If `past` has no row, `count` rows are in `result` already: its memory is that of
    the past, and all starts are `count`.
    """
    before, after = form.shape[: form.axis], form.shape[form.axis + 1 :]
    width = _product(after)
    with IRBuilder() as builder, build.prim_func(s_tir=True):
        build.func_name("append")
        build.func_attr({"tirx.noalias": True, WRITTEN: True, APPENDS: form.axis, PATTERN: OPAQUE})
        given = [
            _argument("past", form, PAST_ROOM, form.dtype),
            _argument("new", form, form.added, form.given or form.dtype),
        ]
        starts = None
        if form.total is not None:
            starts = build.arg("starts", build.Buffer((form.shape[0],), "int64"))
        for size in (form.count, *form.hidden):
            build.arg(size.name, size)
        past, new, result = map(emit.flat, (*given, _argument("result", form, RESULT_ROOM, form.dtype)))
        copied = emit.bound(tirx.min(form.count, PAST_ROOM))
        planes, of_item = _product(before), _product(before[1:])

        def fill(start: tirx.Expr, stop: tirx.Expr, first: tirx.Expr) -> None:
            with build.serial(0, tirx.max(stop - start, tirx.const(0, "int64")) * width) as i:
                build.buffer_store(result, tirx.const(0, form.dtype), [first + start * width + i])

        def write(plane: tirx.Expr) -> None:
            first = emit.bound(plane * (RESULT_ROOM * width))
            source = emit.bound(plane * (PAST_ROOM * width))
            begin, kept = form.count, copied
            if starts is not None:
                begin = emit.bound(starts[tirx.floordiv(plane, of_item)])
                kept = emit.bound(tirx.min(begin, copied))
            with build.serial(0, kept * width) as i:
                build.buffer_store(result, past[source + i], [first + i])
            start = emit.bound(first + begin * width)
            source = emit.bound(plane * (form.added * width))
            with build.serial(0, form.added * width) as i:
                build.buffer_store(result, _rounded(new[source + i], form.dtype), [start + i])
            if form.total is not None:
                fill(tirx.min(begin, form.count), begin, first)
                fill(begin + form.added, form.total, first)

        def each(loop: Callable[..., AbstractContextManager[tirx.Expr]]) -> None:
            with loop(0, planes) as plane:
                write(plane)

        shared = planes * width * (copied + form.added) >= SHARED
        emit.either(shared, lambda: each(build.parallel), lambda: each(build.serial))
    return builder.get()


def _rounded(number: tirx.Expr, dtype: str) -> tirx.Expr:
    if dtype_of(number) == dtype:
        return number
    return bits_of_bfloat16(number) if dtype == "uint16" else tirx.Cast(dtype, number)


def _argument(name: str, form: Append, rows: tirx.Expr, dtype: str) -> tirx.Buffer:
    return build.arg(name, build.Buffer(form.sized(rows), dtype))


def _product(sizes: Sequence[tirx.Expr]) -> tirx.Expr:
    return prod(sizes, start=tirx.const(1, "int64"))

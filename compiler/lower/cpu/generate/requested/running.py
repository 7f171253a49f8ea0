"""Running sums and products along an axis that is not the last one, in vectors along the axes that follow it."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.requested.columns import columns, rows
from heterocc.compiler.lower.cpu.generate.requested.request import Around, Request
from heterocc.compiler.lower.cpu.sizes import exceeds, is_number

BLOCK = 32
"""The vectors of a row that a task computes in turn.

Rows are often a power of two apart, so short pieces of many rows would share few sets of the cache.
"""


def write_running(request: Request, arguments: Sequence[tirx.Buffer]) -> None:
    """Write `(data, result)`: running sums or products. The axis must not be the last one."""
    around = request.around(request.number("axis"))
    lanes = request.lanes(around.inner, request.dtypes[0])
    fits = is_number(around.length) and around.inner >= 2 * lanes * BLOCK
    (_in_blocks if fits else _in_registers)(request, arguments, around, lanes)


def _in_registers(request: Request, arguments: Sequence[tirx.Buffer], around: Around, lanes: int) -> None:
    """The totals of a few vectors of columns in registers."""
    (data, results), (_, count, inner) = arguments, around
    dtype = request.dtypes[0]
    exclusive = bool(request.number("exclusive"))
    with columns(around, lanes) as lines:
        totals = [emit.registers(1, lanes, dtype) for _ in lines.starts]
        for total in totals:
            emit.put(total, emit.broadcast(_neutral(request), lanes), index(0), lanes)
        with build.serial(index(0), index(count)) as step:
            row = (lines.outer * index(count) + _turned(request, step, count)) * index(inner)
            for total, start in zip(totals, lines.starts, strict=True):
                before = emit.vector(total, index(0), lanes)
                after = _plus(request, before, emit.vector(data, row + start, lanes))
                if exclusive:
                    emit.put(results, before, row + start, lanes)
                emit.put(total, after, index(0), lanes)
                if not exclusive:
                    emit.put(results, emit.vector(total, index(0), lanes), row + start, lanes)


def _in_blocks(request: Request, arguments: Sequence[tirx.Buffer], around: Around, lanes: int) -> None:
    """Blocks of a row, each from the same block of the row before, which is in the cache."""
    (data, results), (outer, count, inner) = arguments, around
    exclusive = bool(request.number("exclusive"))
    size = lanes * BLOCK
    blocks = -(-inner // size)
    with rows(outer * blocks, outer * count * inner) as task:
        number, block = emit.unpacked(task, (outer, blocks))
        start = build.bind(block * index(size))
        whole = build.bind(tirx.min(index(BLOCK), tirx.floordiv(index(inner) - start, index(lanes))))

        def row_at(step: tirx.Expr) -> tirx.Expr:
            return build.bind((number * index(count) + _turned(request, step, count)) * index(inner) + start)

        def row_of(step: tirx.Expr, before: tirx.Expr | None) -> None:
            here = row_at(step)
            previous = None if before is None else row_at(before)

            def piece(at: tirx.Expr, wide: int) -> None:
                if previous is None:
                    value = emit.vector(data, here + at, wide)
                    neutral = emit.broadcast(_neutral(request), wide)
                    emit.put(results, neutral if exclusive else value, here + at, wide)
                    return
                added = emit.vector(data, (previous if exclusive else here) + at, wide)
                total = emit.vector(results, previous + at, wide)
                emit.put(results, _plus(request, total, added), here + at, wide)

            with build.serial(index(0), whole) as vector:
                piece(vector * index(lanes), lanes)
            if exceeds(inner, lanes):
                # Only in the last block.
                with (
                    build.If(start + index(size) >= index(inner)),
                    build.Then(),
                    build.serial(index(0), index(inner % lanes)) as single,
                ):
                    piece(whole * index(lanes) + single, 1)

        row_of(index(0), None)
        if count > 1:
            with build.serial(index(1), index(count)) as step:
                row_of(step, step - index(1))


def _turned(request: Request, step: tirx.Expr, count: int) -> tirx.Expr:
    return index(count - 1) - step if request.number("reverse") else step


def _neutral(request: Request) -> tirx.Expr:
    return tirx.const(0 if request.text("of") == "sum" else 1, request.dtypes[0])


def _plus(request: Request, total: tirx.Expr, value: tirx.Expr) -> tirx.Expr:
    return total + value if request.text("of") == "sum" else total * value

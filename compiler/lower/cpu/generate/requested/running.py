"""Running sums and products along an axis that is not the last one, in vectors along the axes that follow it."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.requested.request import Request, rows
from heterocc.compiler.lower.cpu.generate.spans import in_vectors

BLOCK = 32
"""The vectors of a row that a task computes in turn.

Rows are often a power of two apart, so short pieces of many rows would share few sets of the cache.
"""


def write_running(request: Request, arguments: Sequence[tirx.Buffer]) -> None:
    """Write `(data, result)`: running sums or products. The axis must not be the last one.

    Each block of a row is computed from the same block of the row before, which is in the cache. The last one overlaps.
    """
    (data, results), (outer, count, inner) = arguments, request.around(request.number("axis"))
    lanes = request.lanes(inner, request.dtypes[0])
    exclusive = bool(request.number("exclusive"))
    size = min(inner, lanes * BLOCK)
    blocks = -(-inner // size)
    with rows(outer * blocks, outer * count * inner) as task:
        number, block = emit.unpacked(task, (outer, blocks))
        start = build.bind(tirx.min(block * index(size), index(inner - size)))

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

            in_vectors(size, lanes, piece)

        with build.If(index(count) > index(0)), build.Then():
            row_of(index(0), None)
        with build.serial(index(1), index(count)) as step:
            row_of(step, step - index(1))


def _turned(request: Request, step: tirx.Expr, count: int) -> tirx.Expr:
    return index(count - 1) - step if request.number("reverse") else step


def _neutral(request: Request) -> tirx.Expr:
    return tirx.const(0 if request.text("of") == "sum" else 1, request.dtypes[0])


def _plus(request: Request, total: tirx.Expr, value: tirx.Expr) -> tirx.Expr:
    return total + value if request.text("of") == "sum" else total * value

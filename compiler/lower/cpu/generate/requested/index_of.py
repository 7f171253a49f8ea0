"""The place of the extreme along an axis.

An array is [outer, axis, inner]. Vectors are along `inner`, or along the axis if it is the last one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.requested.columns import Columns, columns, rows
from heterocc.compiler.lower.cpu.generate.requested.request import Around, Request
from heterocc.compiler.lower.cpu.generate.spans import folded
from heterocc.compiler.lower.cpu.sizes import exceeds, is_number

CHAINS = 4
"""The vectors of a row that are compared in turn."""


def write_index_of(request: Request, arguments: Sequence[tirx.Buffer]) -> None:
    """Write `(data, result)`: the int64 index of the extreme of float32 along `axis`, the first or last of equals.

    NaN is never an extreme, except as the first element of all.
    """
    outer, count, inner = request.around(request.number("axis"))
    if is_number(count):
        _write(request, arguments)
        return

    def zeros() -> None:
        """ONNX leaves open what the place in an empty row is."""
        with emit.loop(outer * inner) as place:
            build.buffer_store(arguments[1], tirx.const(0, "int64"), [place])

    emit.either(index(count) >= index(1), lambda: _write(request, arguments), zeros)


def _write(request: Request, arguments: Sequence[tirx.Buffer]) -> None:
    data, places = arguments
    around = request.around(request.number("axis"))
    outer, count, inner = around
    largest, last = bool(request.number("largest")), bool(request.number("last"))
    if inner == 1:
        with rows(outer, outer * count) as row:

            def write(lanes: int) -> None:
                result = _in_row(data, row * index(count), (count, lanes), largest=largest, last=last)
                build.buffer_store(places, result, [row])

            wide = request.isa.lanes
            if is_number(count):
                write(wide if count >= wide else 1)
            else:
                emit.either(index(count) >= index(wide), lambda: write(wide), lambda: write(1))
        return
    with columns(around, request.lanes(inner)) as lines:
        _in_columns(data, places, lines, around, largest=largest, last=last)


def _in_row(data: tirx.Buffer, begin: tirx.Expr, sizes: tuple[int, int], *, largest: bool, last: bool) -> tirx.Expr:
    """The index in a row of `count` elements: the best of each lane with its place, and of these the nearest."""
    count, lanes = sizes
    vectors = count // lanes
    chains = min(CHAINS, vectors) if is_number(vectors) else CHAINS
    wide = lanes * chains
    best, place = emit.registers(1, wide), emit.registers(1, wide, "int32")
    emit.put(best, emit.broadcast(_cleaned(build.bind(data[begin]), largest), wide), index(0), wide)
    emit.put(place, emit.zeros(wide, "int32"), index(0), wide)

    def take(at: tirx.Expr, chain: int) -> None:
        here = at.astype("int32")
        numbers = here if lanes == 1 else tirx.Ramp(here, tirx.const(1, "int32"), lanes)
        value = emit.vector(data, begin + at, lanes)
        _enter((best, place), chain * lanes, value, numbers, lanes, largest=largest, last=last)

    whole = vectors // chains
    with build.serial(index(0), index(whole)) as number:
        for chain in range(chains):
            take(number * index(wide) + index(chain * lanes), chain)
    with emit.loop(vectors - whole * chains) as rest:
        take((rest + index(whole * chains)) * index(lanes), 0)
    if exceeds(count, lanes):
        take(index(count - lanes), 0)
    held = [emit.registers(1, wide), emit.registers(1, wide, "int32")]
    emit.put(held[0], emit.vector(best, index(0), wide), index(0), wide)

    def better(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
        return tirx.Select(_wins(a, b, largest), a, b)

    extreme = build.bind(folded(held[0], lanes, better, chains)[index(0)])
    none = tirx.const(-1, "int32") if last else index(count).astype("int32")
    seen = emit.vector(best, index(0), wide).equal(emit.broadcast(extreme, wide))
    emit.put(held[1], tirx.Select(seen, emit.vector(place, index(0), wide), emit.broadcast(none, wide)), index(0), wide)
    return folded(held[1], lanes, tirx.max if last else tirx.min, chains)[index(0)].astype("int64")


def _enter(
    held: tuple[tirx.Buffer, tirx.Buffer],
    first: int,
    value: tirx.Expr,
    numbers: tirx.Expr,
    lanes: int,
    *,
    largest: bool,
    last: bool,
) -> None:
    """Put values and their numbers in place of the best ones held from a lane on, where they win."""
    best, place = held
    known, old = (emit.vector(buffer, index(first), lanes) for buffer in held)
    wins = _wins(value, known, largest, ties=last)
    emit.put(place, tirx.Select(wins, numbers, old), index(first), lanes)
    emit.put(best, tirx.Select(wins, value, known), index(first), lanes)


def _in_columns(
    data: tirx.Buffer,
    places: tirx.Buffer,
    where: Columns,
    around: Around,
    *,
    largest: bool,
    last: bool,
) -> None:
    """The indices in vectors of columns."""
    (_, count, inner), task, starts, lanes = around, where.outer, where.starts, where.lanes
    begin = build.bind(task * index(count * inner))
    held = [(emit.registers(1, lanes, "float32"), emit.registers(1, lanes, "int32")) for _ in starts]
    for (best, place), start in zip(held, starts, strict=True):
        emit.put(best, _cleaned(emit.vector(data, begin + start, lanes), largest, lanes), index(0), lanes)
        emit.put(place, emit.broadcast(tirx.const(0, "int32"), lanes), index(0), lanes)
    if count > 1:
        with build.serial(index(1), index(count)) as step:
            number = emit.broadcast(step.astype("int32"), lanes)
            for both, start in zip(held, starts, strict=True):
                value = emit.vector(data, begin + step * index(inner) + start, lanes)
                _enter(both, 0, value, number, lanes, largest=largest, last=last)
    for (_, place), start in zip(held, starts, strict=True):
        wide = emit.vector(place, index(0), lanes).astype("int64" if lanes == 1 else f"int64x{lanes}")
        emit.put(places, wide, task * index(inner) + start, lanes)


def _wins(a: tirx.Expr, b: tirx.Expr, largest: bool, *, ties: bool = False) -> tirx.Expr:
    """A comparison that is false for NaN."""
    kind = (tirx.GE if largest else tirx.LE) if ties else (tirx.GT if largest else tirx.LT)
    return kind(a, b)


def _cleaned(value: tirx.Expr, largest: bool, lanes: int = 1) -> tirx.Expr:
    """A first element: NaN wins against all numbers."""
    best = emit.broadcast(tirx.const(math.inf if largest else -math.inf, "float32"), lanes)
    return tirx.Select(_is_number(value, lanes), value, best)


def _is_number(value: tirx.Expr, lanes: int = 1) -> tirx.Expr:
    """A comparison that is false for NaN alone; TVM takes x = x for true."""
    return tirx.GE(value, emit.broadcast(tirx.const(-math.inf, "float32"), lanes))

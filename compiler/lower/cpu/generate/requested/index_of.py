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
    """The index in a row of `count` elements: its extreme first, then the place of that."""
    count, lanes = sizes
    vectors, overlaps = count // lanes, exceeds(count, lanes)
    head = build.bind(data[begin])
    counts = _is_number(head)
    chains = min(CHAINS, vectors) if is_number(vectors) else CHAINS
    best = emit.registers(1, lanes * chains, "float32")
    emit.put(best, emit.broadcast(_cleaned(head, largest), lanes * chains), index(0), lanes * chains)

    def take(at: tirx.Expr, chain: int) -> None:
        value, held = emit.vector(data, begin + at, lanes), emit.vector(best, index(chain * lanes), lanes)
        emit.put(best, tirx.Select(_wins(value, held, largest), value, held), index(chain * lanes), lanes)

    whole = vectors // chains
    with build.serial(index(0), index(whole)) as number:
        for chain in range(chains):
            take(number * index(chains * lanes) + index(chain * lanes), chain)
    if is_number(vectors):
        for number in range(whole * chains, vectors):
            take(index(number * lanes), 0)
    else:
        with emit.loop(vectors - whole * chains) as rest:
            take((rest + index(whole * chains)) * index(lanes), 0)
    if overlaps:
        take(index(count - lanes), 0)
    extreme = build.bind(folded(best, lanes, lambda a, b: tirx.Select(_wins(a, b, largest), a, b), chains)[index(0)])

    none = tirx.const(-1, "int32") if last else index(count).astype("int32")
    place = emit.registers(1, lanes, "int32")
    emit.put(place, emit.broadcast(none, lanes), index(0), lanes)

    def nearer(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
        return tirx.max(a, b) if last else tirx.min(a, b)

    def look(at: tirx.Expr) -> None:
        equal = emit.vector(data, begin + at, lanes).equal(emit.broadcast(extreme, lanes))
        here = at.astype("int32")
        numbers = here if lanes == 1 else tirx.Ramp(here, tirx.const(1, "int32"), lanes)
        seen = tirx.Select(equal, numbers, emit.broadcast(none, lanes))
        emit.put(place, nearer(emit.vector(place, index(0), lanes), seen), index(0), lanes)

    with build.serial(index(0), index(vectors)) as number:
        look(number * index(lanes))
    if overlaps:
        look(index(count - lanes))
    equal = build.bind(folded(place, lanes, nearer)[index(0)])
    zero = tirx.const(0, "int32")
    equal = tirx.max(equal, zero) if last else tirx.Select(counts, equal, zero)
    return equal.astype("int64")


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
            for (best, place), start in zip(held, starts, strict=True):
                value = emit.vector(data, begin + step * index(inner) + start, lanes)
                known, old = (emit.vector(buffer, index(0), lanes) for buffer in (best, place))
                wins = _wins(value, known, largest, ties=last)
                number = emit.broadcast(step.astype("int32"), lanes)
                emit.put(place, tirx.Select(wins, number, old), index(0), lanes)
                emit.put(best, tirx.Select(wins, value, known), index(0), lanes)
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

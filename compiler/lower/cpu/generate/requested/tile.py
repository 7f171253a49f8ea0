"""Repetitions of an array whose rows are short: each row is repeated in vectors, and the result copied as a whole."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.requested.columns import rows
from heterocc.compiler.lower.cpu.generate.requested.form import Request
from heterocc.compiler.lower.cpu.sizes import exceeds


def write_tile(request: Request, arguments: Sequence[tirx.Buffer]) -> None:
    """Write `(data, result)`: the array repeated along its axes, of which the result has as many."""
    _, result = arguments
    *before, length = request.shapes[0]
    *after, width = request.shapes[1]
    times = [n // size for n, size in zip(after, before, strict=True)]
    lanes = request.lanes(width, request.dtypes[0])
    with rows(math.prod(before), math.prod(request.shapes[1])) as row:
        places = emit.unpacked(row, before)
        first = build.bind(_flat(places, after) * index(width))
        _write_row(request, arguments, (row * index(length), first), lanes)
        if math.prod(times) == 1:
            return
        with build.serial(index(1), index(math.prod(times))) as copy:
            moved = [
                place + number * index(size)
                for place, number, size in zip(places, emit.unpacked(copy, times), before, strict=True)
            ]
            to = build.bind(_flat(moved, after) * index(width))
            _copy(result, first, (result, to), width, lanes)


def _write_row(
    request: Request, arguments: Sequence[tirx.Buffer], where: tuple[tirx.Expr, tirx.Expr], lanes: int
) -> None:
    """A row of the result: one of the data, repeated."""
    (data, result), (begin, first) = arguments, where
    length, width = request.shapes[0][-1], request.shapes[1][-1]
    if length >= lanes:
        with emit.loop(width // length) as copy:
            to = build.bind(first + copy * index(length))
            _copy(data, begin, (result, to), length, lanes)
        return
    # Vectors of whole repetitions, from the row's start and from its end.
    patterns = [emit.registers(1, lanes, request.dtypes[0]) for _ in range(2)]
    for number in range(length):
        element = build.bind(data[begin + index(number)])
        for pattern, phase in zip(patterns, (0, -lanes), strict=True):
            for lane in range((number - phase) % length, lanes, length):
                build.buffer_store(pattern, element, [index(lane)])
    step = lanes // length * length
    with emit.loop((width - lanes) // step + 1) as number:
        emit.put(result, emit.vector(patterns[0], index(0), lanes), first + number * index(step), lanes)
    emit.put(result, emit.vector(patterns[1], index(0), lanes), first + index(width - lanes), lanes)


def _copy(
    source: tirx.Buffer, begin: tirx.Expr, target: tuple[tirx.Buffer, tirx.Expr], length: int, lanes: int
) -> None:
    """Copy `length` elements in vectors, of which the last one overlaps another."""
    result, to = target

    def move(at: tirx.Expr) -> None:
        emit.put(result, emit.vector(source, begin + at, lanes), to + at, lanes)

    with emit.loop(length // lanes) as number:
        move(number * index(lanes))
    if exceeds(length, lanes):
        move(index(length - lanes))


def _flat(places: Sequence[tirx.Expr], sizes: Sequence[int]) -> tirx.Expr:
    total: tirx.Expr = index(0)
    for place, size in zip(places, sizes, strict=True):
        total = total * index(size) + place
    return total

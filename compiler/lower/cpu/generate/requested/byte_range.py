"""The scale and zero point of bytes for the range of a tensor, in one pass over it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.requested.columns import rows
from heterocc.compiler.lower.cpu.generate.requested.form import Request
from heterocc.compiler.lower.cpu.sizes import exceeds

WIDE = 4
"""Vectors that are compared together: a comparison waits for the one before."""

PART = 1 << 12
"""The smallest number of elements of a task."""

Combine = Callable[[tirx.Expr, tirx.Expr], tirx.Expr]
_ENDS: tuple[Combine, Combine] = (tirx.min, tirx.max)


def write_byte_range(request: Request, arguments: Sequence[tirx.Buffer]) -> None:
    """Write `(data, scale, zero point)`: those of uint8 for the data's range, extended to contain zero.

    The definition is that of ONNX's DynamicQuantizeLinear; a range of zero has the scale 1, as in ONNX Runtime.
    """
    data, scale, zero_point = arguments
    count = math.prod(request.shapes[0])
    lanes = request.lanes(count)
    parts = max(1, min(emit.TASKS, count // PART))
    found = [emit.scratch(parts * lanes) for _ in _ENDS]
    with rows(parts, count) as part:
        _part(data, found, (part, parts), count, lanes)
    low, high = (
        _merged([emit.vector(ends, index(n * lanes), lanes) for n in range(parts)], lanes, combine)
        for ends, combine in zip(found, _ENDS, strict=True)
    )
    zero, one, levels = (build.float32(number) for number in (0.0, 1.0, 255.0))
    span = build.bind(high[index(0)] - low[index(0)])
    step = build.bind(tirx.Select(span == zero, one, span / levels))
    build.buffer_store(scale, step, [index(0)])
    offset = tirx.max(tirx.min(tirx.nearbyint(zero - low[index(0)] / step), levels), zero)
    build.buffer_store(zero_point, tirx.Cast("uint8", offset), [index(0)])


def _part(data: tirx.Buffer, found: Sequence[tirx.Buffer], part: tuple[tirx.Expr, int], count: int, lanes: int) -> None:
    """The least and the largest element of each lane, of some vectors and zero."""
    vectors = -(-count // lanes)
    wide = min(WIDE, vectors)
    held = [[emit.registers(1, lanes) for _ in range(wide)] for _ in _ENDS]
    for registers in held:
        for register in registers:
            emit.put(register, emit.zeros(lanes), index(0), lanes)
    with emit.share_loop(*part, -(-vectors // wide)) as tile:
        for number in range(wide):
            start = (tile * index(wide) + index(number)) * index(lanes)
            if exceeds(count, lanes * wide):
                start = tirx.min(start, index(count - lanes))
            value = emit.vector(data, start, lanes)
            for registers, combine in zip(held, _ENDS, strict=True):
                emit.put(
                    registers[number], combine(emit.vector(registers[number], index(0), lanes), value), index(0), lanes
                )
    for registers, ends, combine in zip(held, found, _ENDS, strict=True):
        total = emit.vector(registers[0], index(0), lanes)
        for register in registers[1:]:
            total = combine(total, emit.vector(register, index(0), lanes))
        emit.put(ends, total, part[0] * index(lanes), lanes)


def _merged(values: Sequence[tirx.Expr], lanes: int, combine: Combine) -> tirx.Buffer:
    """One number from vectors: those first, then halves of one."""
    total = emit.registers(1, lanes)
    emit.put(total, values[0], index(0), lanes)
    for value in values[1:]:
        emit.put(total, combine(emit.vector(total, index(0), lanes), value), index(0), lanes)
    while lanes > 1:
        lanes //= 2
        half = emit.registers(1, lanes)
        emit.put(half, combine(*(emit.vector(total, index(place), lanes) for place in (0, lanes))), index(0), lanes)
        total = half
    return total

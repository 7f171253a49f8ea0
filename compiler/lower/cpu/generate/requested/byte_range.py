"""The scale and zero point of bytes for the range of a tensor, in one pass over it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.requested.request import ELEMENT, Request
from heterocc.compiler.lower.cpu.generate.spans import Combine, folded
from heterocc.compiler.lower.cpu.sizes import is_number, larger, smaller

WIDE = 4
"""Vectors that are compared together: a comparison waits for the one before."""

PART = 1 << 12
"""The smallest number of elements of a task."""

_ENDS: tuple[Combine, Combine] = (lambda end, value: tirx.min(value, end), lambda end, value: tirx.max(value, end))
"""Of a number and NaN, the second operand is the result: a NaN among the data is left out."""


def write_byte_range(request: Request, arguments: Sequence[tirx.Buffer]) -> None:
    """Write `(data, scale, zero point)`: those of uint8 for the data's range, extended to contain zero.

    The definition is that of ONNX's DynamicQuantizeLinear; a range of zero has the scale 1, as in ONNX Runtime.
    """
    data, scale, zero_point = arguments
    count, lanes = math.prod(request.shapes[0]), request.isa.lanes
    parts = larger(1, smaller(emit.TASKS, count // PART))
    whole = count // (lanes * WIDE)
    extremes = [emit.scratch(emit.TASKS * lanes) for _ in _ENDS]
    is_small = is_number(count) and count * ELEMENT < emit.PARALLEL_WORK
    with emit.loop(parts, "serial" if is_small else "parallel") as part:
        _part(data, extremes, emit.Part(part, parts), whole, lanes)
    totals = [emit.registers(1, lanes) for _ in _ENDS]
    for total, ends, combine in zip(totals, extremes, _ENDS, strict=True):
        emit.put(total, emit.vector(ends, index(0), lanes), index(0), lanes)
        with build.serial(index(1), index(parts)) as part:
            _add(total, emit.vector(ends, part * index(lanes), lanes), combine, lanes)
        with build.serial(index(whole * WIDE), index(count // lanes)) as number:
            _add(total, emit.vector(data, number * index(lanes), lanes), combine, lanes)
    low, high = (folded(total, lanes, combine) for total, combine in zip(totals, _ENDS, strict=True))
    with build.serial(index(count - count % lanes), index(count)) as number:
        for end, combine in zip((low, high), _ENDS, strict=True):
            _add(end, emit.vector(data, number, 1), combine, 1)
    zero, one, levels = (build.float32(number) for number in (0.0, 1.0, 255.0))
    span = build.bind(high[index(0)] - low[index(0)])
    step = build.bind(tirx.Select(span == zero, one, span / levels))
    build.buffer_store(scale, step, [index(0)])
    offset = tirx.max(tirx.min(tirx.nearbyint(zero - low[index(0)] / step), levels), zero)
    build.buffer_store(zero_point, tirx.Cast("uint8", offset), [index(0)])


def _part(data: tirx.Buffer, extremes: Sequence[tirx.Buffer], part: emit.Part, whole: int, lanes: int) -> None:
    """The least and the largest element of each lane, of zero and some of the groups of vectors, which are `whole`."""
    held = [[emit.cleared(1, lanes) for _ in range(WIDE)] for _ in _ENDS]
    with emit.share_loop(*part, whole) as group:
        for number in range(WIDE):
            value = emit.vector(data, (group * index(WIDE) + index(number)) * index(lanes), lanes)
            for registers, combine in zip(held, _ENDS, strict=True):
                _add(registers[number], value, combine, lanes)
    for registers, ends, combine in zip(held, extremes, _ENDS, strict=True):
        total = emit.vector(registers[0], index(0), lanes)
        for register in registers[1:]:
            total = combine(total, emit.vector(register, index(0), lanes))
        emit.put(ends, total, part.number * index(lanes), lanes)


def _add(total: tirx.Buffer, value: tirx.Expr, combine: Combine, lanes: int) -> None:
    emit.put(total, combine(emit.vector(total, index(0), lanes), value), index(0), lanes)

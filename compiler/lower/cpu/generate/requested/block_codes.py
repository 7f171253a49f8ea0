"""Rounded rows of a product with a weight in blocks: codes, and scales and sums by block."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.requested.request import Request, rows
from heterocc.compiler.lower.cpu.generate.spans import folded

LEVELS = 127.0
"""The code of the largest number of a block."""


def write_block_codes(request: Request, arguments: Sequence[tirx.Buffer]) -> None:
    """Write `(data, codes, scales, sums)`: codes of int8, and their sums by block in int32.

    Rows of data are in blocks of the option `block`, each with the scale max |x| / 127. A block of zeros has the scale
    0 and codes of 0, one with NaN the scale NaN.
    """
    data, codes, scales, sums = arguments
    block, count = request.number("block"), math.prod(request.shapes[0])
    lanes = min(request.isa.lanes, block)
    vectors = block // lanes
    with rows(count // block, count) as number:
        start = build.bind(number * index(block))
        largest = emit.cleared(1, lanes)
        with emit.loop(vectors) as part:
            value = emit.vector(data, start + part * index(lanes), lanes)
            emit.put(largest, _larger(emit.vector(largest, index(0), lanes), value), index(0), lanes)
        most = build.bind(folded(largest, lanes, _larger)[index(0)])
        zero, levels = (build.float32(value) for value in (0.0, LEVELS))
        scale = build.bind(most / levels)
        inverse = build.bind(tirx.Select(most == zero, zero, levels / most))
        held = emit.cleared(1, lanes)
        with emit.loop(vectors) as part:
            place = start + part * index(lanes)
            level = emit.registers(1, lanes)
            whole = tirx.nearbyint(emit.vector(data, place, lanes) * emit.broadcast(inverse, lanes))
            emit.put(level, whole, index(0), lanes)
            emit.put(codes, tirx.Cast(_of("int8", lanes), emit.vector(level, index(0), lanes)), place, lanes)
            emit.put(held, emit.vector(held, index(0), lanes) + emit.vector(level, index(0), lanes), index(0), lanes)
        build.buffer_store(scales, scale, [number])
        total = folded(held, lanes, lambda a, b: a + b)[index(0)]
        build.buffer_store(sums, tirx.Cast("int32", total), [number])


def _larger(most: tirx.Expr, value: tirx.Expr) -> tirx.Expr:
    """The larger magnitude. As integers numbers without a sign have the same order, and NaN is above all of them."""
    lanes = int(value.ty.dtype.lanes)
    bits = [tirx.reinterpret(_of("int32", lanes), number) for number in (most, tirx.abs(value))]
    return tirx.reinterpret(_of("float32", lanes), tirx.max(*bits))


def _of(dtype: str, lanes: int) -> str:
    return f"{dtype}x{lanes}" if lanes > 1 else dtype

"""The scale and zero point of bytes for the range of a tensor, in one pass over it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.recurrent.levels import Range
from heterocc.compiler.lower.cpu.generate.requested.request import ELEMENT, Request
from heterocc.compiler.lower.cpu.generate.spans import share_vectors
from heterocc.compiler.lower.cpu.sizes import is_number, larger, smaller

WIDE = 4
"""Vectors that are compared together: a comparison waits for the one before."""

PART = 1 << 12
"""The smallest number of elements of a task."""


def write_byte_range(request: Request, arguments: Sequence[tirx.Buffer]) -> None:
    """Write `(data, scale, zero point)`: those of uint8 for the data's range, extended to contain zero."""
    data, scale, zero_point = arguments
    count, lanes = math.prod(request.shapes[0]), request.isa.lanes * WIDE
    parts = larger(1, smaller(emit.TASKS, count // PART))
    limits = emit.scratch(2 * emit.TASKS)
    is_small = is_number(count) and count * ELEMENT < emit.PARALLEL_WORK
    with emit.loop(parts, "serial" if is_small else "parallel") as part:
        some = Range(lanes)
        share_vectors(count, lanes, emit.Part(part, parts), lambda start, width: some.take(data, start, width))
        for number, limit in enumerate(some.limits()):
            build.buffer_store(limits, limit, [part * index(2) + index(number)])
    every = Range(1)
    with emit.loop(2 * parts) as number:
        every.take(limits, number, 1)
    step, offset = every.scale()
    build.buffer_store(scale, step, [index(0)])
    build.buffer_store(zero_point, tirx.Cast("uint8", offset), [index(0)])

"""The scale and zero point of bytes for the range of a tensor, in one pass over it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.requested.request import ELEMENT, Request
from heterocc.compiler.lower.cpu.generate.spans import Combine, folded, share_vectors
from heterocc.compiler.lower.cpu.sizes import is_number, larger, smaller

WIDE = 4
"""Vectors that are compared together: a comparison waits for the one before."""

PART = 1 << 12
"""The smallest number of elements of a task."""

LEVELS = 255.0
"""The largest of bytes."""

_ENDS: tuple[Combine, Combine] = (lambda end, value: tirx.min(value, end), lambda end, value: tirx.max(value, end))
"""Of a number and NaN, the second operand is the result: a NaN among the data is left out."""


class Range:
    """The least and the largest of zero and of numbers that are taken in vectors."""

    def __init__(self, lanes: int) -> None:
        self.lanes, self.ends = lanes, [emit.cleared(1, lanes) for _ in _ENDS]

    def take(self, data: tirx.Buffer, start: tirx.Expr, lanes: int) -> None:
        """Write the code that takes so many numbers of a flat buffer, no more than the range has lanes."""
        for end, combine in zip(self.ends, _ENDS, strict=True):
            value = combine(emit.vector(end, index(0), lanes), emit.vector(data, start, lanes))
            emit.put(end, value, index(0), lanes)

    def limits(self) -> tuple[tirx.Expr, tirx.Expr]:
        """The least and the largest number."""
        low, high = (folded(e, self.lanes, combine)[index(0)] for e, combine in zip(self.ends, _ENDS, strict=True))
        return build.bind(low), build.bind(high)

    def scale(self) -> tuple[tirx.Expr, tirx.Expr]:
        """The height of a level of bytes of the range, and the level of zero, as numbers.

        The definition is that of ONNX's DynamicQuantizeLinear; a range of zero has the scale 1, as in ONNX Runtime.
        """
        (low, high), zero, most = self.limits(), build.float32(0.0), build.float32(LEVELS)
        span = build.bind(high - low)
        scale = build.bind(tirx.Select(span == zero, build.float32(1.0), span / most))
        return scale, build.bind(tirx.max(tirx.min(tirx.nearbyint(zero - low / scale), most), zero))


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

"""Repetitions of an array: each row of the result is copied from one of the data."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.requested.request import Request, rows
from heterocc.compiler.lower.cpu.generate.spans import in_vectors
from heterocc.compiler.lower.cpu.sizes import is_number
from heterocc.compiler.lower.kernels.expressions import itemsize

LONG = 1024
"""The length from which on threads share the repetitions of a row."""


def write_tile(request: Request, arguments: Sequence[tirx.Buffer]) -> None:
    """Write `(data, result)`: the array repeated along its axes, `times` for each."""
    (data, result), dtype = arguments, request.dtypes[0]
    axes = _joined(request.shapes[0], [int(n) for n in request.text("times").split(",")])
    (*before, length), (*copies, last) = zip(*axes, strict=True)
    together = last if is_number(length) and length < LONG else 1
    extents = [*(n for pair in zip(copies, before, strict=True) for n in pair), last // together]
    with rows(math.prod(extents), math.prod(extents) * length * together) as number:
        begin = build.bind(_flat(emit.unpacked(number, extents)[1:-1:2], before) * index(length))
        to = build.bind(number * index(length * together))
        # TVM stores booleans in vectors bitwise.
        lanes = 1 if dtype == "bool" else max(1, request.isa.lanes * 4 // itemsize(dtype))
        with emit.loop(together) as copy:
            there = to + copy * index(length)

            def move(start: tirx.Expr, width: int, there: tirx.Expr = there) -> None:
                emit.put(result, emit.vector(data, begin + start, width), there + start, width)

            in_vectors(length, lanes, move)


def _joined(shape: Sequence[int], times: Sequence[int]) -> list[tuple[int, int]]:
    """The axes of an array and how often each is repeated, each joined with those after it that are not."""
    axes: list[tuple[int, int]] = []
    for size, count in zip(shape, times, strict=True):
        if axes and count == 1:
            axes[-1] = axes[-1][0] * size, axes[-1][1]
        else:
            axes.append((size, count))
    return axes


def _flat(places: Sequence[tirx.Expr], sizes: Sequence[int]) -> tirx.Expr:
    total: tirx.Expr = index(0)
    for place, size in zip(places, sizes, strict=True):
        total = total * index(size) + place
    return total

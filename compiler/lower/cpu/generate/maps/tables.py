"""Maps whose results follow from one byte: each of the 256 results is computed once, then looked up for every element.

Chains of operators between quantised values are such maps: an activation of a dequantised value, quantised again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

import tvm_ffi
from tvm import tirx
from tvm.ir import TensorLoad

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.read import Nest, Stage
from heterocc.compiler.lower.cpu.sizes import is_number
from heterocc.compiler.lower.kernels.expressions import (
    dtype_of,
    is_function,
    loads,
    nodes,
    outside_loads,
    substituted,
    uses,
)

ENTRIES = 256
LEAST_ELEMENTS = 4096
"""Elements below which making a table costs too large a part of the time."""

_BYTES = ("uint8", "int8")


@dataclass(frozen=True, slots=True)
class Table:
    """A map of `count` elements: `byte` computes the byte of each, and `result` the result of a byte.

    `byte` writes the bytes to `output`, the place of the results; `result` is an expression of what it loads from
    `entries`.
    """

    byte: Nest
    result: tirx.Expr
    entries: tirx.Buffer
    output: tirx.Buffer
    count: int


def find_table(nest: Nest) -> Table | None:
    """The map by a table; None for any other map, for one of few elements, and for one that calls no function."""
    count = prod(nest.extents)
    *inner, last = nest.after
    if not is_number(count) or count < LEAST_ELEMENTS or dtype_of(last.buffer) not in _BYTES:
        return None
    if any(nest.argument(s.buffer) is not None for s in inner) or nest.argument(last.buffer) is None:
        return None
    whole = replace(nest, before=tuple(inner), after=(last,)).inlined(last.value)
    for part in sorted(_bytes_in(whole, last), key=lambda part: len(list(nodes(part)))):
        entries = tirx.decl_buffer((ENTRIES,), dtype_of(part), "entries")
        left = replace(last, value=_replaced(whole, part, tirx.BufferLoad(entries, [last.iters[-1]])))
        if _depends(left, entries):
            continue
        if not any(map(is_function, outside_loads(left.value))):
            return None
        bytes_ = replace(last, value=part if dtype_of(part) == "uint8" else tirx.Cast("uint8", part))
        byte = replace(nest, before=(), after=(bytes_,))
        return Table(byte, left.value, entries, last.buffer, count)
    return None


def _bytes_in(expr: tirx.Expr, stage: Stage) -> Iterator[tirx.Expr]:
    """The parts of an expression that are bytes and differ from element to element."""
    for part in outside_loads(expr):
        is_byte = isinstance(part, tirx.Cast | TensorLoad) and dtype_of(part) in _BYTES
        if is_byte and any(uses(part, v) for v in stage.iters):
            yield part


def _replaced(expr: tirx.Expr, part: tirx.Expr, other: tirx.Expr) -> tirx.Expr:
    def rule(node: tirx.Expr) -> tirx.Expr:
        return other if tvm_ffi.structural_equal(node, part) else node

    return tvm_ffi.structural_map(expr, [(type(part), rule)], order="post")


def _depends(stage: Stage, entries: tirx.Buffer) -> bool:
    """Whether a stage depends on the element in another way than by the entry of a table."""
    if any(v.same_as(part) for part in outside_loads(stage.value) for v in stage.iters):
        return True
    others = [load for load in loads(stage.value) if not load.source.same_as(entries)]
    return any(uses(i, v) for load in others for i in load.indices for v in stage.iters)


def write_table(table: Table, arguments: Arguments, lanes: int) -> None:
    """Write the results of the bytes that are in memory in their places."""
    output = arguments.flat(table.output)
    entries, results = emit.scratch(ENTRIES, dtype_of(table.entries)), emit.scratch(ENTRIES, dtype_of(output))
    with emit.loop(ENTRIES) as entry:
        emit.put(entries, tirx.Cast(dtype_of(table.entries), entry), entry, 1)
    with emit.loop(ENTRIES // lanes) as number, emit.loop(lanes, "vectorized") as lane:
        place = number * index(lanes) + lane

        def read(load: TensorLoad) -> tirx.Expr:
            of_entries = load.source.same_as(table.entries)
            return entries[place] if of_entries else arguments.shaped(load.source)[tuple(load.indices)]

        emit.put(results, substituted(table.result, [], read), place, 1)
    parts = emit.shares(2 * table.count, 1, table.count)
    with emit.shared_loop(parts, 2 * table.count) as part, emit.share_loop(part, parts, table.count) as element:
        byte = tirx.Cast("int64", tirx.Cast("uint8", output[element]))
        emit.put(output, results[byte], element, 1)

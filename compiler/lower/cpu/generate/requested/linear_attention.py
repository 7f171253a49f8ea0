"""Attention whose keys and values are summed in a state, step by step: LinearAttention.

The columns of a state depend on no others, so that a task has some vectors of columns of one head, and goes through all
steps with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.requested.request import Request
from heterocc.compiler.lower.cpu.sizes import as_number

WIDE = 4
"""Vectors of columns of a task, which are computed as one."""


def write_linear_attention(request: Request, arguments: Sequence[tirx.Buffer]) -> None:
    """Write `(queries, keys, values, [past], [factors], [rates], result, state)`.

    Queries, keys and values are [batch, steps, heads · size], the state [batch, heads of values, size of keys, size of
    values]. In a step it is multiplied by `factors`, one for each head, or each of its rows; then keys times values are
    added or, with `rates`, keys times a part of what values differ from the state's. The result is the sum of the
    state's rows, times the queries and the option `scale`.
    """
    queries, keys, values, *given, result, state = arguments
    past, factors, rates = (given.pop(0) if request.number(name) else None for name in ("past", "factors", "rates"))
    shapes = request.shapes
    batch, steps, _ = shapes[0]
    heads, size, columns = map(as_number, shapes[-1][1:])
    query_heads, key_heads = request.number("query_heads"), as_number(shapes[1][2]) // size
    group = max(1, query_heads // heads)
    result_heads = as_number(shapes[-2][2]) // columns
    lanes = math.gcd(columns, request.isa.lanes * max(1, WIDE // group))
    chunks = columns // lanes
    scale = tirx.const(float(request.text("scale")), "float32")
    rows_have_factors = factors is not None and as_number(shapes[3 if past is None else 4][2]) != heads
    each_rate = 0 if rates is None else as_number(shapes[-3][2])

    def put(buffer: tirx.Buffer, value: tirx.Expr) -> None:
        emit.put(buffer, value, index(0), lanes)

    def held(buffer: tirx.Buffer, place: tirx.Expr | None = None) -> tirx.Expr:
        return emit.vector(buffer, index(0) if place is None else place, lanes)

    def spread(value: tirx.Expr) -> tirx.Expr:
        return emit.broadcast(value, lanes)

    with emit.shared_loop(batch * heads * chunks, batch * heads * steps * size * columns) as task:
        item, head, chunk = emit.unpacked(task, (batch, heads, chunks))
        first = build.bind(chunk * index(lanes))
        begin = build.bind((item * index(heads) + head) * index(size * columns) + first)
        with emit.loop(size) as row:
            place = begin + row * index(columns)
            emit.put(state, emit.zeros(lanes) if past is None else held(past, place), place, lanes)
        found, change, *sums = (emit.registers(1, lanes) for _ in range(2 + group))
        with build.serial(index(0), index(steps)) as step:
            at = build.bind(item * index(steps) + step)
            key = build.bind((at * index(key_heads) + tirx.floordiv(head, index(heads // key_heads))) * index(size))
            own = tirx.floordiv(head * index(query_heads), index(heads)) if query_heads < heads else head * index(group)
            query = build.bind((at * index(query_heads) + own) * index(size))
            value = build.bind((at * index(heads) + head) * index(columns) + first)

            def factor(row: tirx.Expr, at: tirx.Expr = at) -> tirx.Expr:
                assert factors is not None
                every = at * index(heads) + head
                return factors[every * index(size) + row if rows_have_factors else every]

            for register in (found, *sums):
                put(register, emit.zeros(lanes))
            wanted = held(values, value)
            if rates is not None:
                with build.serial(index(0), index(size)) as row:
                    number = keys[key + row] if factors is None else keys[key + row] * factor(row)
                    put(found, held(found) + spread(number) * held(state, begin + row * index(columns)))
                rate = rates[at * index(each_rate) + (head if each_rate > 1 else index(0))]
                wanted = spread(rate) * (wanted - held(found))
            put(change, wanted)
            with build.serial(index(0), index(size)) as row:
                place = begin + row * index(columns)
                old = held(state, place) if factors is None else held(state, place) * spread(factor(row))
                emit.put(state, old + spread(keys[key + row]) * held(change), place, lanes)
                for number, some in enumerate(sums):
                    one = queries[query + index(number * size) + row]
                    put(some, held(some) + spread(one) * held(state, place))
            for number, some in enumerate(sums):
                to = (at * index(result_heads) + head * index(group) + index(number)) * index(columns) + first
                emit.put(result, held(some) * spread(scale), to, lanes)

"""Products of rows with weights of experts, each row with those that were chosen for it, and these in order.

A route is a row and one of its experts. Routes are ordered by expert, so that a weight is read once for all of its
rows, and weights that no row needs are not read at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.requested.blocked_product import (
    MANY,
    WriteRows,
    blocked_arguments,
    write_columns,
)
from heterocc.compiler.lower.cpu.generate.requested.blocked_weights import PLAIN
from heterocc.compiler.lower.cpu.generate.requested.request import Request
from heterocc.compiler.lower.cpu.sizes import Dim


def write_expert_product(request: Request, arguments: Sequence[tirx.Buffer]) -> None:
    """Write `(rows, …, routes by expert, starts, weight, …, result)`, a row of the result for each route.

    Rows and weight are those of `blocked_product`, the weight with `tiles` of columns for each of `experts`; a row has
    `each` routes, and those of expert `n` begin with place `starts[n]`. With the option `bits` PLAIN, rows are numbers
    without sums, and the weight is float32 or float16 [tiles of all experts, terms, TILE].
    """
    *given, result = arguments
    count = 3 if request.dtypes[0] == "int8" else 1 if request.number("bits") == PLAIN else 2
    order, starts = given[count : count + 2]
    product = blocked_arguments(request, given[:count], given[count + 2 :], result)

    def places(each: int, first: tirx.Expr, count: int) -> Callable[[tirx.Expr], tirx.Expr]:
        """The places of the rows of some routes, of which a row has `each`; with 1, those of their results."""
        held = emit.registers(count, 1, "int64")
        with emit.loop(count, "unroll") as row:
            route = order[first + row]
            build.buffer_store(held, tirx.floordiv(route, index(each)) if each > 1 else route, [row])
        return lambda row: held[row]

    sources, targets = (partial(places, each) for each in (request.number("each"), 1))

    def write_experts(write: WriteRows) -> None:
        with build.serial(index(0), index(request.number("experts"))) as expert:
            first = build.bind(starts[expert])
            number = build.bind(starts[expert + index(1)] - first)
            with build.If(number > index(0)), build.Then():
                begin = build.bind(expert * index(request.number("tiles")))
                write(replace(product, begin=begin, sources=sources, targets=targets), first, Dim(MANY, number))

    write_columns(product, math.prod(request.shapes[-1][:-1]), write_experts)

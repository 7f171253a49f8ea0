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
from heterocc.compiler.lower.cpu.sizes import Dim, Size


class _Routes:
    """The routes by expert: the places of their rows, of which each has `each` routes, and of their results.

    Those of expert `n` begin with place `starts[n]`, and end before the next one.
    """

    def __init__(self, request: Request, order: tirx.Buffer, starts: tirx.Buffer) -> None:
        self.order, self.starts = order, starts
        self.experts, self.each = request.number("experts"), request.number("each")

    def places(self, each: int, first: tirx.Expr, count: int) -> Callable[[tirx.Expr], tirx.Expr]:
        """The places of the rows of some routes, of which a row has `each`; with 1, those of their results."""
        held = emit.registers(count, 1, "int64")
        with emit.loop(count, "unroll") as row:
            route = self.order[first + row]
            build.buffer_store(held, tirx.floordiv(route, index(each)) if each > 1 else route, [row])
        return lambda row: held[row]

    def of_each(self, write: Callable[[tirx.Expr, tirx.Expr, Size], None]) -> None:
        """Write a loop over the experts that have a route, with `write(expert, first route, number of routes)`."""
        with build.serial(index(0), index(self.experts)) as expert:
            first = build.bind(self.starts[expert])
            count = build.bind(self.starts[expert + index(1)] - first)
            with build.If(count > index(0)), build.Then():
                write(expert, first, Dim(MANY, count))


def write_expert_product(request: Request, arguments: Sequence[tirx.Buffer]) -> None:
    """Write `(rows, …, routes by expert, starts, weight, …, result)`, a row of the result for each route.

    Rows and weight are those of `blocked_product`, the weight with `tiles` of columns for each of `experts`; a row has
    `each` routes. With the option `bits` PLAIN, rows are numbers without sums, and the weight is float32 or float16
    [tiles of all experts, terms, TILE].
    """
    *given, result = arguments
    count = 3 if request.dtypes[0] == "int8" else 1 if request.number("bits") == PLAIN else 2
    routes = _Routes(request, *given[count : count + 2])
    product = blocked_arguments(request, given[:count], given[count + 2 :], result)

    def write_experts(write: WriteRows) -> None:
        def of_expert(expert: tirx.Expr, first: tirx.Expr, number: Size) -> None:
            begin = build.bind(expert * index(request.number("tiles")))
            sources, targets = (partial(routes.places, each) for each in (routes.each, 1))
            write(replace(product, begin=begin, sources=sources, targets=targets), first, number)

        routes.of_each(of_expert)

    write_columns(product, math.prod(request.shapes[-1][:-1]), write_experts)

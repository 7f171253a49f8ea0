"""Products of rows with weights of experts, each row with those that were chosen for it, and these in order.

A route is a row and one of its experts. Routes are ordered by expert, so that a weight is read once for all of its
rows, and weights that no row needs are not read at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

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


def write_expert_order(request: Request, arguments: Sequence[tirx.Buffer]) -> None:
    """Write `(experts of routes, routes by expert, groups)`, all of int64; experts are 0 up to the option `experts`.

    Groups are the experts with a route: their number, the place of the first route of each and the end, and from place
    `experts` + 2 on the experts.
    """
    chosen, order, groups = arguments
    experts, routes = request.number("experts"), index(math.prod(request.shapes[0]))
    zero, one = index(0), index(1)
    place, counted = emit.scratch(experts, "int64"), emit.scratch(2, "int64")
    with build.serial(zero, index(experts)) as expert:
        build.buffer_store(place, zero, [expert])
    with build.serial(zero, routes) as route:
        expert = build.bind(chosen[route])
        build.buffer_store(place, place[expert] + one, [expert])
    with build.serial(zero, index(2)) as number:
        build.buffer_store(counted, zero, [number])
    with build.serial(zero, index(experts)) as expert:
        many, start, group = build.bind(place[expert]), build.bind(counted[zero]), build.bind(counted[one])
        with build.If(many > zero), build.Then():
            build.buffer_store(groups, start, [group + one])
            build.buffer_store(groups, expert, [group + index(experts + 2)])
            build.buffer_store(counted, group + one, [one])
        build.buffer_store(place, start, [expert])
        build.buffer_store(counted, start + many, [zero])
    build.buffer_store(groups, counted[one], [zero])
    build.buffer_store(groups, routes, [counted[one] + one])
    with build.serial(zero, routes) as route:
        expert = build.bind(chosen[route])
        to = build.bind(place[expert])
        build.buffer_store(order, route, [to])
        build.buffer_store(place, to + one, [expert])


class _Routes:
    """The routes by expert: the places of their rows, of which each has `each` routes, and of their results."""

    def __init__(self, request: Request, order: tirx.Buffer, groups: tirx.Buffer) -> None:
        self.order, self.groups = order, groups
        self.experts, self.each = request.number("experts"), request.number("each")

    def source(self, first: tirx.Expr, count: int) -> Callable[[tirx.Expr], tirx.Expr]:
        """The places of the rows of some routes."""
        return self._held(first, count, self.each)

    def target(self, first: tirx.Expr, count: int) -> Callable[[tirx.Expr], tirx.Expr]:
        """The places of the results of some routes."""
        return self._held(first, count, 1)

    def _held(self, first: tirx.Expr, count: int, each: int) -> Callable[[tirx.Expr], tirx.Expr]:
        held = emit.registers(count, 1, "int64")
        with emit.loop(count, "unroll") as row:
            route = self.order[first + row]
            build.buffer_store(held, tirx.floordiv(route, index(each)) if each > 1 else route, [row])
        return lambda row: held[row]

    def of_each(self, write: Callable[[tirx.Expr, tirx.Expr, int], None]) -> None:
        """Write a loop over the experts with `write(expert, first route, number of routes)`."""
        with build.serial(index(0), self.groups[index(0)]) as group:
            first = build.bind(self.groups[group + index(1)])
            count = build.bind(self.groups[group + index(2)] - first)
            write(build.bind(self.groups[group + index(self.experts + 2)]), first, Dim(MANY, count))


def write_expert_product(request: Request, arguments: Sequence[tirx.Buffer]) -> None:
    """Write `(rows, …, routes by expert, groups, weight, …, result)`, a row of the result for each route.

    Rows and weight are those of `blocked_product`, the weight with `tiles` of columns for each of `experts`; a row has
    `each` routes. With the option `bits` PLAIN, rows are numbers without sums, and the weight is float32 or float16
    [tiles of all experts, terms, TILE].
    """
    *given, result = arguments
    count = 3 if request.dtypes[0] == "int8" else 1 if request.number("bits") == PLAIN else 2
    routes = _Routes(request, *given[count : count + 2])
    product = blocked_arguments(request, given[:count], given[count + 2 :], result)

    def write_experts(write: WriteRows) -> None:
        def of_expert(expert: tirx.Expr, first: tirx.Expr, number: int) -> None:
            begin = build.bind(expert * index(request.number("tiles")))
            write(replace(product, begin=begin, sources=routes.source, targets=routes.target), first, number)

        routes.of_each(of_expert)

    write_columns(product, math.prod(request.shapes[-1][:-1]), write_experts)

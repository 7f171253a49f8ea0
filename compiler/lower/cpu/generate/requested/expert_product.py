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

from heterocc.compiler.lower.converters.quantised.blocks import TILE
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.requested.blocked_panels import (
    FEW,
    blocks_of_chunk,
    multiply_tile,
    panel_memory,
    panel_tile,
    unpack,
)
from heterocc.compiler.lower.cpu.generate.requested.blocked_product import (
    MANY,
    REGISTERS_A_ROW,
    blocked_arguments,
    write_tile,
)
from heterocc.compiler.lower.cpu.generate.requested.blocked_weights import BlockedArguments
from heterocc.compiler.lower.cpu.generate.requested.request import Request
from heterocc.compiler.lower.cpu.generate.tiles import MANY_ROWS, Run, choose_tile, runs

WriteTile = Callable[[tirx.Expr, int], None]


def write_expert_order(request: Request, arguments: Sequence[tirx.Buffer]) -> None:
    """Write `(experts of routes, routes by expert, groups)`, all of int64; experts are 0 up to the option `experts`.

    Groups are the experts with a route: their number, the place of the first route of each and the end, and from place
    `experts` + 2 on the experts.
    """
    chosen, order, groups = arguments
    experts, routes = request.number("experts"), index(math.prod(request.shapes[0]))
    zero, one = index(0), index(1)
    place, found = emit.scratch(experts, "int64"), emit.scratch(2, "int64")
    with build.serial(zero, index(experts)) as expert:
        build.buffer_store(place, zero, [expert])
    with build.serial(zero, routes) as route:
        expert = build.bind(chosen[route])
        build.buffer_store(place, place[expert] + one, [expert])
    with build.serial(zero, index(2)) as number:
        build.buffer_store(found, zero, [number])
    with build.serial(zero, index(experts)) as expert:
        many, start, group = build.bind(place[expert]), build.bind(found[zero]), build.bind(found[one])
        with build.If(many > zero), build.Then():
            build.buffer_store(groups, start, [group + one])
            build.buffer_store(groups, expert, [group + index(experts + 2)])
            build.buffer_store(found, group + one, [one])
        build.buffer_store(place, start, [expert])
        build.buffer_store(found, start + many, [zero])
    build.buffer_store(groups, found[one], [zero])
    build.buffer_store(groups, routes, [found[one] + one])
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

    def of_each(self, write: Callable[[tirx.Expr, tirx.Expr, tirx.Expr], None]) -> None:
        """Write a loop over the experts with `write(expert, first route, number of routes)`."""
        with build.serial(index(0), self.groups[index(0)]) as group:
            first = build.bind(self.groups[group + index(1)])
            count = build.bind(self.groups[group + index(2)] - first)
            write(build.bind(self.groups[group + index(self.experts + 2)]), first, count)


def _tiles(first: tirx.Expr, count: tirx.Expr, sizes: Sequence[int], write: WriteTile) -> None:
    """Write `count` routes in tiles of the largest size first; the last size is 1."""
    end = build.bind(first + count)
    for size in sizes:
        number = build.bind(tirx.floordiv(end - first, index(size)))
        with emit.loop(number) as tile:
            write(build.bind(first + tile * index(size)), size)
        first = build.bind(first + number * index(size))


def _sizes(tall: int) -> list[int]:
    return sorted({tall, min(tall, FEW), 1}, reverse=True)


def write_expert_product(request: Request, arguments: Sequence[tirx.Buffer]) -> None:
    """Write `(rows, …, routes by expert, groups, weight, …, result)`, a row of the result for each route.

    Rows and weight are those of `blocked_product`, the weight with `tiles` of columns for each of `experts`; a row has
    `each` routes. With the option `bits` 32, rows are numbers without sums, and the weight is float32 or float16
    [tiles of all experts, terms, TILE].
    """
    *given, result = arguments
    count = 3 if request.dtypes[0] == "int8" else 1 if request.number("bits") == 32 else 2
    routes = _Routes(request, *given[count : count + 2])
    if count == 1:
        _write_numbers(request, given[0], given[-1], result, routes)
        return
    product = blocked_arguments(request, given[:count], given[count + 2 :], result)
    tall, columns = panel_tile(product)
    with emit.shared_loop(sum(run.count for run in columns), _work(request)) as group:
        panel = None if product.rounded else panel_memory(product, columns)

        def write_run(run: Run) -> None:
            vectors = build.bind(emit.start_of(run, group)), run.size

            def write(expert: tirx.Expr, first: tirx.Expr, number: tirx.Expr) -> None:
                one = _of_expert(product, routes, expert, request.number("tiles"))
                if panel is None:
                    _write_few(one, vectors, first, number)
                    return
                emit.either(
                    number >= index(MANY),
                    lambda: _write_many(one, panel, vectors, (first, number), tall),
                    lambda: _write_few(one, vectors, first, number),
                )

            routes.of_each(write)

        emit.either_run(columns, group, write_run)


def _work(request: Request) -> int:
    return math.prod(request.shapes[-1]) * request.shapes[0][-1]


def _of_expert(product: BlockedArguments, routes: _Routes, expert: tirx.Expr, tiles: int) -> BlockedArguments:
    """The product with the weight of one expert."""
    begin = build.bind(expert * index(tiles))
    return replace(product, begin=begin, sources=routes.source, targets=routes.target)


def _write_few(product: BlockedArguments, vectors: tuple[tirx.Expr, int], first: tirx.Expr, number: tirx.Expr) -> None:
    """Write routes whose codes are unpacked for each tile of them."""
    sizes = _sizes(product.isa.registers // REGISTERS_A_ROW)
    for vector in range(vectors[1]):
        column = vectors[0] + index(vector)

        def write(row: tirx.Expr, size: int, column: tirx.Expr = column) -> None:
            write_tile(product, column, row, size)

        _tiles(first, number, sizes, write)


def _write_many(
    product: BlockedArguments,
    panel: tirx.Buffer,
    vectors: tuple[tirx.Expr, int],
    routes: tuple[tirx.Expr, tirx.Expr],
    tall: int,
) -> None:
    """Write routes whose number is worth unpacking the weights beforehand."""
    count = blocks_of_chunk(product)
    with emit.loop(product.blocks // count) as chunk:
        unpack(product, panel, vectors, (chunk, count))

        def write(row: tirx.Expr, size: int) -> None:
            multiply_tile(product, panel, vectors, (chunk, count), (row, size))

        _tiles(*routes, _sizes(tall), write)


def _write_numbers(
    request: Request, rows: tirx.Buffer, weight: tirx.Buffer, result: tirx.Buffer, routes: _Routes
) -> None:
    """Write the products of float32, with weights that may be float16."""
    isa = replace(request.isa, lanes=min(request.isa.lanes, TILE))
    columns, terms, lanes = request.shapes[-1][-1], request.shapes[0][-1], isa.lanes
    stored = BlockedArguments(
        isa=isa,
        bits=0,
        block=terms,
        blocks=1,
        columns=columns,
        rows=[rows],
        words=weight,
        scales=weight,
        zeros=0,
        table=None,
        result=result,
    )
    vectors = -(-columns // lanes)
    tall, wide = choose_tile(MANY_ROWS, max(vectors, 2), isa)
    every = runs(vectors, min(wide, 2))
    with emit.shared_loop(sum(run.count for run in every), _work(request)) as group:

        def write_run(run: Run) -> None:
            first_vector = build.bind(emit.start_of(run, group))

            def write(expert: tirx.Expr, first: tirx.Expr, number: tirx.Expr) -> None:
                one = _of_expert(stored, routes, expert, request.number("tiles"))
                starts = []
                for vector in range(run.size):
                    place = one.column(first_vector + index(vector), index(0))
                    inside = tirx.floormod(place, index(TILE))
                    starts.append(build.bind((place - inside) * index(terms) + inside))

                def tile(row: tirx.Expr, size: int) -> None:
                    source = one.sources(row, size)
                    sums = emit.product_tile(
                        size,
                        run.size,
                        terms,
                        isa,
                        lambda r, term: rows[source(r) * index(terms) + term],
                        lambda column, term: tirx.Cast(
                            f"float32x{lanes}", emit.vector(weight, starts[column] + term * index(TILE), lanes)
                        ),
                    )
                    for column, buffer in enumerate(sums):
                        one.store(buffer, (row, size), first_vector + index(column))

                _tiles(first, number, _sizes(tall), tile)

            routes.of_each(write)

        emit.either_run(every, group, write_run)

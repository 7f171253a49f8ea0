"""Products with weights of 2, 4 or 8 bits in blocks, whose codes are read as they are stored (decision 90).

A tile is a vector of columns and some rows. The codes of a block are multiplied by the rows' numbers and summed; then
the sums are multiplied by the block's scales and added to the tile's results. Rows of int8 are multiplied as bytes,
rows of float32 as numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.converters.quantised.blocks import TERMS, TILE
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.any_rows import count_of, row_runs
from heterocc.compiler.lower.cpu.generate.emit import Step
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.requested.blocked_panels import write_panels
from heterocc.compiler.lower.cpu.generate.requested.blocked_weights import BlockedArguments
from heterocc.compiler.lower.cpu.generate.requested.request import Request
from heterocc.compiler.lower.cpu.generate.terms import FLOATS, of_codes
from heterocc.compiler.lower.cpu.sizes import is_number

REGISTERS_A_ROW = 5
"""Registers for each row of a tile: for a result, the sums of a block, and a number, with what codes need."""

WORDS = 4
"""Words of codes that are unpacked in one turn of the loop over a block."""

MANY = 16
"""Rows of float32 for which unpacked weights are worth being stored."""


def write_blocked_product(request: Request, arguments: Sequence[tirx.Buffer]) -> None:
    """Write `(rows, their sums, words, scales, [zeros], [table], result)`; rows of int8 have scales before their sums.

    Shapes: rows [..., blocks · block], sums and scales of rows [..., blocks], words, scales and zeros as those of
    BlockedWeight, the result [..., columns].
    """
    *given, result = arguments
    count = 3 if request.dtypes[0] == "int8" else 2
    product = blocked_arguments(request, given[:count], given[count:], result)
    rows = math.prod(request.shapes[-1][:-1])
    if product.rounded or (is_number(rows) and rows < MANY):
        _write_tiles(product, rows)
    elif is_number(rows):
        write_panels(product, rows)
    else:
        emit.either(
            index(rows) >= index(MANY), lambda: write_panels(product, rows), lambda: _write_tiles(product, rows)
        )


def blocked_arguments(
    request: Request, rows: Sequence[tirx.Buffer], weight: Sequence[tirx.Buffer], result: tirx.Buffer
) -> BlockedArguments:
    """The arguments of a product of rows, as `block_factor` has them, and a weight, as `weight_tables` has it."""
    words, scales, *more = weight
    table = more.pop() if request.number("table") else None
    return BlockedArguments(
        isa=replace(request.isa, lanes=min(request.isa.lanes, TILE)),
        bits=request.number("bits"),
        block=request.number("block"),
        blocks=request.shapes[1][-1],
        columns=request.shapes[-1][-1],
        rows=rows,
        words=words,
        scales=scales,
        zeros=more[0] if more else request.number("zero"),
        table=table,
        result=result,
        signed=bool(request.number("signed")),
    )


def _write_tiles(given: BlockedArguments, rows: int) -> None:
    """Write the product vector by vector of columns, whose codes stay in a cache for all rows."""
    tiles = row_runs(rows, given.isa.registers // REGISTERS_A_ROW)
    vectors = -(-given.columns // given.isa.lanes)
    count = count_of(rows, tiles)
    with emit.shared_loop(vectors, rows * given.columns * given.terms) as vector, emit.loop(count) as tile:
        emit.either_run(tiles, tile, lambda run: write_tile(given, vector, emit.start_of(run, tile), run.size))


def write_tile(given: BlockedArguments, vector: tirx.Expr, first: tirx.Expr, count: int) -> None:
    """Write `count` rows from `first` on of a vector of columns."""
    lanes = given.isa.lanes
    totals, source = emit.registers(count, lanes), given.sources(first, count)
    with emit.loop(count, "unroll") as row:
        emit.put(totals, emit.zeros(lanes), row * index(lanes), lanes)
    with build.serial(index(0), index(given.blocks)) as block:
        _add_block(given, totals, (source, count), vector, block)
    given.store(totals, (first, count), vector)


def _add_block(
    given: BlockedArguments,
    totals: tirx.Buffer,
    rows: tuple[Callable[[tirx.Expr], tirx.Expr], int],
    vector: tirx.Expr,
    block: tirx.Expr,
) -> None:
    """Add the products of a block: Σ (code - zero) · number = Σ code · number - zero · Σ number, times the scales."""
    lanes, (source, count) = given.isa.lanes, rows
    kind = of_codes(given.isa, given.bits) if given.rounded else FLOATS
    column = given.column(vector, block)

    def begin(row: tirx.Expr, _: int) -> tirx.Expr:
        number = emit.broadcast(given.rows[-1][source(row) * index(given.blocks) + block], lanes)
        return emit.zeros(lanes, kind.sums) - given.zero(column, kind.sums) * number

    def walk(_: int, step: Step) -> None:
        together = math.gcd(given.words_of_block, WORDS)
        with emit.loop(given.words_of_block // together) as turn:
            for number in range(together):
                word = turn * index(together) + index(number)
                codes = given.word(column, word)
                for part in range(given.steps):
                    term = block * index(given.block) + (word * index(given.steps) + index(part)) * index(TERMS)
                    if given.rounded:
                        step((term, given.codes(codes, part)), 0)
                        continue
                    for place in range(TERMS):
                        values = emit.registers(1, lanes)
                        emit.put(values, given.numbers(codes, part, place), index(0), lanes)
                        step((term + index(place), emit.vector(values, index(0), lanes)), 0)

    def factor(row: tirx.Expr, term: tuple[tirx.Expr, tirx.Expr]) -> tirx.Expr:
        return kind.number(given.rows[0], source(row) * index(given.terms) + term[0])

    (sums,) = emit.product_tile(count, 1, 1, given.isa, factor, lambda _, term: term[1], walk, begin=begin, kind=kind)
    with emit.loop(count, "unroll") as row:
        place, scale = row * index(lanes), given.scale(column)
        if given.rounded:
            scale = emit.broadcast(given.rows[1][source(row) * index(given.blocks) + block], lanes) * scale
        total = tirx.Cast(f"float32x{lanes}", emit.vector(sums, place, lanes))
        emit.put(totals, emit.vector(totals, place, lanes) + total * scale, place, lanes)

"""Products with weights of 2, 4 or 8 bits in blocks, whose codes are read as they are stored (decision 90).

A tile is a vector of columns and some rows. The codes of a block are multiplied by the rows' numbers and summed; then
the sums are multiplied by the block's scales and added to the tile's results. Rows of int8 are multiplied as bytes,
rows of float32 as numbers. For many rows of float32, the weights of some columns are unpacked first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.converters.quantised.blocks import TERMS, TILE
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.any_rows import each_tile
from heterocc.compiler.lower.cpu.generate.emit import Step
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.requested.blocked_weights import PLAIN, BlockedArguments
from heterocc.compiler.lower.cpu.generate.requested.request import Request
from heterocc.compiler.lower.cpu.generate.terms import FLOATS, of_codes
from heterocc.compiler.lower.cpu.generate.tiles import MANY_ROWS, Run, choose_tile, runs
from heterocc.compiler.lower.cpu.sizes import Size, as_number, is_number

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
    many = not (is_number(rows) and rows < MANY)
    write_columns(product, rows, lambda write: write(product, index(0), rows), many=many)


def blocked_arguments(
    request: Request, rows: Sequence[tirx.Buffer], weight: Sequence[tirx.Buffer], result: tirx.Buffer
) -> BlockedArguments:
    """The arguments of a product of rows, as `block_factor` has them, and a weight, as `weight_tables` has it."""
    isa = replace(request.isa, lanes=min(request.isa.lanes, TILE))
    bits, columns = request.number("bits"), as_number(request.shapes[-1][-1])
    if bits == PLAIN:
        (words,) = weight
        return BlockedArguments(
            isa, bits, as_number(request.shapes[0][-1]), 1, columns, rows, words, words, 0, None, result
        )
    words, scales, *more = weight
    table = more.pop() if request.number("table") else None
    return BlockedArguments(
        isa=isa,
        bits=bits,
        block=request.number("block"),
        blocks=as_number(request.shapes[1][-1]),
        columns=columns,
        rows=rows,
        words=words,
        scales=scales,
        zeros=more[0] if more else request.number("zero"),
        table=table,
        result=result,
        signed=bool(request.number("signed")),
    )


WriteRows = Callable[[BlockedArguments, tirx.Expr, Size], None]
"""Writes the products of a number of rows, from the first on, by the weights of some columns."""


def write_columns(given: BlockedArguments, rows: Size, body: Callable[[WriteRows], None], *, many: bool = True) -> None:
    """Write a loop over the columns, a few vectors at a time, with `body(write)` for each; `write` writes some rows.

    The work is that of `rows`; `many` is whether there may be so many that weights are unpacked for all of them.
    """
    isa = given.isa
    vectors = -(-given.columns // isa.lanes)
    tall, wide = choose_tile(MANY_ROWS, max(vectors, 2), isa)
    columns = runs(vectors, min(wide, 2))
    unpacks = many and not (given.rounded or given.plain)
    with emit.shared_loop(sum(run.count for run in columns), rows * given.columns * given.terms) as group:
        panel = emit.scratch(given.chunk * given.block * columns[0].size * isa.lanes) if unpacks else None

        def write_run(run: Run) -> None:
            panel_of = _Panel(panel, build.bind(emit.start_of(run, group)), run.size)
            body(lambda one, first, count: _write_rows(one, panel_of, first, count, tall))

        emit.either_run(columns, group, write_run)


@dataclass(frozen=True, slots=True)
class _Panel:
    """Some vectors of columns from the first on, and memory for their unpacked weights if there may be many rows."""

    memory: tirx.Buffer | None
    first: tirx.Expr
    vectors: int


def _write_rows(given: BlockedArguments, panel: _Panel, begin: tirx.Expr, count: Size, tall: int) -> None:
    """Write some rows for the columns of a panel: the codes are unpacked for each tile of these, or once for many."""

    def few() -> None:
        with emit.loop(panel.vectors) as vector:
            column = emit.bound(panel.first + vector)
            most = given.isa.registers // REGISTERS_A_ROW
            each_tile(count, most, lambda first, size: _write_tile(given, column, begin + first, size))

    def many() -> None:
        with emit.loop(given.blocks // given.chunk) as chunk:
            if panel.memory is not None:
                _unpack(given, panel, chunk)
            each_tile(count, tall, lambda first, size: _multiply(given, panel, chunk, begin + first, size), near=True)

    if given.plain:
        many()
    elif panel.memory is None:
        few()
    elif is_number(count):
        many()
    else:
        emit.either(index(count) >= index(MANY), many, few)


def _unpack(given: BlockedArguments, panel: _Panel, chunk: tirx.Expr) -> None:
    """Write the weights of a chunk of blocks as [term][vector][lane]."""
    lanes, memory = given.isa.lanes, panel.memory
    assert memory is not None
    with emit.loop(given.chunk) as local:
        block = build.bind(chunk * index(given.chunk) + local)
        for vector in range(panel.vectors):
            column = given.column(panel.first + index(vector), block)
            scale = emit.register(given.scale(column), lanes)
            zero = emit.register(tirx.Cast(f"float32x{lanes}", given.zero(column, "float32")), lanes)
            with emit.loop(given.words_of_block) as word:
                codes = given.word(column, word)
                for step in range(given.steps):
                    for term in range(TERMS):
                        value = given.numbers(codes, step, term)
                        value = (value - emit.vector(zero, index(0), lanes)) * emit.vector(scale, index(0), lanes)
                        at = local * index(given.block) + (word * index(given.steps) + index(step)) * index(TERMS)
                        place = ((at + index(term)) * index(panel.vectors) + index(vector)) * index(lanes)
                        emit.put(memory, value, place, lanes)


def _multiply(given: BlockedArguments, panel: _Panel, chunk: tirx.Expr, first: tirx.Expr, size: int) -> None:
    """Write the products of a chunk of blocks for some rows, or add them to the results of the chunks before."""
    row = build.bind(first)
    lanes, wide, terms = given.isa.lanes, panel.vectors, given.chunk * given.block
    source, begin = given.sources(row, size), build.bind(chunk * index(terms))
    places = [given.plain_place(panel.first + index(n)) for n in range(wide)] if given.plain else []

    def weights(column: int, term: tirx.Expr) -> tirx.Expr:
        if panel.memory is not None:
            return emit.vector(panel.memory, (term * index(wide) + index(column)) * index(lanes), lanes)
        stored = emit.vector(given.words, places[column] + term * index(TILE), lanes)
        return tirx.Cast(f"float32x{lanes}", stored)

    def number(r: tirx.Expr, term: tirx.Expr) -> tirx.Expr:
        return given.rows[0][source(r) * index(given.terms) + begin + term]

    for column, buffer in enumerate(emit.product_tile(size, wide, terms, given.isa, number, weights)):
        given.store(buffer, row, size, panel.first + index(column), None if given.plain else chunk)


def _write_tile(given: BlockedArguments, vector: tirx.Expr, first: tirx.Expr, count: int) -> None:
    """Write `count` rows from `first` on of a vector of columns."""
    lanes = given.isa.lanes
    totals, source = emit.cleared(count, lanes), given.sources(first, count)
    with build.serial(index(0), index(given.blocks)) as block:
        _add_block(given, totals, source, count, vector, block)
    given.store(totals, first, count, vector)


def _add_block(
    given: BlockedArguments,
    totals: tirx.Buffer,
    source: Callable[[tirx.Expr], tirx.Expr],
    count: int,
    vector: tirx.Expr,
    block: tirx.Expr,
) -> None:
    """Add the products of a block: Σ (code - zero) · number = Σ code · number - zero · Σ number, times the scales."""
    lanes = given.isa.lanes
    kind = of_codes(given.isa, given.bits) if given.rounded else FLOATS
    column = given.column(vector, block)

    def begin(row: tirx.Expr, _: int) -> tirx.Expr:
        number = emit.broadcast(given.rows[-1][source(row) * index(given.blocks) + block], lanes)
        return emit.zeros(lanes, kind.sums) - given.zero(column, kind.sums) * number

    def walk(_: Size, step: Step) -> None:
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
                        values = emit.register(given.numbers(codes, part, place), lanes)
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

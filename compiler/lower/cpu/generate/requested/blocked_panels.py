"""Products of many rows of float32 with weights in blocks: the weights of some columns are unpacked for all rows."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.converters.quantised.blocks import TERMS
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.requested.blocked_weights import BlockedArguments
from heterocc.compiler.lower.cpu.generate.tiles import MANY_ROWS, Run, choose_tile, runs
from heterocc.compiler.lower.kernels.expressions import divisor_up_to

CHUNK = 512
"""Terms whose weights are unpacked together: with the rows of a tile they stay in the nearest caches."""

FEW = 4
"""Rows of the tiles for what tiles of the best size leave, before single rows."""


def write_panels(given: BlockedArguments, rows: int) -> None:
    """Write the product of `rows` rows of float32: chunk by chunk of terms, panel by panel of columns."""
    tall, columns = panel_tile(given)
    count = blocks_of_chunk(given)
    with emit.shared_loop(sum(run.count for run in columns), rows * given.columns * given.terms) as group:
        panel = panel_memory(given, columns)
        with emit.loop(given.blocks // count) as chunk:

            def write(run: Run, chunk: tirx.Expr = chunk) -> None:
                first = build.bind(emit.start_of(run, group))
                unpack(given, panel, (first, run.size), (chunk, count))
                tiles = row_tiles(rows, tall)
                with emit.loop(sum(run.count for run in tiles)) as tile:

                    def multiply(some: Run) -> None:
                        rows_of_tile = build.bind(emit.start_of(some, tile)), some.size
                        multiply_tile(given, panel, (first, run.size), (chunk, count), rows_of_tile)

                    emit.either_run(tiles, tile, multiply)

            emit.either_run(columns, group, write)


def panel_tile(given: BlockedArguments) -> tuple[int, tuple[Run, ...]]:
    """The rows of a tile, and the columns in vectors that are unpacked together."""
    vectors = -(-given.columns // given.isa.lanes)
    tall, wide = choose_tile(MANY_ROWS, max(vectors, 2), given.isa)
    return tall, runs(vectors, min(wide, 2))


def blocks_of_chunk(given: BlockedArguments) -> int:
    """The blocks of a chunk of terms."""
    return divisor_up_to(given.blocks, max(1, CHUNK // given.block))


def panel_memory(given: BlockedArguments, columns: Sequence[Run]) -> tirx.Buffer:
    """Memory for the weights of a chunk of terms."""
    wide = max(run.size for run in columns)
    return emit.scratch(blocks_of_chunk(given) * given.block * wide * given.isa.lanes)


def row_tiles(rows: int, tall: int) -> tuple[Run, ...]:
    """Rows in tiles of `tall`, then of a few, then single ones; no two tiles have a row in common."""
    tiles: list[Run] = []
    first: int = 0
    start: int = 0
    for size in sorted({tall, min(tall, FEW), 1}, reverse=True):
        count = (rows - start) // size
        tiles.append(Run(first, start, count, size))
        first, start = first + count, start + count * size
    return tuple(tiles)


def unpack(
    given: BlockedArguments, panel: tirx.Buffer, vectors: tuple[tirx.Expr, int], chunk: tuple[tirx.Expr, int]
) -> None:
    """Write the weights of a chunk of blocks as [term][vector][lane]."""
    (first, wide), (number, count), lanes = vectors, chunk, given.isa.lanes
    with emit.loop(count) as local:
        block = build.bind(number * index(count) + local)
        for vector in range(wide):
            column = given.column(first + index(vector), block)
            scale, zero = emit.registers(1, lanes), emit.registers(1, lanes)
            emit.put(scale, given.scale(column), index(0), lanes)
            emit.put(zero, tirx.Cast(f"float32x{lanes}", given.zero(column, "float32")), index(0), lanes)
            with emit.loop(given.words_of_block) as word:
                codes = given.word(column, word)
                for step in range(given.steps):
                    for term in range(TERMS):
                        value = given.numbers(codes, step, term)
                        value = (value - emit.vector(zero, index(0), lanes)) * emit.vector(scale, index(0), lanes)
                        at = local * index(given.block) + (word * index(given.steps) + index(step)) * index(TERMS)
                        place = ((at + index(term)) * index(wide) + index(vector)) * index(lanes)
                        emit.put(panel, value, place, lanes)


def multiply_tile(
    given: BlockedArguments,
    panel: tirx.Buffer,
    vectors: tuple[tirx.Expr, int],
    chunk: tuple[tirx.Expr, int],
    rows: tuple[tirx.Expr, int],
) -> None:
    """Add the products of a chunk, given as its number and its blocks, to the results of some rows."""
    (first, wide), (number, blocks), (row, size), lanes = vectors, chunk, rows, given.isa.lanes
    terms, source = blocks * given.block, given.sources(row, size)
    begin = build.bind(number * index(terms))
    sums = emit.product_tile(
        size,
        wide,
        terms,
        given.isa,
        lambda r, term: given.rows[0][source(r) * index(given.terms) + begin + term],
        lambda column, term: emit.vector(panel, (term * index(wide) + index(column)) * index(lanes), lanes),
    )
    for column, buffer in enumerate(sums):
        given.store(buffer, rows, first + index(column), number)

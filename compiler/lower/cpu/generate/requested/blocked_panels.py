"""Products of many rows of float32 with weights in blocks: the weights of some columns are unpacked for all rows."""

from __future__ import annotations

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
    lanes = given.isa.lanes
    vectors = -(-given.columns // lanes)
    tall, wide = choose_tile(MANY_ROWS, max(vectors, 2), given.isa)
    wide = min(wide, 2)
    count = divisor_up_to(given.blocks, max(1, CHUNK // given.block))
    columns = runs(vectors, wide)
    with emit.shared_loop(sum(run.count for run in columns), rows * given.columns * given.terms) as group:
        panel = emit.scratch(count * given.block * wide * lanes)
        with emit.loop(given.blocks // count) as chunk:

            def write(run: Run, chunk: tirx.Expr = chunk) -> None:
                first = build.bind(emit.start_of(run, group))
                _unpack(given, panel, (first, run.size), (chunk, count))
                _multiply(given, panel, (first, run.size), (chunk, count * given.block), row_tiles(rows, tall))

            emit.either_run(columns, group, write)


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


def _unpack(
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


def _multiply(
    given: BlockedArguments,
    panel: tirx.Buffer,
    vectors: tuple[tirx.Expr, int],
    chunk: tuple[tirx.Expr, int],
    tiles: tuple[Run, ...],
) -> None:
    """Add the products of a chunk to the results of all rows."""
    (first, wide), (number, terms), lanes = vectors, chunk, given.isa.lanes
    with emit.loop(sum(run.count for run in tiles)) as tile:

        def write(run: Run) -> None:
            row = build.bind(emit.start_of(run, tile))
            data = build.bind(row * index(given.terms) + number * index(terms))
            sums = emit.product_tile(
                run.size,
                wide,
                terms,
                given.isa,
                lambda r, term: given.rows[0][data + r * index(given.terms) + term],
                lambda column, term: emit.vector(panel, (term * index(wide) + index(column)) * index(lanes), lanes),
            )
            for column, buffer in enumerate(sums):
                given.store(buffer, (row, run.size), first + index(column), number)

        emit.either_run(tiles, tile, write)

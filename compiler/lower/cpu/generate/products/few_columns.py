"""Sums of few columns, of which a vector would be mostly empty: vectors lie along the rows of a tile of a weight.

The weight is read as it is packed for other numbers of columns: the numbers of a term follow each other for all rows
of a tile, which are about as many as a vector has lanes. Several tiles are computed at once, so that there are enough
sums, and each number serves all of them. Products and direct convolutions of any size have such code. A voice detector
(silero_vad), whose layers have four places, two and one, takes 2.5 times as long without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.masked import mask, masked_vector
from heterocc.compiler.lower.cpu.generate.places import Place, at, index
from heterocc.compiler.lower.cpu.generate.products.product_reads import ProductReads
from heterocc.compiler.lower.cpu.generate.terms import FLOATS
from heterocc.compiler.lower.cpu.generate.tiles import Run
from heterocc.compiler.lower.cpu.sizes import is_number

FEW = 4
"""The most columns that have code of their own; of fewer, the rest are computed and dropped. With more, vectors of
columns are as fast or faster."""

SUMS = 16
"""The sums that are computed at once: of more than one vector of weights, so that multiply-adds wait neither for the
numbers that are loaded nor for each other."""

PRODUCT_SUMS = 8
"""The same for products: 256 rows of 256 terms take 1.6 times as long with twice as many."""


def weight_vector(weights: tirx.Buffer, start: tirx.Expr, size: int, isa: Isa) -> tirx.Expr:
    """The weights that a tile of `size` rows has for a term, as one of the shortest vectors that hold them."""
    lanes = isa.narrowed(size).lanes
    if lanes == size:
        return emit.vector(weights, start, lanes)
    return masked_vector(weights, start, lanes, mask(index(0), lanes, size))


def of_columns(length: int, few: Callable[[int], None], many: Callable[[], None], most: int = FEW) -> None:
    """Write `few(most)` for a length of a few columns, and `many()` for a larger one."""
    emit.either(index(length) <= index(most), lambda: few(most), many)


def first_tile(part: tuple[tirx.Expr, int], tiles: int) -> tirx.Expr:
    """The number of the first tile of a part, given with the number of parts."""
    return index(0) if is_number(part[1]) and part[1] == 1 else emit.share(*part, tiles)[0]


def group_memory(tiles: Sequence[Run], isa: Isa) -> tirx.Buffer:
    """Memory for the sums of a group of tiles of any of these runs."""
    return emit.scratch(SUMS * max(isa.narrowed(run.size).lanes for run in tiles))


def sums_of_group(
    held: tirx.Buffer,
    tile: tuple[Run, tirx.Expr, tirx.Expr],
    count: int,
    isa: Isa,
    sums: Callable[[list[tirx.Expr]], Sequence[tirx.Buffer]],
    most: int = SUMS,
) -> tirx.Expr:
    """The place in `held` of a tile's sums: for each of `count` columns, a vector along its rows.

    At the first tile of a group, `most` sums in all, those of all are put there: `sums(firsts)` are those of tiles from
    some rows on. The tile is given by its run, its number, and the number of the first one of this thread.
    """
    (run, number, start), lanes = tile, isa.narrowed(tile[0].size).lanes
    several = min(run.count, max(1, most // count))
    place = tirx.floormod(number - index(run.first), index(several))
    with build.If(tirx.any(place == index(0), number == start)), build.Then():
        last = index(run.first + run.count - 1)
        tiles = [tirx.min(number - place + index(n), last) for n in range(several)]
        for n, buffer in enumerate(sums([emit.bound(emit.start_of(run, one)) for one in tiles])):
            with emit.loop(count, "unroll") as column:
                to = (index(n * count) + column) * index(lanes)
                emit.put(held, emit.vector(buffer, column * index(lanes), lanes), to, lanes)
    return place * index(count * lanes)


def takes_few_columns(writer: ProductReads, masked: bool) -> bool:
    """Whether a product has such code: it has any number of columns, which are read by masks or copied."""
    numbers, vectors = writer.packed
    known = is_number(writer.terms) and is_number(writer.product.rows.length) and not is_number(writer.length)
    if not known or numbers is None or vectors is not None or writer.kind is not FLOATS:
        return False
    fits = all(run.size <= writer.isa.lanes for run in numbers.runs)
    return fits and (masked or (writer.copies and writer.isa.has_masks))


def columns_of_tile(
    writer: ProductReads,
    arguments: Arguments,
    place: Place,
    tile: tuple[Run, tirx.Expr, tirx.Expr],
    held: tirx.Buffer,
) -> tirx.Expr:
    """The place in `held` of the sums of a product's tile for FEW columns: see `sums_of_group`."""
    product, (run, _, _) = writer.product, tile
    vectors = arguments.flat(product.vectors.load.source)

    def number(column: tirx.Expr, term: tirx.Expr) -> tirx.Expr:
        # Columns that do not exist are the last one again, and are not stored.
        there = tirx.min(column, index(writer.length - 1))
        where = at(product.vectors.form, [*place, (product.columns, there), (product.terms, term)])
        assert where is not None
        return vectors[where]

    def sums(firsts: list[tirx.Expr]) -> Sequence[tirx.Buffer]:
        weights = [writer.numbers(arguments, place, run, first) for first in firsts]

        def weight(tile: int, term: tirx.Expr) -> tirx.Expr:
            one = weights[tile](index(0), term)
            return weight_vector(one.source, one.indices[0], run.size, writer.isa)

        walk = partial(emit.in_turn, unroll=writer.unroll)
        return emit.product_tile(FEW, len(firsts), writer.terms, writer.isa.narrowed(run.size), number, weight, walk)

    return emit.bound(sums_of_group(held, tile, FEW, writer.isa, sums, PRODUCT_SUMS))

"""Tiles of rows whose number may be known only at run time: code of sums for each size of a tile, one epilogue for all.

Written once for each size of tile, the epilogues of a product took as long to generate and to compile as several
kernels of fixed sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.tiles import Run, runs
from heterocc.compiler.lower.cpu.sizes import Size, as_expr, as_number, is_number, larger, smaller, typical

EVERY_SIZE = 7
"""The most rows of a tile of which each smaller size has code, too, if the number of rows is known only at run time."""

EVERY_SIZE_NEAR = 3
"""The same of products of little weights, which each tile reads from a near cache: more rows share little."""


def row_runs(total: Size, most: int, *, near: bool = False) -> tuple[Run, ...]:
    """As `runs` of rows; of a total that is known only at run time, a run for each size of the last tiles.

    What is left by tiles of `most`, or with the last of these if it is little, is divided into tiles as equal as
    possible. A tile that overlaps another would compute rows again: most of them, in a small batch. `near` says that
    what each tile reads again comes from a near cache.
    """
    if is_number(total):
        return runs(total, most)
    every = EVERY_SIZE_NEAR if near else EVERY_SIZE
    small = most if most <= every + 1 else every
    whole, rest, count = _whole_and_rest(total, most, small)
    tiles = [Run(0, 0, whole, most)]
    begun: Size = 0  # tiles of the rest that are larger than those of the run
    for size in range(small, 0, -1):
        here = smaller(larger(rest - (size - 1) * count, 0), count)
        tiles.append(Run(whole + begun, whole * most + begun * (size + 1), here - begun, size))
        begun = here
    if small == most:
        tiles[:2] = [Run(0, 0, whole + tiles[1].count, most)]
    return tuple(tiles)


def _whole_and_rest(total: Size, most: int, small: int) -> tuple[Size, Size, Size]:
    """The number of whole tiles, the rows after them, and the number of tiles of these, of at most `small`."""
    whole = larger(total - (small // 2 + 1), 0) // most
    rest = total - whole * most
    return whole, rest, -(-rest // small)


def _smaller(tiles: Sequence[Run]) -> tuple[int, int]:
    """The rows of a whole tile, and the most of the last tiles: there is a run for each size of these."""
    most = tiles[0].size
    return most, len(tiles) if len(tiles) == most else len(tiles) - 1


def count_of(total: Size, tiles: Sequence[Run]) -> Size:
    """The number of tiles of `total` rows in runs, of which `row_runs` made those of a total known only at run time."""
    if is_number(total):
        return sum(run.count for run in tiles)
    whole, _, count = _whole_and_rest(total, *_smaller(tiles))
    return whole + count


def tile_of_any(total: Size, tiles: Sequence[Run], tile: tirx.Expr) -> tuple[tirx.Expr, tirx.Expr]:
    """The size of a tile of `row_runs` of a total that is known only at run time, and its first row."""
    most, small = _smaller(tiles)
    whole, rest, count = _whole_and_rest(total, most, small)
    each = rest // larger(count, 1)
    number = tile - as_expr(whole)
    more, is_whole = as_expr(rest - each * count), number < as_expr(0)
    size = as_expr(each) + tirx.Select(number < more, as_expr(1), as_expr(0))
    first = as_expr(whole * most) + number * as_expr(each) + tirx.min(number, more)
    return tirx.Select(is_whole, as_expr(most), size), tirx.Select(is_whole, tile * as_expr(most), first)


HELD_TERMS = 64
"""Terms from which on storing sums and reading them again takes little of the time of a tile."""

Sums = Sequence[tirx.Buffer]

Store = Callable[[Sums, int | tirx.Expr, tirx.Expr], None]
"""Stores a number of rows of sums, of which the first is given. Of an unknown number, the sums are in memory."""


def shares_epilogue(rows: Size, terms: Size) -> bool:
    """Whether tiles of all sizes of `rows` have one epilogue: if their number is not known, and sums are long."""
    return not is_number(rows) and typical(terms) >= HELD_TERMS


def write_tile(tiles: Sequence[Run], tile: tirx.Expr, sums: Callable[[Run, tirx.Expr], Sums], store: Store) -> None:
    """Write the tile of this number: `sums(run, first)` writes the sums of a tile of a run from a row on."""

    def whole(run: Run) -> None:
        first = emit.start_of(run, tile)
        store(sums(run, first), run.size, first)

    emit.either_run(tiles, tile, whole)


def write_sized_tile(
    total: Size,
    tiles: Sequence[Run],
    tile: tirx.Expr,
    lanes: Sequence[int],
    dtype: str,
    sums: Callable[[Run, tirx.Expr], Sums],
    store: Store,
) -> None:
    """As `write_tile` of `total` rows, a number known only at run time: all sizes of tiles have one epilogue.

    Sums, with vectors of so many `lanes` of a type, are copied to the same memory, and stored from there.
    """
    most = max(run.size for run in tiles)
    held = [emit.registers(most, n, dtype) for n in lanes]
    # If the size were known to follow from the branch, LLVM would unroll the epilogue for the largest.
    size, first = (emit.bound(value) for value in tile_of_any(total, tiles, tile))

    def hold(run: Run) -> None:
        for to, sum_, n in zip(held, sums(run, first), lanes, strict=True):
            with emit.loop(run.size, "unroll") as row:
                emit.put(to, emit.vector(sum_, row * index(n), n), row * index(n), n)

    either_size(tiles, size, hold)
    store(held, size, first)


def either_size(tiles: Sequence[Run], size: tirx.Expr, body: Callable[[Run], None]) -> None:
    """Write `body(run)` for the run whose tiles are of this size."""
    if len(tiles) == 1:
        body(tiles[0])
    else:
        emit.either(size == index(tiles[0].size), lambda: body(tiles[0]), lambda: either_size(tiles[1:], size, body))


def sizes_among(totals: range, tiles: Sequence[Run]) -> set[int]:
    """The sizes of the tiles that `row_runs` has made of any rows which occur for some numbers of rows."""
    most, small = _smaller(tiles)
    found: set[int] = set()
    for total in totals[: 2 * (most + small)]:  # the sizes of more rows are those of rows before
        whole, rest, count = map(as_number, _whole_and_rest(total, most, small))
        found |= {*([most] * min(whole, 1)), rest // count, -(-rest // count)}
    return found


def each_tile(
    total: Size, most: int, body: Callable[[tirx.Expr, int], None], *, near: bool = False, among: range | None = None
) -> None:
    """Write a loop over the tiles of `total` rows that `row_runs` makes, with `body(first, size)` for each size.

    A total that is known only at run time is `among` some numbers, if they are given.
    """
    tiles = row_runs(total, most, near=near)
    with emit.loop(count_of(total, tiles)) as tile:
        if is_number(total):
            emit.either_run(tiles, tile, lambda run: body(emit.bound(emit.start_of(run, tile)), run.size))
        else:
            size, first = map(emit.bound, tile_of_any(total, tiles, tile))
            used = None if among is None else sizes_among(among, tiles)
            either_size(
                [run for run in tiles if used is None or run.size in used], size, lambda run: body(first, run.size)
            )

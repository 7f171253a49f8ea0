"""Tiles of rows whose number may be known only at run time, of which each size has code."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.tiles import Run, runs
from heterocc.compiler.lower.cpu.sizes import Size, as_number, index, is_number, larger, smaller

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
    number = tile - index(whole)
    more, is_whole = index(rest - each * count), number < index(0)
    size = index(each) + tirx.Select(number < more, index(1), index(0))
    first = index(whole * most) + number * index(each) + tirx.min(number, more)
    return tirx.Select(is_whole, index(most), size), tirx.Select(is_whole, tile * index(most), first)


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

"""Choice of the register tile of a kernel by a model of its cycles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from tvm import tirx

from heterocc.compiler.lower.cpu.generate.cores import Core
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.sizes import Size, index, is_number, typical, zero_unless

MOST_ROWS = 14
MOST_VECTORS = 15
ROW_VECTORS = 6
"""Vectors of a tile of a single row; such a product is limited by memory, which one narrow stream uses best."""


@dataclass(frozen=True, slots=True)
class Run:
    """`count` equal tiles of `size`, the first of them tile number `first`, which starts at `start`.

    No tile starts after `last`, if that is given: the last tile then overlaps the one before. A `short` one may
    have fewer numbers than a vector.
    """

    first: Size
    start: Size
    count: Size
    size: int
    last: Size | None = None
    short: bool = False


def runs(total: Size, most: int, multiple: int = 1, *, short: bool = True) -> tuple[Run, ...]:
    """`total` in as few tiles of at most `most` as possible, their sizes as equal as possible: one run or two.

    The number of tiles is a multiple of `multiple`, if `total` is large enough. A total that is known only at run time
    is one of several runs: tiles of `most`, the last one overlapping, or of less if there are not that many: a tile of
    a few if `short`, else only of one.
    """
    return _known_runs(total, most, multiple) if is_number(total) else _overlapping(total, most, short)


@cache
def _known_runs(total: int, most: int, multiple: int = 1) -> tuple[Run, ...]:
    count = min(total, -(-total // (most * multiple)) * multiple)
    small, more = divmod(total, count)
    tiles = [Run(0, 0, more, small + 1)] if more else []
    if count > more:
        tiles.append(Run(more, more * (small + 1), count - more, small))
    return tuple(tiles)


def vector_runs(total: Size, most: int) -> tuple[Run, ...]:
    """`total` vectors in tiles of at most `most`; if it is known only at run time, in tiles of `most` and of one."""
    if is_number(total):
        return runs(total, most)
    whole = total // most
    return (Run(0, 0, whole, most), *([Run(whole, whole * most, total % most, 1)] if most > 1 else ()))


def column_runs(length: Size, lanes: int, most: int) -> tuple[Run, ...]:
    """A row of `length` numbers in tiles of at most `most` vectors.

    If the length is known only at run time, what whole tiles leave are tiles of one vector, which may be short.
    """
    total = -(-length // lanes)
    if is_number(total):
        return vector_runs(total, most)
    *whole, rest = vector_runs(total, most)
    return (*whole, replace(rest, short=True))


SHORT = 4
"""The size of tiles for fewer than a whole tile, if the number is known only at run time."""


def _overlapping(total: Size, most: int, short: bool) -> tuple[Run, ...]:
    tiles: list[Run] = []
    first: Size = 0
    larger: tirx.Expr | None = None
    for size in sorted({most, min(most, SHORT) if short else 1, 1}, reverse=True):
        fits = index(total) >= size
        here = [fits] if larger is None else [fits, tirx.Not(larger)]
        count = zero_unless(-(-total // size), *here)
        tiles.append(Run(first, 0, count, size, total - size))
        first, larger = first + count, fits
    return tuple(tiles)


def registers_of(tall: int, wide: int, core: Core) -> int:
    """The registers that a tile of `tall` numbers times `wide` vectors needs: for sums, vectors and a number.

    Few registers have to hold the vectors of several terms, too, if there is one for each: sums would be stored else.
    """
    hoisted = core.hoisted if wide == 1 else 1
    return tall * wide + max(wide, hoisted) + 1


MANY_ROWS = 840
"""Rows for which the tile of a number is chosen that is known only at run time: tiles of any size divide them."""

WIDTHS = range(1, MOST_VECTORS + 1)
WIDTHS_OF_ANY = range(2, 3)
"""Vectors of a tile; of one of a number of vectors that is known only at run time, two: tiles of three were no faster
with AVX-512, and took 1.03 to 1.15 times as long with AVX2, as they leave more to tiles of one or have fewer rows."""

ROW_PLACES = 6
"""The most rows of a tile that are at distances known only at run time: each has a register for its place. With more,
LLVM keeps sums in memory, and such a product takes a third longer."""


def choose_tile(rows: Size, vectors: Size, isa: Isa) -> tuple[int, int]:
    """Rows and vectors of the tile with the least modelled time to cover `rows` × `vectors`, remainders included."""
    return _best_tile(typical(rows), typical(vectors), isa.core, isa.registers)


def pick_tile(rows: Size, vectors: Size, isa: Isa, most: int = MOST_ROWS) -> tuple[int, int]:
    """As `choose_tile`, for code that is written, of at most `most` rows."""
    rows = rows if is_number(rows) else MANY_ROWS
    if is_number(vectors):
        return _best_tile(rows, vectors, isa.core, isa.registers, most)
    vectors = max(typical(vectors), WIDTHS_OF_ANY.start)
    return _best_tile(rows, vectors, isa.core, isa.registers, most, WIDTHS_OF_ANY)


def most_rows(pitch: int, core: Core) -> int:
    """The most rows of a tile that reads rows of numbers `pitch` bytes apart where they are.

    Rows that are a multiple of 4096 bytes apart share a set of a first-level cache of 64 sets: with more rows than a
    set has lines, each number would be fetched from the second level again.
    """
    return min(MOST_ROWS, core.first_ways * (4096 // math.gcd(pitch, 4096)))


def most_lines(pitch: int, core: Core) -> int:
    """The most cache lines `pitch` bytes apart that stay in a second-level cache of 1024 sets."""
    return core.second_ways * ((1 << 16) // math.gcd(pitch, 1 << 16))


def tile_cycles(rows: int, vectors: int, isa: Isa) -> float:
    """Modelled cycles of a step of all tiles that cover `rows` × `vectors`, for each of these products."""
    tall, wide = choose_tile(rows, vectors, isa)
    return cycles_of(runs(rows, tall), runs(vectors, wide), isa.core) / (rows * vectors)


def cycles_of(rows: Sequence[Run], vectors: Sequence[Run], core: Core) -> float:
    """Modelled cycles of a step of all tiles of these runs of rows and of vectors."""
    return sum(typical(r.count) * typical(v.count) * core.step_cycles(r.size, v.size) for r in rows for v in vectors)


SECOND_SIZE = 1.03
"""The accepted slowdown of tiles of one size in place of two.

Each size of tiles on one side is combined with each on the other, and has code of its own: with this, resnet50 takes a
fifth less to compile, picodet an eighth, and both run as fast.
"""


FEW_SUMS = 12
"""The sums of a tile whose code is short: those of AVX2. Tiles of ten took 1.04 times as long as of twelve."""


@cache
def _best_tile(
    rows: int, vectors: int, core: Core, registers: int, most: int = MOST_ROWS, widths: range = WIDTHS
) -> tuple[int, int]:
    """The tile with the least modelled time, of at most `most` rows and one of `widths`, if it has several rows.

    Of a number of vectors known only at run time, that of the fewest rows which takes hardly longer, but of those with
    few sums the fastest.
    """
    timed: list[tuple[float, int, tuple[int, int]]] = []
    for tall in range(1, min(rows, most) + 1):
        for wide in widths if rows > 1 else range(1, ROW_VECTORS + 1):
            if wide > vectors or registers_of(tall, wide, core) > registers:
                break
            time = cycles_of(_known_runs(rows, tall), _known_runs(vectors, wide), core)
            for total, size in ((rows, tall), (vectors, wide)):
                time *= SECOND_SIZE if len(_known_runs(total, size)) > 1 else 1.0
            timed.append((round(time, 3), abs(tall - 2 * wide), (tall, wide)))
    if widths is WIDTHS_OF_ANY:
        limit = SECOND_SIZE * min(timed)[0]
        return min((max(math.prod(tile), FEW_SUMS), time, tile) for time, _, tile in timed if time <= limit)[2]
    return min(timed)[2]

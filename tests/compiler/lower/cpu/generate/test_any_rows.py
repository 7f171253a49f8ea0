"""Tiles of rows whose number is known only at run time."""

from __future__ import annotations

import pytest
import tvm_ffi
from tvm import sym, tirx

from heterocc.compiler.lower.cpu.generate.any_rows import (
    EVERY_SIZE,
    EVERY_SIZE_NEAR,
    count_of,
    row_runs,
    sizes_among,
    tile_of_any,
)
from heterocc.compiler.lower.cpu.sizes import Dim, assuming, index, size_of


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize("most", [1, 2, 4, 5, 6, 7, 8, 9, 13, 14])
def test_runs_of_any_number_of_rows_cover_each_row_once(most: int, near: bool) -> None:
    rows = tirx.Var("rows", "int64")

    def number(size: int, total: int, number: int = 0) -> int:
        def value(var: tirx.Var) -> tirx.Expr:
            return tirx.const(total if var.same_as(rows) else number, "int64")

        expr = tvm_ffi.structural_map(index(size), [(tirx.Var, value)], order="post")
        return int(sym.Analyzer().simplify(expr))

    with assuming([rows]) as found:
        size = size_of(rows)
        assert size is not None
        tiles = row_runs(size, most, near=near)
        count = count_of(size, tiles)
        tile = tirx.Var("tile", "int64")
        places = tile_of_any(size, tiles, tile)
        assert not found.guards
    sizes: list[set[int]] = []
    for total in range(100):
        known = [(number(r.first, total), number(r.start, total), number(r.count, total), r.size) for r in tiles]
        covered = [start + n * size + i for _, start, count, size in known for n in range(count) for i in range(size)]
        assert covered == list(range(total))
        each = [(size, start + n * size) for _, start, count, size in known for n in range(count)]
        assert number(count, total) == len(each)
        assert [tuple(number(Dim(0, p), total, n) for p in places) for n in range(len(each))] == each
        assert [first for first, *_ in known] == [sum(c for *_, c, _ in known[:n]) for n in range(len(known))]
        used = [size for _, _, count, size in known if count]
        assert (
            total < most or min(used) * 2 >= min(most, EVERY_SIZE_NEAR if near else EVERY_SIZE) // 2
        )  # few rows in a tile leave much time unused
        sizes.append(set(used))
    for least, end in [(1, 2), (1, 3), (2, 4), (1, 20), (1, 1 << 30), (2, 1 << 30), (5, 1 << 30), (33, 1 << 30)]:
        assert sizes_among(range(least, end), tiles) == set().union(*sizes[least:end])

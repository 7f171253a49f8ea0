"""Sizes that are known only at run time in place of numbers."""

from __future__ import annotations

import math

import pytest
from tvm import tirx

from heterocc.compiler.lower.cpu.generate.tiles import Run, column_runs, runs, vector_runs
from heterocc.compiler.lower.cpu.sizes import (
    SizeUnknownError,
    as_expr,
    assume,
    assuming,
    attempt,
    exceeds,
    is_number,
    larger,
    size_of,
    smaller,
    typical,
)
from heterocc.compiler.lower.variables import size_variable

N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")


def value(size: int, n: int) -> int:
    """A size at n."""
    from tvm import sym
    from tvm_ffi import structural_map

    found = structural_map(as_expr(size), [(tirx.Var, lambda _: tirx.const(n, "int64"))], order="post")
    return int(sym.Analyzer().simplify(found))


def test_arithmetic_of_sizes_is_that_of_numbers() -> None:
    with assuming([N]):
        n = size_of(N)
        assert n is not None and not is_number(n)
        for number in (1, 7, 16, 35):
            for size, expected in (
                (-(-n // 16), -(-number // 16)),
                (math.prod((2, n, 3)) - 5, 6 * number - 5),
                (100 % n + 20 // n, 100 % number + 20 // number),
                (smaller(n, 16) + larger(3, n), min(number, 16) + max(3, number)),
            ):
                assert value(size, number) == expected


def test_a_quotient_by_a_size_that_may_be_0_has_a_value() -> None:
    empty = size_variable("0_n", "int64", empty=True)
    with assuming([empty, N]):
        n, positive = size_of(empty), size_of(N)
        assert n is not None and positive is not None
        assert value(larger(1, smaller(8, -(-16 // n))), 0) == 8
        assert [value(100 % n + 20 // (n * 3), number) for number in (0, 1, 7)] == [20, 6, 2]
        assert not isinstance(as_expr(20 // (positive * 3)).b, tirx.Max)  # type: ignore[attr-defined]


def test_what_holds_for_all_sizes_is_not_assumed() -> None:
    with assuming([N, M]) as found:
        n, m = size_of(N), size_of(M)
        assert n is not None and m is not None
        assert n * m * 768 == 768 * (m * n) and n * 4 != 0 and n > 0
        assert n != 1 and exceeds(n, 16)  # right for 1 and for multiples of 16, too
        assert not found.conditions
        assert n >= 16 and n != m
        assert len(found.conditions) == 2


def test_a_step_that_needs_a_number_is_given_up_with_its_assumptions() -> None:
    with assuming([N]) as found:
        n = size_of(N)
        assert n is not None

        def step() -> list[int]:
            assert n > 8
            return list(range(n))

        assert attempt(step) is None and not found.conditions
        with pytest.raises(SizeUnknownError):
            assume(n > 10**6)
    assert size_of(N) is None and size_of(N + 1) is None


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5, 13, 14, 15, 28, 29, 100, 160, 177])
def test_tiles_of_a_dynamic_total_cover_it_and_stay_inside(number: int) -> None:
    with assuming([N]):
        n = size_of(N)
        assert n is not None

        def places(tiles: tuple[Run, ...]) -> list[int]:
            found = []
            for run in tiles:
                for tile in range(value(run.count, number)):
                    start = value(run.start, number) + tile * run.size
                    start = start if run.last is None else min(start, value(run.last, number))
                    found += range(start, start + run.size)
            return found

        overlapping, apart = places(runs(n, 14)), places(vector_runs(n, 3))
        assert sorted(set(overlapping)) == list(range(number))
        assert sorted(apart) == list(range(number))
        for most in (1, 2, 3, 5):
            vectors = places(column_runs(n, 16, most))
            assert sorted(vectors) == list(range(-(-number // 16)))
        assert typical(n) > 14

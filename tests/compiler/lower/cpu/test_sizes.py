"""Sizes that are known only at run time in place of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from tvm import tirx
from tvm_ffi import structural_map

from heterocc.compiler.lower.cpu.generate.tiles import Run, column_runs, runs, vector_runs
from heterocc.compiler.lower.cpu.sizes import (
    Size,
    SizeUnknownError,
    all_equal,
    are_equal,
    as_number,
    assume,
    assumed,
    assuming,
    at_least,
    attempt,
    equal,
    exceeds,
    filled,
    index,
    is_number,
    is_one,
    larger,
    proved,
    restore,
    size_of,
    smaller,
    typical,
    with_guards,
    within,
)
from heterocc.compiler.lower.variables import size_variable

N, M = tirx.Var("n", "int64"), tirx.Var("m", "int64")


def value(size: Size, n: int) -> int:
    """A size at n."""
    from tvm import sym

    found = structural_map(index(size), [(tirx.Var, lambda _: tirx.const(n, "int64"))], order="post")
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
        assert not isinstance(index(20 // (positive * 3)).b, tirx.Max)  # type: ignore[attr-defined]


def test_what_holds_for_all_sizes_is_not_assumed() -> None:
    with assuming([N, M]) as found:
        n, m = size_of(N), size_of(M)
        assert n is not None and m is not None
        assert proved(equal(n * m * 768, 768 * (m * n))) and proved(at_least(n * 4, 1)) and not proved(equal(n, 0))
        assert (2, n * m) == (2, m * n) and within(4, n + 3) == 4
        assert (
            not is_one(n) and is_one(1) and not is_one(None) and exceeds(n, 16) and exceeds(32, n)
        )  # right for 1 and for multiples of 16, too
        assert (
            assumed(at_least(n, 1))
            and assumed(at_least(8, 4))
            and not are_equal(n, m)
            and not all_equal((n, 2), (m, 2))
        )
        assert not found.guards
        assert assumed(at_least(n, 16)) and filled(16, n) == 16 and filled(16, 5) == 4
        assert not assumed(equal(n, m)) and not proved(equal(n, m))
        assert len(found.guards) == 2


COMPARISONS: dict[str, Callable[[Any, Any], object]] = {
    "less": lambda n, m: n < 8,
    "not less than 1": lambda n, m: n >= 1,
    "equal": lambda n, m: n == m,
    "different": lambda n, m: n != 8,
    "a truth value": lambda n, m: bool(n),
    "a number": lambda n, m: as_number(n),
    "a range": lambda n, m: range(n),
    "lanes": lambda n, m: within(8, n),
    "proved": lambda n, m: proved(at_least(n, 8)),
    "different tuples": lambda n, m: (2, n) != (2, m),
    "the smallest": lambda n, m: min(n, 8),
    "a condition": lambda n, m: bool(at_least(n, 8)),
    "in a visitor": lambda n, m: structural_map(N + 1, [(tirx.Var, lambda v: v if n < 8 else N)], order="post"),
}


@pytest.mark.parametrize("compare", COMPARISONS.values(), ids=COMPARISONS)
def test_a_comparison_that_depends_on_sizes_has_no_answer_and_assumes_nothing(
    compare: Callable[[Any, Any], object],
) -> None:
    with assuming([N, M]) as found:
        n, m = size_of(N), size_of(M)
        assert n is not None and m is not None
        with pytest.raises(TypeError):
            compare(n, m)
        assert not found.guards


def test_a_comparison_has_an_answer_that_is_a_guard() -> None:
    with assuming([N]) as found:
        n = size_of(N)
        assert n is not None and assumed(at_least(n, 8)) and proved(at_least(n, 8)) and within(8, n) == 8
        assert [str(guard) for guard in found.guards] == ["n - T.int64(8) >= T.int64(0)"]


def test_a_step_that_needs_a_number_is_given_up_with_its_guards() -> None:
    with assuming([N]) as found:
        n = size_of(N)
        assert n is not None

        def step() -> list[int]:
            assert assumed(at_least(n, 8))
            return list(range(as_number(n)))

        assert attempt(step) is None and not found.guards
        with pytest.raises(SizeUnknownError):
            assume(at_least(n, 10**6))
    assert size_of(N) is None and size_of(N + 1) is None


def test_guards_of_a_step_are_in_force_when_they_are_restored() -> None:
    with assuming([N]) as found:
        n = size_of(N)
        assert n is not None
        wide, guards = with_guards(lambda: assumed(at_least(n, 8)))
        assert wide and len(guards) == 1 and not found.guards
        restore(guards)
        assert proved(at_least(n, 8)) and [*found.guards] == [*guards]


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

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from heterocc.compiler.symbolic.comparisons import differ
from heterocc.compiler.symbolic.quotients import quotient
from heterocc.compiler.symbolic.sizes import Size, larger, named, number, smaller

BATCH, STEPS = named("batch"), named("seq")


def test_equal_sizes_have_equal_texts() -> None:
    left = quotient(STEPS + number(2) - number(3), number(2))
    right = quotient(STEPS + number(1), number(2))
    assert left is not None and right is not None
    assert (left + number(1)).text == right.text == "(seq + 1)//2"
    assert (BATCH * STEPS - STEPS * BATCH).number == 0


def test_a_size_is_divided_by_names_that_all_its_terms_have() -> None:
    found = quotient(BATCH * STEPS * number(768), BATCH * number(64))
    assert found is not None and found.text == "12*seq"
    assert quotient(BATCH, STEPS) is None


@given(st.integers(1, 9), st.integers(1, 9), st.integers(-9, 9), st.integers(0, 9), st.integers(1, 500))
def test_a_quotient_of_a_quotient_is_one_quotient(a: int, c: int, b: int, start: int, steps: int) -> None:
    """So that a length behind two strided convolutions is the one that an exporter computes in one division."""
    inner = quotient(STEPS + number(start), number(a))
    assert inner is not None
    found, right = quotient(inner + number(b), number(c)), quotient(STEPS + number(start + a * b), number(a * c))
    assert found is not None and found == right
    assert found.at({"seq": steps}) == ((steps + start) // a + b) // c


def test_the_smaller_of_two_sizes_is_known_if_one_exceeds_the_other_for_all_names() -> None:
    assert smaller(STEPS, STEPS + number(1)).text == "seq"
    assert larger(STEPS, number(0)).text == "seq"
    assert smaller(STEPS, number(512)).text == "min(512, seq)"


def test_sizes_that_may_be_equal_are_not_known_to_differ() -> None:
    assert differ(STEPS, number(-1)) is True
    assert differ(STEPS, STEPS) is False
    assert differ(STEPS, BATCH) is None


def test_the_parts_of_a_row_that_is_cut_have_its_length_together() -> None:
    row = number(4) * STEPS
    for cut in (number(2), BATCH, STEPS + number(1)):
        assert larger(row - cut, number(0)) + smaller(cut, row) == row
    ahead = larger(row - number(2), number(0))
    assert (BATCH * (ahead + larger(row - ahead, number(0)))).text == "4*batch*seq"


def test_a_sum_is_divided_by_a_sum() -> None:
    rows, columns = STEPS + number(3), BATCH - STEPS
    assert quotient(rows * columns * STEPS, rows * columns) == STEPS
    assert quotient(rows * columns + number(1), rows) is None


SIZES = st.recursive(
    st.one_of(st.integers(-3, 9).map(number), st.sampled_from([BATCH, STEPS])),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] - p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
        st.tuples(inner, inner).map(lambda p: smaller(*p)),
        st.tuples(inner, inner).map(lambda p: larger(*p)),
    ),
    max_leaves=6,
)


@given(SIZES, SIZES, st.integers(1, 5), st.integers(0, 9), st.integers(0, 9))
def test_operations_on_sizes_are_those_on_their_values(a: Size, b: Size, n: int, batch: int, seq: int) -> None:
    at = {"batch": batch, "seq": seq}
    left, right = a.at(at), b.at(at)
    assert (a + b).at(at) == left + right
    assert (a * b).at(at) == left * right
    assert larger(a, b).at(at) == max(left, right)
    whole = quotient(a, number(n))
    assert whole is not None and whole.at(at) == left // n
    exact = quotient(a * b, b)
    assert exact is None or right <= 0 or exact.at(at) == left
    assert a.least is None or a.least <= left
    assert differ(a, b) is None or differ(a, b) == (left != right)

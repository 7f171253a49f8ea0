"""The sizes of a dimension, as one record from the import to a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterocc.artifacts.manifest import ANY_SIZE, Range, within_both

RANGES = st.builds(Range, min=st.integers(0, 20), max=st.one_of(st.none(), st.integers(0, 40)), step=st.integers(1, 6))


@given(RANGES, RANGES)
def test_a_size_is_in_two_ranges_if_it_is_in_their_intersection(one: Range, other: Range) -> None:
    for size in range(60):
        assert (size in one & other) == (size in one and size in other)
    if (one & other).is_empty:
        assert not any(size in one and size in other for size in range(100))


@given(RANGES, st.integers(0, 60))
def test_the_nearest_size_of_a_size_in_a_range_is_itself(one: Range, size: int) -> None:
    assert one & ANY_SIZE == one
    if size in one:
        assert one.nearest(size) == size


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        (ANY_SIZE, "any size"),
        (Range(min=3), "3 or more"),
        (Range(min=1, max=64), "1 to 64"),
        (Range(min=8, step=8), "a multiple of 8"),
        (Range(min=8, max=64, step=8), "a multiple of 8 up to 64"),
        (Range(min=16, max=64, step=8), "a multiple of 8 from 16 to 64"),
    ],
)
def test_a_range_reads_as_a_sentence_needs_it(sizes: Range, text: str) -> None:
    assert str(sizes) == text


def test_a_dimension_that_only_one_side_bounds_keeps_these_bounds() -> None:
    found = within_both({"n": Range(max=8), "m": Range(min=2)}, {"n": Range(min=3, step=2), "k": Range(max=1)})
    assert found == {"n": Range(min=3, max=8, step=2), "m": Range(min=2), "k": Range(max=1)}

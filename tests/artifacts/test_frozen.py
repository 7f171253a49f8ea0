from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from heterocc.artifacts.frozen import frozen, replaced


@frozen
class Extent:
    start: int
    length: int = 0
    done: Callable[[], int] = lambda: 7

    def __post_init__(self) -> None:
        if self.start < 0:
            raise ValueError("before the start")

    @property
    def end(self) -> int:
        return self.start + self.length


@frozen
class Other:
    start: int
    length: int = 0

    def __repr__(self) -> str:
        return "other"


def test_fields_are_given_by_place_or_name_or_have_defaults() -> None:
    assert Extent(3, 4).end == Extent(length=4, start=3).end == 7
    assert Extent(3).length == 0 and Extent(3).done() == 7
    match Extent(3, 4):
        case Extent(start, length):
            assert (start, length) == (3, 4)


def test_equality_and_hash_are_those_of_the_fields_in_a_class() -> None:
    assert Extent(3, 4) == Extent(length=4, start=3) and hash(Extent(3, 4)) == hash(Extent(length=4, start=3))
    assert Extent(3, 4) != Extent(3, 5) and Extent(3, 4) != (3, 4) and Extent(3, 4) != Other(3, 4)
    assert replaced(Extent(3, 4), start=1) == Extent(1, 4)
    assert repr(Other(3)) == "other" and repr(Extent(3)).startswith("Extent(start=3, length=0, done=")


def test_copies_and_pickles_are_equal() -> None:
    assert copy.deepcopy(Other(3, 4)) == pickle.loads(pickle.dumps(Other(3, 4))) == Other(3, 4)


def test_attributes_cannot_be_changed() -> None:
    extent = Extent(3)
    with pytest.raises(AttributeError, match="Extent cannot be changed"):
        extent.start = 4  # type: ignore[misc]
    with pytest.raises(AttributeError, match="Extent cannot be changed"):
        del extent.start


@pytest.mark.parametrize(
    ("values", "named", "message"),
    [
        ((), {}, "needs a value for 'start'"),
        ((1, 2), {"length": 3}, "each to be given once"),
        ((1,), {"end": 3}, "has the fields start, length, done"),
        ((1, 2, len, 4), {}, "has the fields start, length, done"),
    ],
)
def test_a_wrong_call_is_a_type_error(values: tuple[object, ...], named: dict[str, object], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Extent(*values, **named)  # type: ignore[arg-type]


def test_the_fields_are_checked_by_the_class() -> None:
    with pytest.raises(ValueError, match="before the start"):
        Extent(-1)

from __future__ import annotations

import copy
import json
import pickle
import sys
from typing import Annotated, Literal

import pytest

from heterocc.artifacts.records import Limit, MalformedError, Record, compact


class Part(Record):
    """A record inside another."""

    name: Annotated[str, Limit(min_length=1, max_length=3, pattern="^[a-z]+$")]
    shape: tuple[int | None, ...] | None = None


class Whole(Record):
    """A record with every kind of field."""

    kind: Literal["a", "b"]
    parts: Annotated[tuple[Part, ...], Limit(max_length=2)] = ()
    sizes: dict[str, Annotated[int, Limit(ge=0, le=9)]] = {}
    rows: tuple[tuple[float, float], ...] = ()
    flag: bool = False


def test_a_record_is_the_same_after_writing_and_reading() -> None:
    whole = Whole(kind="a", parts=(Part(name="x", shape=(1, None)),), sizes={"s": 3}, rows=((1.0, -2.5),), flag=True)
    assert Whole.model_validate_json(whole.model_dump_json()) == whole
    assert pickle.loads(pickle.dumps(whole)) == copy.deepcopy(whole) == whole
    assert whole.model_dump()["parts"] == ({"name": "x", "shape": (1, None)},)
    assert hash(Part(name="x")) == hash(Part(name="x")) and Part(name="x") != Part(name="y")
    assert repr(Part(name="x")) == "Part(name='x', shape=None)"


@pytest.mark.parametrize(
    ("change", "place", "message"),
    [
        ({"kind": "c"}, ("kind",), "should be 'a' or 'b'"),
        ({"kind": None}, ("kind",), "should be 'a' or 'b'"),
        ({"parts": {}}, ("parts",), "a list"),
        ({"parts": [{"name": "x"}, {"name": "X"}]}, ("parts", 1, "name"), "should match"),
        ({"parts": [{"name": "x\n"}]}, ("parts", 0, "name"), "should match"),
        ({"parts": [{"name": "x"}] * 3}, ("parts",), "at most 2 items"),
        ({"parts": [{}]}, ("parts", 0, "name"), "is missing"),
        ({"parts": [[]]}, ("parts", 0), "an object"),
        ({"parts": [{"name": ""}]}, ("parts", 0, "name"), "at least 1 characters"),
        ({"parts": [{"name": "x", "shape": [1, "2"]}]}, ("parts", 0, "shape", 1), "an integer"),
        ({"sizes": {"s": True}}, ("sizes", "s"), "an integer"),
        ({"sizes": {"s": 1.0}}, ("sizes", "s"), "an integer"),
        ({"sizes": {"s": 10}}, ("sizes", "s"), "from 0 to 9"),
        ({"rows": [[1.0]]}, ("rows", 0), "a list of 2 items"),
        ({"rows": [[1.0, 10**400]]}, ("rows", 0), "a number"),
        ({"flag": 1}, ("flag",), "true or false"),
    ],
)
def test_a_field_of_another_type_or_out_of_its_limits_is_refused_with_its_place(
    change: dict[str, object], place: tuple[str | int, ...], message: str
) -> None:
    with pytest.raises(MalformedError, match=message) as caught:
        Whole.model_validate({"kind": "a", **change})
    assert caught.value.place == place
    with pytest.raises(MalformedError, match=message):
        Whole(**{"kind": "a", **change})  # type: ignore[arg-type]


def test_numbers_that_are_not_finite_and_text_that_is_not_json_are_refused() -> None:
    for text in ('{"kind":"a","rows":[[1e999,0.0]]}', '{"kind":"a","rows":[[NaN,0.0]]}', "{", "[" * 100_000, "[]"):
        with pytest.raises(MalformedError):
            Whole.model_validate_json(text)


def test_a_reader_ignores_fields_of_newer_writers_but_python_does_not() -> None:
    assert Whole.model_validate_json('{"kind": "a", "newer": 1}') == Whole(kind="a")
    with pytest.raises(TypeError, match="no field 'newer'"):
        Whole(kind="a", newer=1)  # type: ignore[call-arg]


def test_a_record_cannot_be_changed_and_shares_no_default() -> None:
    whole = Whole(kind="a")
    with pytest.raises(AttributeError):
        whole.kind = "b"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        del whole.kind
    assert whole.model_copy(update={"kind": "b"}).kind == "b" and whole.kind == "a"
    assert whole.sizes is not Whole(kind="a").sizes


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1e-5, "0.00001"),
        (-2.5e-5, "-0.000025"),
        (1e-6, "1e-6"),
        (1.25e-7, "1.25e-7"),
        (1e16, "1e16"),
        (0.1, "0.1"),
        (3.0, "3.0"),
        (sys.float_info.max, "1.7976931348623157e308"),
        (5e-324, "5e-324"),
    ],
)
def test_numbers_are_written_as_earlier_releases_wrote_them(number: float, text: str) -> None:
    assert compact(number) == text and json.loads(text) == number


def test_text_is_written_as_it_is() -> None:
    assert compact({"ä\n": ["\x7f", None, True, 1]}) == '{"ä\\n":["\x7f",null,true,1]}'

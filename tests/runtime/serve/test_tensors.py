"""Tensors in the protocol's forms, and those that are refused."""

from __future__ import annotations

import contextlib
import json
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterocc.runtime.serve.errors import RequestError
from heterocc.runtime.serve.protocols.rpc_messages import MESSAGES
from heterocc.runtime.serve.tensors import _CONTENTS, answer_bytes, from_contents, from_json, from_raw, to_json, to_raw

DTYPES = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "INT8": "int8",
    "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16", "FP32": "float32", "FP64": "float64",
}  # fmt: skip


def from_list(name: str, data: Any, datatype: str, shape: tuple[int, ...]) -> np.ndarray:
    """The array of a list that is sent as JSON."""
    return from_json(name, memoryview(json.dumps(data).encode()), datatype, shape)


def to_list(array: np.ndarray) -> Any:
    return json.loads(b"".join(to_json("y", array)))


def contents(datatype: str, values: Any) -> memoryview:
    """A message InferTensorContents with values in the list of a datatype."""
    field = MESSAGES["InferTensorContents"].DESCRIPTOR.fields_by_number[_CONTENTS[datatype]].name
    return memoryview(MESSAGES["InferTensorContents"](**{field: values}).SerializeToString())


@pytest.mark.parametrize("datatype", DTYPES)
def test_every_datatype_survives_both_forms(datatype: str) -> None:
    array = np.arange(6).astype(DTYPES[datatype]).reshape(2, 3)
    raw = from_raw("x", bytes(to_raw(array)), datatype, (2, 3))
    listed = from_list("x", to_list(array), datatype, (2, 3))
    typed = raw if datatype == "FP16" else from_contents("x", contents(datatype, array.ravel()), datatype, (2, 3))
    for got in (raw, listed, typed):
        assert got.dtype == array.dtype and np.array_equal(got, array)


def test_binary_data_at_an_odd_address_gives_an_aligned_array() -> None:
    data = memoryview(b"?" + np.arange(4, dtype=np.float32).tobytes())[1:]
    array = from_raw("x", data, "FP32", (4,))
    assert array.flags.aligned and array.tolist() == [0, 1, 2, 3]


def test_any_byte_but_zero_is_true() -> None:
    array = from_raw("x", bytes([0, 1, 2, 255]), "BOOL", (4,))
    assert array.view(np.uint8).tolist() == [0, 1, 1, 1]


def test_bfloat16_has_a_binary_form_only() -> None:
    array = np.arange(3).astype(ml_dtypes.bfloat16)
    got = from_raw("x", bytes(to_raw(array)), "BF16", (3,))
    assert got.dtype == array.dtype and np.array_equal(got, array)
    with pytest.raises(RequestError, match="no JSON form"):
        from_list("x", [1.0], "BF16", (1,))
    with pytest.raises(RequestError, match="no JSON form"):
        to_list(array)


def test_strings_survive_both_forms() -> None:
    array = np.array([["größe", ""], ["a\0b", "z"]], object)
    raw = bytes(to_raw(array))
    assert raw[:4] == struct.pack("<I", 7)
    assert np.array_equal(from_raw("x", raw, "BYTES", (2, 2)), array)
    assert np.array_equal(from_list("x", array.tolist(), "BYTES", (2, 2)), array)
    assert np.array_equal(
        from_contents("x", contents("BYTES", [t.encode() for t in array.ravel()]), "BYTES", (2, 2)), array
    )


def test_nested_and_empty_lists_fit_a_shape() -> None:
    assert from_list("x", [[1, 2], [3, 4]], "INT8", (4, 1)).tolist() == [[1], [2], [3], [4]]
    assert from_list("x", [], "FP32", (0, 3)).shape == (0, 3)
    assert from_list("x", 5, "FP32", ()).shape == ()


def test_integers_above_those_that_floats_have_stay_exact() -> None:
    assert from_list("x", [2**64 - 1, 1], "UINT64", (2,)).tolist() == [2**64 - 1, 1]
    assert from_list("x", [-(2**63), 2**53 + 1], "INT64", (2,)).tolist() == [-(2**63), 2**53 + 1]


@pytest.mark.parametrize(
    ("data", "datatype", "message"),
    [
        ([1.5, 2], "INT32", "values of INT32"),
        ([1, 2], "BOOL", "values of BOOL"),
        ([True, False], "FP32", "values of FP32"),
        (["1", "2"], "FP32", "values of FP32"),
        ([300, 1], "UINT8", "outside the range of UINT8"),
        ([-1, 1], "UINT64", "outside the range of UINT64"),
        ([2**63, 1], "INT64", "outside the range of INT64"),
        ([2**64, 1], "UINT64", "outside the range of UINT64"),
        ([1.0, 2.0], "INT64", "values of INT64"),
        ([1, 2, 3], "FP32", "must have 2 elements, got 3"),
        ([[1], [2, 3]], "FP32", "flat or in the form of its shape"),
        ([[1], 2], "FP32", "flat or in the form of its shape"),
        ([1, [2]], "FP32", "flat or in the form of its shape"),
        ([10**400, 1], "FP64", "outside the range of FP64"),
        ([None, 1], "FP32", "values of FP32"),
        ([{}, 1], "INT8", "values of INT8"),
        ([1, 2], "BYTES", "values of BYTES"),
    ],
)
def test_lists_that_do_not_fit_are_refused_and_never_truncated(data: Any, datatype: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        from_list("x", data, datatype, (2,))


@pytest.mark.parametrize(
    ("data", "datatype", "message"),
    [
        (b"1234567", "FP32", "must have 8 bytes, got 7"),
        (b"\x05\0\0\0abcd", "BYTES", "within a string of 5 bytes"),
        (b"\x01\0", "BYTES", "within the length"),
        (b"\x01\0\0\0a", "BYTES", "must have 2 elements, got 1"),
        (b"\x01\0\0\0\xff\x01\0\0\0a", "BYTES", "not UTF-8"),
    ],
)
def test_binary_data_that_does_not_fit_is_refused(data: bytes, datatype: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        from_raw("x", data, datatype, (2,))


def test_values_that_json_lacks_are_refused() -> None:
    with pytest.raises(RequestError, match="NaN"):
        to_list(np.array([np.nan], np.float32))


def test_numbers_are_those_that_python_reads_from_the_same_text() -> None:
    random = np.random.default_rng(5)
    bits = random.integers(0, 2**64, 4000, np.uint64).view(np.float64)
    doubles = [float(v) for v in bits[np.isfinite(bits)]]
    texts = [repr(v) for v in doubles] + [f"{v:.{digits}e}" for digits, v in enumerate(doubles[:40])]
    texts += ["1e-400", "-0", "0.1e1", "9007199254740993", "123456789012345678901234567890", "5e-324", "1E+2", "0e999"]
    got = from_json("x", memoryview(f"[{','.join(texts)}]".encode()), "FP64", (len(texts),))
    np.testing.assert_array_equal(got.view(np.uint64), np.array([float(t) for t in texts]).view(np.uint64))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1,2", "malformed"), ("[1 2]", "malformed"), ("[01,2]", "malformed"), ("[1,]", "malformed"),
        ("[1,2]]", "malformed"), ("[NaN,1]", "malformed"), ("[+1,2]", "malformed"), ("[1.,2]", "malformed"),
        ("[" * 65 + "1" + "]" * 65, "nested too deeply"), (f"[{'1' * 5000}]", "too many digits"),
    ],
)  # fmt: skip
def test_text_that_is_not_a_list_of_numbers_is_refused(text: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        from_json("x", memoryview(text.encode()), "FP32", (2,))


def test_escapes_in_strings_are_resolved_and_half_characters_refused() -> None:
    texts = ['"\\ / \b\f\n\r\t', "\u00e9\u20ac\U0001f600", ""]
    assert from_list("x", texts, "BYTES", (3,)).tolist() == texts  # json.dumps escapes all that is not ASCII
    for half in (r'["\ud800"]', r'["\udc00\ud800"]', r'["\ud800\u0041"]'):
        with pytest.raises(RequestError, match="half a surrogate pair"):
            from_json("x", memoryview(half.encode()), "BYTES", (1,))


def test_unpacked_and_negative_numbers_of_a_typed_list() -> None:
    unpacked = b"".join(b"\x10" + value for value in (b"\x05", b"\xfb" + b"\xff" * 8 + b"\x01"))
    assert from_contents("x", memoryview(unpacked), "INT8", (2,)).tolist() == [5, -5]
    with pytest.raises(RequestError, match="malformed"):
        from_contents("x", memoryview(unpacked[:-1]), "INT8", (2,))
    with pytest.raises(RequestError, match="outside the range of INT8"):
        from_contents("x", contents("INT32", [1, 128]), "INT8", (2,))


@given(st.binary(max_size=60), st.sampled_from(sorted(_CONTENTS)), st.integers(0, 5))
def test_any_bytes_are_read_or_refused(data: bytes, datatype: str, count: int) -> None:
    for read in (from_json, from_contents, from_raw):
        with contextlib.suppress(RequestError):
            assert read("x", memoryview(data), datatype, (count,)).shape == (count,)


JSON_TOKENS = ("[", "]", ",", "1", "-0.5e3", "true", '"a"', '"\\u00e9"', " ", "null", "{", "}", "1e999", '"')


@given(st.lists(st.sampled_from(JSON_TOKENS), max_size=12).map("".join), st.sampled_from(sorted(_CONTENTS)))
def test_lists_are_read_only_if_the_text_is_json(text: str, datatype: str) -> None:
    try:
        array = from_json("x", memoryview(text.encode()), datatype, (2,))
    except RequestError:
        return
    flat = np.array(json.loads(text), object).ravel().tolist()
    assert array.tolist() == (flat if datatype == "BYTES" else np.array(flat).astype(array.dtype).tolist())


def test_long_texts_of_an_answer_are_short_parts() -> None:
    texts = ["\1" * (1 << 20), "a" + "\U0001f600" * 70_000, "", b"\xff" * 70_000, "b"]
    parts = list(to_json("y", np.array(texts, np.object_)))
    assert json.loads(b"".join(parts)) == [t.decode(errors="replace") if isinstance(t, bytes) else t for t in texts]
    assert max(map(len, parts)) < 1 << 20


@pytest.mark.parametrize(
    "array",
    [
        np.array([False, True]),
        np.array([-(2**63), 2**63 - 1]),
        np.array([2**64 - 1], np.uint64),
        np.array([-(2**31)], np.int32),
        np.array([2**32 - 1], np.uint32),
        np.array([-(2**15)], np.int16),
        np.array([2**16 - 1], np.uint16),
        np.array([-128], np.int8),
        np.array([255], np.uint8),
        np.array([-1.1754943508222875e-38, -3.4028234663852886e38], np.float32),
        np.array([-2.2250738585072014e-308, -1.7976931348623157e308]),
        np.array([-6.103515625e-05, 65504], np.float16),
        np.array(["\u00e9", "\U0001f600", '"\\', "\0"], np.object_),
        np.array([], np.float32),
    ],
    ids=lambda a: f"{a.dtype} {a.size}",
)
def test_an_answer_takes_no_more_than_was_counted_for_it(array: np.ndarray[Any, Any]) -> None:
    assert sum(map(len, to_json("y", array))) <= answer_bytes(array, binary=False) + 2
    if array.dtype.kind == "O":
        assert len(to_raw(array)) <= answer_bytes(array, binary=True)

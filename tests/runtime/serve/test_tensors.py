"""Tensors in the protocol's forms, and those that are refused."""

from __future__ import annotations

import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from heterocc.runtime.serve.errors import RequestError
from heterocc.runtime.serve.tensors import from_list, from_raw, from_values, to_list, to_raw

DTYPES = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "INT8": "int8",
    "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16", "FP32": "float32", "FP64": "float64",
}  # fmt: skip


@pytest.mark.parametrize("datatype", DTYPES)
def test_every_datatype_survives_both_forms(datatype: str) -> None:
    array = np.arange(6).astype(DTYPES[datatype]).reshape(2, 3)
    raw = from_raw("x", bytes(to_raw(array)), datatype, (2, 3))
    listed = from_list("x", to_list("x", array), datatype, (2, 3))
    for got in (raw, listed):
        assert got.dtype == array.dtype and np.array_equal(got, array)


def test_binary_data_at_an_odd_address_gives_an_aligned_array() -> None:
    data = memoryview(b"?" + np.arange(4, dtype=np.float32).tobytes())[1:]
    array = from_raw("x", data, "FP32", (4,))
    assert array.flags.aligned and array.tolist() == [0, 1, 2, 3]


def test_bfloat16_has_a_binary_form_only() -> None:
    array = np.arange(3).astype(ml_dtypes.bfloat16)
    got = from_raw("x", bytes(to_raw(array)), "BF16", (3,))
    assert got.dtype == array.dtype and np.array_equal(got, array)
    with pytest.raises(RequestError, match="no JSON form"):
        from_list("x", [1.0], "BF16", (1,))
    with pytest.raises(RequestError, match="no JSON form"):
        to_list("y", array)


def test_strings_survive_both_forms() -> None:
    array = np.array([["größe", ""], ["a\0b", "z"]], object)
    raw = bytes(to_raw(array))
    assert raw[:4] == struct.pack("<I", 7)
    assert np.array_equal(from_raw("x", raw, "BYTES", (2, 2)), array)
    assert np.array_equal(from_list("x", array.tolist(), "BYTES", (2, 2)), array)
    assert np.array_equal(from_values("x", [t.encode() for t in array.ravel()], "BYTES", (2, 2)), array)


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
        ([2**64, 1], "UINT64", "values of UINT64"),
        ([1.0, 2.0], "INT64", "values of INT64"),
        ([1, 2, 3], "FP32", "must have 2 elements, got 3"),
        ([[1], [2, 3]], "FP32", "a list of numbers"),
        ([None, 1], "FP32", "values of FP32"),
        ([{}, 1], "INT8", "values of INT8"),
        ([1, 2], "BYTES", "strings only"),
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
        to_list("y", np.array([np.nan], np.float32))

"""Data of inference requests as arrays, read by the CPU plug-in without the interpreter's lock.

Memory is that of the results, and time is linear in the size of the data: see runtime/native/cpu/request_data.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from typing import Any

import numpy as np

from heterocc.runtime.native import cpu_api

Array = np.ndarray[Any, Any]

TEXT = "text"
"""The element type of texts; the others are names of numpy's dtypes."""

ELEMENTS: Sequence[str] = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", TEXT,
)  # fmt: skip
"""The element types, by the plug-in's numbers for them."""


class Problem(IntEnum):
    """Why data was refused."""

    MALFORMED = 1
    TOO_DEEP = 2
    WRONG_TYPE = 3
    OUT_OF_RANGE = 4
    RAGGED = 5
    SURROGATE = 6
    TOO_LONG = 7
    TOO_MANY = 8


class DataError(Exception):
    """Data that was refused, why, and its position in bytes."""

    def __init__(self, problem: Problem, position: int) -> None:
        super().__init__(f"{problem.name} at byte {position}")
        self.problem = problem
        self.position = position


class _Span(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_int64), ("end", ctypes.c_int64))


class _Outcome(ctypes.Structure):
    _fields_ = (("problem", ctypes.c_int64), ("position", ctypes.c_int64), ("count", ctypes.c_int64))


def load() -> None:
    """Load the plug-in. Raises NativePluginError if it was not built or does not fit."""
    _library()


def cut_json(text: Any, limit: int) -> list[tuple[int, int]]:
    """Check a JSON document, and find the values of `data` of the objects in its list `inputs`, as begin and end.

    `text` is a buffer. Raises DataError if it is not JSON, and if there are more than `limit` such values.
    """
    spans, outcome = (_Span * limit)(), _Outcome()
    address, size, held = _address(text)
    _library().heterocc_cpu_cut_json(address, size, spans, limit, ctypes.byref(outcome))
    del held
    _check(outcome)
    return [(span.begin, span.end) for span in spans[: outcome.count]]


def read_json(text: Any, element: str, count: int) -> tuple[Array, int]:
    """The elements of a JSON value, flat or nested lists, and their number, which may differ from `count`.

    Texts come as bytes: each its length in four bytes, little-endian, and its UTF-8. Raises DataError.
    """
    address, size, held = _address(text)
    result, outcome = _result(element, count, size), _Outcome()
    _library().heterocc_cpu_read_json(
        address, size, ELEMENTS.index(element), result.ctypes.data, result.size, ctypes.byref(outcome)
    )
    del held
    return _read(result, element, outcome)


def read_contents(message: Any, field: int, element: str, count: int) -> tuple[Array, int]:
    """The same of a field of a serialized message `InferTensorContents`."""
    address, size, held = _address(message)
    result, outcome = _result(element, count, size), _Outcome()
    _library().heterocc_cpu_read_contents(
        address, size, field, ELEMENTS.index(element), result.ctypes.data, result.size, ctypes.byref(outcome)
    )
    del held
    return _read(result, element, outcome)


def _result(element: str, count: int, size: int) -> Array:
    """Memory for the elements; no more than a text of `size` bytes can fill."""
    if element == TEXT:
        return np.empty(2 * size, np.uint8)  # a text of n bytes takes n + 2 at least, and n + 4 here
    return np.empty(min(count, size), element)


def _read(result: Array, element: str, outcome: _Outcome) -> tuple[Array, int]:
    _check(outcome)
    return (result[: outcome.position] if element == TEXT else result), int(outcome.count)


def _check(outcome: _Outcome) -> None:
    if outcome.problem:
        raise DataError(Problem(outcome.problem), outcome.position)


def _address(text: Any) -> tuple[int, int, Any]:
    """The address and size of a buffer, and what keeps it in place."""
    view = np.frombuffer(text, np.uint8) if len(text) else np.empty(0, np.uint8)
    return view.ctypes.data, view.size, view


@cache
def _library() -> ctypes.CDLL:
    library = cpu_api.loaded_library()
    pointer, size, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    for name, arguments in (
        ("cut_json", [pointer, size, pointer, size, pointer]),
        ("read_json", [pointer, size, number, pointer, size, pointer]),
        ("read_contents", [pointer, size, number, number, pointer, size, pointer]),
    ):
        function = getattr(library, f"heterocc_cpu_{name}")
        function.restype, function.argtypes = None, arguments
    return library

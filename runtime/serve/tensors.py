"""Tensors of the Open Inference Protocol: its datatypes, and numpy arrays from and to its forms of data."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from heterocc.artifacts.dtypes import COMPUTED, is_text
from heterocc.runtime.feeds import Array
from heterocc.runtime.serve.errors import RequestError

BYTES = "BYTES"
BF16 = "BF16"

_NAMES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
    "bfloat16": BF16,
}
_NUMPY = {name: COMPUTED[dtype] for dtype, name in _NAMES.items() if dtype in COMPUTED}
_LENGTH = struct.Struct("<I")


def datatype_of(dtype: str) -> str | None:
    """The protocol's name of a bundle's dtype; None if it has none."""
    return BYTES if is_text(dtype) else _NAMES.get(dtype)


def fits(shape: Sequence[int], expected: Sequence[int | None] | None) -> bool:
    """Return whether a shape is the expected one; an unknown dimension fits any size."""
    return expected is None or (
        len(shape) == len(expected) and all(e is None or e == d for d, e in zip(shape, expected, strict=True))
    )


def from_raw(name: str, data: bytes | memoryview, datatype: str, shape: Sequence[int]) -> Array:
    """An array from the protocol's binary form, without a copy if the data is aligned.

    Little-endian elements in row-major order; a string is its length in four bytes, and its UTF-8 text.
    """
    if datatype == BYTES:
        return _texts(name, _split(name, data), shape)
    dtype = np.dtype("<u2") if datatype == BF16 else _NUMPY[datatype]
    size = math.prod(shape) * dtype.itemsize
    if len(data) != size:
        raise RequestError(f"input '{name}' of {datatype} {list(shape)} must have {size} bytes, got {len(data)}")
    array: Array = np.frombuffer(data, dtype).reshape(shape)
    if not array.flags.aligned:
        array = array.copy()
    return _bfloat16(array) if datatype == BF16 else array


def from_list(name: str, data: Any, datatype: str, shape: Sequence[int]) -> Array:
    """An array from JSON's lists of numbers, flat or nested. Numbers are never truncated."""
    if datatype == BF16:
        raise RequestError(f"input '{name}' is BF16, which has no JSON form", hint="send it as binary data")
    if datatype == BYTES:
        flat = list(_flatten(data))
        if not all(isinstance(text, str) for text in flat):
            raise RequestError(f"input '{name}' must have strings only")
        return _texts(name, flat, shape)
    try:
        found = np.asarray(data)
        if found.dtype.kind in "fO" and "INT" in datatype:
            found = _integers(data, found)
    except (ValueError, OverflowError, TypeError) as error:
        raise RequestError(f"input '{name}' must be a list of numbers, flat or in the form of its shape") from error
    return _exact(name, found, datatype).reshape(_checked_shape(name, found.size, shape))


def from_values(name: str, values: Sequence[Any], datatype: str, shape: Sequence[int]) -> Array:
    """An array from one of gRPC's typed lists, whose elements have at least as many bits as the datatype."""
    if datatype == BYTES:
        return _texts(name, values, shape)
    wide = np.int64 if datatype.startswith("INT") else np.uint64 if datatype.startswith("UINT") else _NUMPY[datatype]
    found = np.array(values, wide)
    return _exact(name, found, datatype).reshape(_checked_shape(name, found.size, shape))


def to_raw(array: Array) -> bytes | memoryview:
    """The protocol's binary form of an array; a view of it if possible."""
    if array.dtype.kind in "OUST":
        parts = []
        for text in array.ravel().tolist():
            data = text if isinstance(text, bytes) else str(text).encode()
            parts += [_LENGTH.pack(len(data)), data]
        return b"".join(parts)
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    # As bytes, because dtypes such as bfloat16 have no buffer format.
    return array.reshape(-1).view(np.uint8).data if array.size else b""


def to_list(name: str, array: Array) -> list[Any]:
    """JSON's flat list of an array's elements. Raises RequestError if JSON cannot represent them."""
    if array.dtype.name == "bfloat16":
        raise RequestError(f"output '{name}' is BF16, which has no JSON form", hint="request binary data")
    if array.dtype.kind in "fc" and not np.isfinite(array).all():
        raise RequestError(f"output '{name}' has infinities or NaN, which JSON lacks", hint="request binary data")
    flat: list[Any] = array.ravel().tolist()
    return (
        [t.decode(errors="replace") if isinstance(t, bytes) else t for t in flat] if array.dtype.kind in "OS" else flat
    )


def _exact(name: str, found: Array, datatype: str) -> Array:
    dtype = _NUMPY[datatype]
    kinds = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}[dtype.kind]
    if found.size and found.dtype.kind not in kinds:
        raise RequestError(f"input '{name}' must have values of {datatype}")
    if dtype.kind in "iu" and found.size:
        limits = np.iinfo(dtype.name)
        if int(found.min()) < limits.min or int(found.max()) > limits.max:
            raise RequestError(f"input '{name}' has a value outside the range of {datatype}")
    with np.errstate(over="ignore"):  # as every conversion to a narrower float
        return found.astype(dtype, copy=False)


def _integers(data: Any, found: Array) -> Array:
    """The array of a list that numpy does not take as integers, if it has only such: it takes 2**63 and 1 as floats."""
    exact = np.asarray(data, object)
    return (
        exact.astype(np.uint64) if all(type(value) is int and 0 <= value < 1 << 64 for value in exact.flat) else found
    )


def _checked_shape(name: str, size: int, shape: Sequence[int]) -> Sequence[int]:
    if size != math.prod(shape):
        raise RequestError(f"input '{name}' of shape {list(shape)} must have {math.prod(shape)} elements, got {size}")
    return shape


def _flatten(data: Any) -> list[Any]:
    if not isinstance(data, list):
        return [data]
    return [item for part in data for item in _flatten(part)] if any(isinstance(p, list) for p in data) else data


def _split(name: str, data: bytes | memoryview) -> list[bytes]:
    parts, position, end = [], 0, len(data)
    while position < end:
        if end - position < _LENGTH.size:
            raise RequestError(f"input '{name}' ends within the length of a string")
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        if length > end - position:
            raise RequestError(f"input '{name}' ends within a string of {length} bytes")
        parts.append(bytes(data[position : position + length]))
        position += length
    return parts


def _texts(name: str, values: Sequence[Any], shape: Sequence[int]) -> Array:
    _checked_shape(name, len(values), shape)
    array = np.empty(len(values), object)
    try:
        array[:] = [v.decode() if isinstance(v, bytes) else v for v in values]
    except UnicodeDecodeError as error:
        raise RequestError(f"input '{name}' has a string that is not UTF-8") from error
    return array.reshape(shape)


def _bfloat16(array: Array) -> Array:
    import ml_dtypes

    view: Array = array.view(ml_dtypes.bfloat16)
    return view

"""Tensors of the Open Inference Protocol: its datatypes, and numpy arrays from and to its forms of data."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from heterocc.artifacts.dtypes import COMPUTED, is_text
from heterocc.runtime.feeds import Array
from heterocc.runtime.native import request_data
from heterocc.runtime.native.request_data import Problem
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

LONGEST_TEXT = 8 << 20
"""Bytes of one text, at most: making it keeps other threads waiting."""

MOST_TEXTS = 1 << 18
"""Texts of one input, at most: ONNX Runtime converts all of them while other threads wait."""

_MOST_DIMENSIONS = 32
"""Of numpy's arrays before 2.0."""

_PART = 1 << 9
"""Elements of a part of a JSON list."""

_TEXT_PART = 1 << 16
"""Characters of a part of a text in JSON."""

_JOINED = 1 << 16
"""Bytes of JSON, at least, that are one part of an answer: the event loop handles each part by itself."""

_TEXT_OBJECT = 80
"""Bytes of a short Python string and the pointer to it, at most."""

_CONTENTS = {
    "BOOL": 1, "INT8": 2, "INT16": 2, "INT32": 2, "INT64": 3, "UINT8": 4, "UINT16": 4, "UINT32": 4, "UINT64": 5,
    "FP32": 6, "FP64": 7, BYTES: 8,
}  # fmt: skip
"""The fields of `InferTensorContents`; the other datatypes have only the raw form."""

_PROBLEMS = {
    Problem.MALFORMED: "is malformed",
    Problem.TOO_DEEP: "is nested too deeply",
    Problem.WRONG_TYPE: "must have values of {}",
    Problem.OUT_OF_RANGE: "has a value outside the range of {}",
    Problem.RAGGED: "must be a list of values, flat or in the form of its shape",
    Problem.SURROGATE: "has half a surrogate pair in a string",
    Problem.TOO_LONG: "has a number with too many digits",
    Problem.TOO_MANY: "has more values than its data can hold",
}


def datatype_of(dtype: str) -> str | None:
    """The protocol's name of a bundle's dtype; None if it has none."""
    return BYTES if is_text(dtype) else _NAMES.get(dtype)


def fits(shape: Sequence[int], expected: Sequence[int | None] | None) -> bool:
    """Return whether a shape is the expected one; an unknown dimension fits any size."""
    return expected is None or (
        len(shape) == len(expected) and all(e is None or e == d for d, e in zip(shape, expected, strict=True))
    )


def is_array_shape(shape: Sequence[int]) -> bool:
    """Return whether an array may have a shape: its rank, and its size in bytes as if no dimension were 0."""
    if len(shape) > _MOST_DIMENSIONS or any(d >= 1 << 63 for d in shape):
        return False
    return math.prod(d or 1 for d in shape) < 1 << 59


def from_raw(name: str, data: bytes | memoryview, datatype: str, shape: Sequence[int]) -> Array:
    """An array from the protocol's binary form, without a copy if the data is aligned.

    Little-endian elements in row-major order; a string is its length in four bytes, and its UTF-8 text.
    """
    if datatype == BYTES:
        return _texts(name, memoryview(data), shape)
    dtype = np.dtype("<u2") if datatype == BF16 else _NUMPY[datatype]
    size = math.prod(shape) * dtype.itemsize
    if len(data) != size:
        raise RequestError(f"input '{name}' of {datatype} {list(shape)} must have {size} bytes, got {len(data)}")
    array: Array = np.frombuffer(data, dtype).reshape(shape)
    if datatype == "BOOL":
        array = array.view(np.uint8) != 0  # a byte may have any value, but code relies on 0 and 1
    if not array.flags.aligned:
        array = array.copy()
    return _bfloat16(array) if datatype == BF16 else array


def from_json(name: str, text: memoryview, datatype: str, shape: Sequence[int]) -> Array:
    """An array from JSON's lists, flat or nested. Numbers are never truncated."""
    if datatype == BF16:
        raise RequestError(f"input '{name}' is BF16, which has no JSON form", hint="send it as binary data")
    return _read(name, datatype, shape, lambda element, count: request_data.read_json(text, element, count))


def from_contents(name: str, message: memoryview, datatype: str, shape: Sequence[int]) -> Array:
    """An array from the typed list of gRPC's message `InferTensorContents`."""
    field = _CONTENTS.get(datatype)
    if field is None:
        raise RequestError(f"input '{name}' is {datatype}, which 'contents' has no list for", hint="send it raw")
    return _read(
        name, datatype, shape, lambda element, count: request_data.read_contents(message, field, element, count)
    )


def _read(name: str, datatype: str, shape: Sequence[int], read: Callable[[str, int], tuple[Array, int]]) -> Array:
    dtype = None if datatype == BYTES else _NUMPY[datatype]
    element = request_data.TEXT if dtype is None else "float64" if datatype == "FP16" else dtype.name
    try:
        found, count = read(element, math.prod(shape))
    except request_data.DataError as error:
        raise RequestError(f"input '{name}' {_PROBLEMS[error.problem].format(datatype)}") from None
    _check_count(name, count, shape)
    if dtype is None:
        return _texts(name, found.data, shape)
    with np.errstate(over="ignore"):  # as every conversion to a narrower float
        return found.astype(dtype, copy=False).reshape(shape)


def decoded_bytes(datatype: str, shape: Sequence[int], size: int) -> int:
    """Bytes that the array of `size` bytes of data takes, at most, with what is needed to make it."""
    count = min(math.prod(shape), size)
    if datatype == BYTES:
        return min(count, MOST_TEXTS) * _TEXT_OBJECT + 6 * size
    dtype = _NUMPY.get(datatype)
    return size if dtype is None else count * (dtype.itemsize + (8 if datatype == "FP16" else 0))


_JSON_BYTES = {"b": 6, "f": 25, "i1": 5, "u1": 4, "i2": 7, "u2": 6, "i4": 12, "u4": 11, "i8": 21, "u8": 21}
"""The most bytes of a number in a JSON list, with its comma, by kind of its dtype, or with its size."""


def answer_bytes(array: Array, *, binary: bool) -> int:
    """The most bytes that an output takes in an answer, beside its array."""
    kind = array.dtype.kind
    if kind in "OUST":
        texts = array.ravel().tolist()
        if binary:
            return 4 * (len(texts) + sum(map(len, texts)))
        # Each unit of UTF-16 may be escaped, as \\u00e9.
        units = (len(t) if isinstance(t, bytes) else len(t.encode("utf-16-le", "surrogatepass")) // 2 for t in texts)
        return 3 * len(texts) + 6 * sum(units)
    if binary:
        return 0 if array.flags.c_contiguous else int(array.nbytes)
    return array.size * _JSON_BYTES.get(kind, _JSON_BYTES.get(f"{kind}{array.dtype.itemsize}", 25))


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


def to_json(name: str, array: Array) -> Iterator[bytes]:
    """JSON's flat list of an array's elements, in parts. Raises RequestError if JSON cannot represent them.

    In parts because the interpreter lets no other thread run while it encodes one.
    """
    if array.dtype.name == "bfloat16":
        raise RequestError(f"output '{name}' is BF16, which has no JSON form", hint="request binary data")
    if array.dtype.kind in "fc" and not np.isfinite(array).all():
        raise RequestError(f"output '{name}' has infinities or NaN, which JSON lacks", hint="request binary data")
    joined: list[bytes] = [b"["]
    size = 0
    for part in _texts_in_json(array) if array.dtype.kind in "OUST" else _numbers_in_json(array):
        joined.append(part)
        size += len(part)
        if size >= _JOINED:
            yield b"".join(joined)
            joined, size = [], 0
    yield b"".join([*joined, b"]"])


def _numbers_in_json(array: Array) -> Iterator[bytes]:
    flat = array.reshape(-1)
    for start in range(0, flat.size, _PART):
        text = json.dumps(flat[start : start + _PART].tolist(), separators=(",", ":"))
        yield f"{',' if start else ''}{text[1:-1]}".encode()


def _texts_in_json(array: Array) -> Iterator[bytes]:
    for place, found in enumerate(array.ravel().tolist()):
        text = found.decode(errors="replace") if isinstance(found, bytes) else found
        yield b',"' if place else b'"'
        for start in range(0, len(text), _TEXT_PART):
            yield json.dumps(text[start : start + _TEXT_PART])[1:-1].encode()
        yield b'"'


def _check_count(name: str, count: int, shape: Sequence[int]) -> None:
    expected = math.prod(shape)
    if count != expected:
        raise RequestError(f"input '{name}' of shape {list(shape)} must have {expected} elements, got {count}")


def _texts(name: str, data: memoryview, shape: Sequence[int]) -> Array:
    """The texts of the protocol's binary form, one at a time: other threads run in between."""
    count = math.prod(shape)
    if count > MOST_TEXTS:
        raise RequestError(f"input '{name}' has {count} texts, more than {MOST_TEXTS}", hint="send several requests")
    array = np.empty(min(count, len(data)), object)
    found, position, end = 0, 0, len(data)
    while position < end:
        if end - position < _LENGTH.size:
            raise RequestError(f"input '{name}' ends within the length of a string")
        (length,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        if length > end - position:
            raise RequestError(f"input '{name}' ends within a string of {length} bytes")
        if length > LONGEST_TEXT:
            raise RequestError(f"input '{name}' has a string of {length} bytes, more than {LONGEST_TEXT}")
        if found < array.size:
            try:
                array[found] = str(data[position : position + length], "utf-8")
            except UnicodeDecodeError as error:
                raise RequestError(f"input '{name}' has a string that is not UTF-8") from error
        found += 1
        position += length
    _check_count(name, found, shape)
    return array.reshape(shape)


def _bfloat16(array: Array) -> Array:
    import ml_dtypes

    view: Array = array.view(ml_dtypes.bfloat16)
    return view

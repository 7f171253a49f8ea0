"""External tensors of a serialised ONNX model, found in its bytes without the package onnx.

Stricter than protobuf in cases in which parsers differ: groups, field numbers of more than 32 bits, and lengths past
the end are refused, a tensor with either field of external data counts as external, and all repeated fields are read.
The format: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping

_MAX_DEPTH = 100
"""Messages inside each other; protobuf's own limit."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

# Messages that can hold a tensor, with the numbers of the fields that lead there (onnx.proto).
_WAYS: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
_INITIALIZER = ("model", "graph", "tensor")
_NAME, _EXTERNAL_DATA, _DATA_LOCATION = 8, 13, 14


def unexpected_external(model: bytes, given: Collection[str]) -> str | None:
    """The reason why a model must not be loaded with data for the initializers `given`; None if it names no other file.

    An external tensor must be an initializer of the graph itself, of a name that is given and that no other has.
    """
    if b"location" not in model:  # the key of an external tensor's file; text is stored contiguously
        return None
    names: Counter[bytes] = Counter()
    external: list[bytes] = []
    try:
        for place, tensor in _tensors(memoryview(model), "model", ()):
            name, outside = _tensor(tensor)
            if place == _INITIALIZER:
                names[name] += 1
            elif outside:
                return f"tensor '{_text(name)}' inside a node, a function or a sparse tensor is external"
            if outside:
                external.append(name)
    except ValueError as error:
        return f"it is malformed: {error}"
    known = {name.encode() for name in given}
    for name in external:
        if name not in known:
            return f"tensor '{_text(name)}' is external, and the bundle has no data for it"
        if names[name] > 1:
            return f"tensor '{_text(name)}' is there twice"
    return None


def _text(name: bytes) -> str:
    return name[:80].decode(errors="replace")


def _tensors(data: memoryview, kind: str, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], memoryview]]:
    """Every tensor in a message of a kind, with the kinds of the messages that contain it."""
    path = (*path, kind)
    if kind == "tensor":
        yield path, data
        return
    if len(path) > _MAX_DEPTH:
        raise ValueError("messages are nested too deeply")
    ways = _WAYS[kind]
    for number, value in _fields(data):
        if number in ways and isinstance(value, memoryview):
            yield from _tensors(value, ways[number], path)


def _tensor(data: memoryview) -> tuple[bytes, bool]:
    """Name of a tensor (the last, as protobuf has it), and whether it is external."""
    name, external = b"", False
    for number, value in _fields(data):
        if number == _NAME and isinstance(value, memoryview):
            name = bytes(value)
        elif number == _EXTERNAL_DATA or (number == _DATA_LOCATION and value != 0):
            external = True
    return name, external


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field of a message; raises ValueError if it is malformed."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at, 5)
        number, kind = tag >> 3, tag & 7
        if number == 0 or tag >> 32:
            raise ValueError("a field has an impossible number")
        if kind == _VARINT:
            value, at = _varint(data, at, 10)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at, 5)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field has wire type {kind}")
        if size > end - at:
            raise ValueError("a field is longer than its message")
        yield number, data[at : at + size]
        at += size


def _varint(data: memoryview, at: int, most: int) -> tuple[int, int]:
    """A number of up to `most` bytes, and the position after it."""
    if at < len(data) and data[at] < 128:
        return data[at], at + 1
    value = 0
    for index, byte in enumerate(data[at : at + most]):
        value |= (byte & 127) << (7 * index)
        if byte < 128:
            return value, at + index + 1
    raise ValueError("a number has no end")

"""Large initializers of a model apart from the rest, so that their data is read once, to where it is used.

Protobuf copies all data when it parses a model, and again when a field is read. Here only the rest is parsed: its large
initializers are external, at locations that no file has.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper

from heterocc.compiler.files.memory import Memory
from heterocc.compiler.importer.draft.draft import MAX_RANK
from heterocc.compiler.importer.reading.external_data import PACKED_BITS

LEAST = 1 << 16
"""Bytes of data from which an initializer is read apart."""

INSIDE = "\0inside"
"""The start of locations of initializers that are inside the file; no file's name has a NUL."""

Read = Callable[[int, int], bytes]
"""Reads the bytes between two positions of the model."""

_BLOCK = 1 << 12
"""The bytes that are read at once where fields begin: those of nodes are small."""

_GRAPH, _INITIALIZER = 7, 5
_DIMS, _TYPE, _NAME, _RAW, _DOC = 1, 2, 8, 9, 12
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
_SLICE = 8 << 20
"""Bytes of an array that are hashed while the next ones are read."""

_HEADER = 20
"""The most bytes of a field's number and length."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A model without the data of its large initializers, and these by location; `digest` waits for that of all."""

    rest: bytes
    inside: dict[str, np.ndarray]
    digest: Callable[[], str]


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of a message: its number, how it is encoded, and where it, its content and the next field begin."""

    number: int
    kind: int
    start: int
    content: int
    end: int
    value: int = 0


@dataclass(frozen=True, slots=True)
class _Large:
    """An initializer whose data is read apart: the field of the graph, and that of the data in it."""

    tensor: _Field
    raw: _Field


def split_file(path: str | os.PathLike[str], size: int) -> Parts | None:
    """The parts of a model's file; None if it has no large initializers, or another form than ONNX's tools write.

    Raises OSError if it cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _split(_File(handle, size), size)
    except _OddError:
        return None
    finally:
        os.close(handle)


class _OddError(Exception):
    """The model cannot be divided; the ordinary way reads it, or says what is wrong."""


@dataclass(frozen=True, slots=True)
class _File:
    handle: int
    size: int

    def read(self, start: int, end: int) -> bytes:
        """The bytes between two positions."""
        buffer = bytearray(end - start)
        self.fill(memoryview(buffer), start)
        return bytes(buffer)

    def fill(self, buffer: memoryview, start: int) -> None:
        """Fill a buffer with the bytes from a position."""
        while buffer.nbytes:
            count = os.preadv(self.handle, [buffer], start)
            if not count:
                raise _OddError  # the file is shorter now
            buffer, start = buffer[count:], start + count


@dataclass
class _Pieces:
    """The pieces of a model in their order; hashes each while the next one is read."""

    file: _File
    memory: Memory
    rest: list[bytes] = field(default_factory=list)
    total: hashlib._Hash = field(default_factory=hashlib.sha256)
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    def keep(self, start: int, end: int) -> bytes:
        """Bytes of the rest."""
        data = self.file.read(start, end)
        self.pool.submit(self.total.update, data)
        return data

    def skip(self, start: int, end: int) -> None:
        """Bytes that the rest does not have, because it has others in their place."""
        self.pool.submit(self.total.update, self.file.read(start, end))

    def array(self, start: int, end: int) -> np.ndarray:
        """Data of an initializer."""
        made = self.memory.take(end - start)
        for done in range(0, made.nbytes, _SLICE):
            part = made.data[done : done + _SLICE]
            self.file.fill(part, start + done)
            self.pool.submit(self.total.update, part)
        made.flags.writeable = False
        return made

    def digest(self) -> Callable[[], str]:
        """A function that waits for the digest of all pieces."""
        found = self.pool.submit(self.total.hexdigest)
        self.pool.shutdown(wait=False)
        return found.result


def _split(file: _File, size: int) -> Parts | None:
    read = file.read
    graphs = [f for f in _fields(read, 0, size) if f.number == _GRAPH]
    if len(graphs) != 1 or graphs[0].kind != _BYTES:
        return None
    graph = graphs[0]
    tensors = (f for f in _fields(read, graph.content, graph.end) if f.number == _INITIALIZER and f.kind == _BYTES)
    large = [found for found in (_large(read, tensor) for tensor in tensors) if found is not None]
    if not large:
        return None
    memory = Memory(found.raw.end - found.raw.content for found in large)
    pieces, body, inside = _Pieces(file, memory), [], {}
    before = pieces.keep(0, graph.start)
    pieces.skip(graph.start, graph.content)
    place = graph.content
    for number, found in enumerate(large):
        tensor, raw = found.tensor, found.raw
        location = f"{INSIDE}{number}"
        body.append(pieces.keep(place, tensor.start))
        pieces.skip(tensor.start, tensor.content)
        head = pieces.keep(tensor.content, raw.start)
        pieces.skip(raw.start, raw.content)
        inside[location] = pieces.array(raw.content, raw.end)
        tail = pieces.keep(raw.end, tensor.end) + _reference(location)
        body.append(_tag(_INITIALIZER) + _varint(len(head) + len(tail)) + head + tail)
        place = tensor.end
    body.append(pieces.keep(place, graph.end))
    after = pieces.keep(graph.end, size)
    inner = b"".join(body)
    rest = b"".join((before, _tag(_GRAPH), _varint(len(inner)), inner, after))
    return Parts(rest, inside, pieces.digest())


def _large(read: Read, tensor: _Field) -> _Large | None:
    """A large initializer with raw data of the size of its shape and nothing unusual; None for others."""
    if tensor.end - tensor.content < LEAST:
        return None
    dims: list[int] = []
    types, raws = [], []
    for found in _fields(read, tensor.content, tensor.end):
        if found.number == _DIMS and found.kind == _VARINT:
            dims.append(found.value)
        elif found.number == _DIMS and found.kind == _BYTES and found.end - found.content < LEAST:
            dims += _packed(read(found.content, found.end))
        elif found.number == _TYPE and found.kind == _VARINT:
            types.append(found.value)
        elif found.number == _RAW and found.kind == _BYTES:
            raws.append(found)
        elif found.number not in (_NAME, _DOC):
            return None
    if len(types) != 1 or len(raws) != 1 or raws[0].end - raws[0].content < LEAST:
        return None
    if types[0] not in onnx.TensorProto.DataType.values() or types[0] in PACKED_BITS:
        return None
    if types[0] in (onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED) or len(dims) > MAX_RANK:
        return None
    need = math.prod(dims) * helper.tensor_dtype_to_np_dtype(types[0]).itemsize
    return _Large(tensor, raws[0]) if raws[0].end - raws[0].content == need else None


def _reference(location: str) -> bytes:
    """Fields that make a tensor an external one."""
    entry = onnx.StringStringEntryProto(key="location", value=location)
    tensor = onnx.TensorProto(data_location=onnx.TensorProto.EXTERNAL, external_data=[entry])
    data: bytes = tensor.SerializeToString()
    return data


def _fields(read: Read, start: int, end: int) -> Iterator[_Field]:
    """The fields of a message between two positions. Raises _OddError for an encoding that is not known."""
    block, first = b"", start
    while start < end:
        if start + _HEADER > first + len(block):
            block, first = read(start, min(start + _BLOCK, end)), start
        head = block[start - first : start - first + _HEADER]
        key, used = _number(head, 0)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, used = _number(head, used)
            found = _Field(number, kind, start, start + used, start + used, value)
        elif kind == _BYTES:
            length, used = _number(head, used)
            found = _Field(number, kind, start, start + used, start + used + length)
        elif kind in _FIXED:
            found = _Field(number, kind, start, start + used, start + used + _FIXED[kind])
        else:
            raise _OddError
        if found.end > end:
            raise _OddError
        yield found
        start = found.end


def _number(data: bytes, place: int) -> tuple[int, int]:
    """A number of variable length at a place, and the place behind it."""
    value = shift = 0
    while place < len(data) and shift < 64:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
    raise _OddError


def _packed(data: bytes) -> Iterator[int]:
    place = 0
    while place < len(data):
        value, place = _number(data, place)
        yield value


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def _tag(number: int) -> bytes:
    return _varint(number << 3 | _BYTES)

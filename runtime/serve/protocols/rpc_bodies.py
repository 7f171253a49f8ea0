"""Bodies of gRPC inference requests and responses: protobuf messages beside the data of their tensors.

A request is cut before it is parsed: protobuf parses the small rest, in one go and with the interpreter's lock, and the
data stays in the message until a worker reads it. An answer's data is not copied into a message either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from heterocc.runtime.serve.errors import RequestError, RequestSizeError
from heterocc.runtime.serve.inference import Decode, Input, Output, Request, check_parameters, timeout_of
from heterocc.runtime.serve.models import Served
from heterocc.runtime.serve.names import shown
from heterocc.runtime.serve.protocols.rpc_messages import MESSAGES, number_of
from heterocc.runtime.serve.tensors import from_contents, from_raw, to_raw

Message = Any

HEAD = 1 << 16
"""Bytes of a message beside the data of its tensors, at most."""

_MOST_FIELDS = 1 << 12
"""Fields of a message and its inputs, at most."""

_INPUTS = number_of("ModelInferRequest", "inputs")
_RAW = number_of("ModelInferRequest", "raw_input_contents")
_CONTENTS = number_of("ModelInferRequest.InferInputTensor", "contents")
_RAW_OUTPUTS = number_of("ModelInferResponse", "raw_output_contents")

_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5
"""Protobuf's wire types (protobuf.dev/programming-guides/encoding)."""


class _Field(NamedTuple):
    """A field of a message: its number, where it begins, and the place of its value."""

    number: int
    start: int
    begin: int
    end: int


def parse(name: str, data: bytes | memoryview) -> Message:
    """A message of the protocol. Raises RequestError as `parsed` does."""
    return parsed(MESSAGES[name], data)


def parsed(kind: Any, data: bytes | memoryview) -> Message:
    """A message of a class. Raises RequestError if the bytes are none, or too many for a message without tensors."""
    if len(data) > HEAD:
        raise RequestError(f"the request has {len(data)} bytes beside its tensors' data, more than {HEAD}")
    try:
        return kind.FromString(bytes(data))
    except DecodeError:
        raise RequestError(f"the request is not a message of the type {kind.DESCRIPTOR.full_name}") from None


def parse_infer(data: bytes) -> tuple[Message, Request]:
    """The message of an inference request without its inputs, and the request. Raises RequestError."""
    view, pieces, raw, inputs = memoryview(data), [], [], []
    left = [_MOST_FIELDS]
    for field in _fields(view, left):
        if field.number == _RAW:
            raw.append(view[field.begin : field.end])
        elif field.number == _INPUTS:
            inputs.append(_cut_input(view[field.begin : field.end], left))
        else:
            pieces.append(view[field.start : field.end])
    size = sum(map(len, pieces)) + sum(len(head) for head, _ in inputs)
    if size > HEAD:
        raise RequestError(f"the request has {size} bytes beside its tensors' data, more than {HEAD}")
    message = parse("ModelInferRequest", b"".join(pieces))
    if raw and len(raw) != len(inputs):
        raise RequestError(f"the request has {len(inputs)} inputs, but {len(raw)} raw_input_contents")
    given = [
        _input(parse("ModelInferRequest.InferInputTensor", head), contents, raw[place] if raw else None)
        for place, (head, contents) in enumerate(inputs)
    ]
    parameters = _parameters(message.parameters)
    check_parameters(parameters)
    for output in message.outputs:
        check_parameters(_parameters(output.parameters), f"output '{shown(output.name)}'")
    names = tuple(output.name for output in message.outputs)
    return message, Request(message.id, tuple(given), names or None, timeout_of(parameters))


def answer(served: Served, request: Request, outputs: Sequence[Output], most: int) -> bytes:
    """The serialized response. Raises RequestSizeError if it has more than `most` bytes."""
    reply = MESSAGES["ModelInferResponse"](model_name=served.name, model_version=served.version, id=request.id)
    parts: list[bytes | memoryview] = []
    for output in outputs:
        reply.outputs.add(name=output.tensor.name, datatype=output.tensor.datatype, shape=output.array.shape)
        data = to_raw(output.array)
        parts += [_varint(_RAW_OUTPUTS << 3 | _LENGTH), _varint(len(data)), data]
    parts.append(reply.SerializeToString())
    size = sum(map(len, parts))
    if size > most:
        raise RequestSizeError(
            f"the answer has {size} bytes, and a message may have {most}",
            hint="request it over HTTP, or start the service with a larger --max-message-mb",
        )
    return b"".join(parts)


def _cut_input(view: memoryview, left: list[int]) -> tuple[bytes, memoryview | None]:
    """An input without its contents, and those."""
    pieces: list[memoryview] = []
    contents: memoryview | None = None
    for field in _fields(view, left):
        if field.number != _CONTENTS:
            pieces.append(view[field.start : field.end])
        elif contents is not None:
            raise RequestError("an input of the request has 'contents' twice")
        else:
            contents = view[field.begin : field.end]
    if sum(map(len, pieces)) > HEAD:
        raise RequestError(f"an input of the request has more than {HEAD} bytes beside its data")
    return b"".join(pieces), contents


def _input(item: Message, contents: memoryview | None, raw: memoryview | None) -> Input:
    name = shown(item.name)
    check_parameters(_parameters(item.parameters), f"input '{name}'")
    decode: Decode
    if raw is not None:
        if contents is not None:
            raise RequestError(f"input '{name}' has 'contents' in a request with raw_input_contents")
        data = raw

        def decode(datatype: str, shape: Sequence[int]) -> Any:
            return from_raw(name, data, datatype, shape)
    else:
        data = memoryview(b"") if contents is None else contents

        def decode(datatype: str, shape: Sequence[int]) -> Any:
            return from_contents(name, data, datatype, shape)

    return Input(item.name, item.datatype, tuple(item.shape), decode, len(data))


def _parameters(message: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: getattr(value, value.WhichOneof("parameter_choice") or "bool_param") for name, value in message.items()
    }


def _fields(view: memoryview, left: list[int]) -> Iterator[_Field]:
    """The fields of a message; `left` has the number of those that may still follow. Raises RequestError."""
    position, end = 0, len(view)
    while position < end:
        left[0] -= 1
        if left[0] < 0:
            raise RequestError(f"the request has more than {_MOST_FIELDS} fields")
        start = position
        tag, position = _read_varint(view, position)
        begin, wire = position, tag & 7
        if wire == _VARINT:
            _, position = _read_varint(view, position)
        elif wire == _LENGTH:
            size, begin = _read_varint(view, position)
            position = begin + size
        elif wire in (_EIGHT, _FOUR):
            position += 8 if wire == _EIGHT else 4
        else:
            raise _malformed()
        if position > end or not tag >> 3:
            raise _malformed()
        if tag >> 3 in (_INPUTS, _RAW, _CONTENTS) and wire != _LENGTH:
            raise _malformed()
        yield _Field(tag >> 3, start, begin, position)


def _read_varint(view: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(view[position : position + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position + place + 1
    raise _malformed()


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _malformed() -> RequestError:
    return RequestError("the request is not a message of the type ModelInferRequest")

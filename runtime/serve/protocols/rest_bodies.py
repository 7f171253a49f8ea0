"""Bodies of HTTP inference requests and responses: JSON, with binary tensors behind it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from heterocc.runtime.native import request_data
from heterocc.runtime.native.request_data import Problem
from heterocc.runtime.serve.errors import RequestError
from heterocc.runtime.serve.inference import Decode, Input, Output, Request, check_parameters, timeout_of
from heterocc.runtime.serve.models import Served
from heterocc.runtime.serve.names import shown
from heterocc.runtime.serve.tensors import answer_bytes, from_json, from_raw, to_json, to_raw

HEAD = 1 << 16
"""Bytes of a request's JSON beside the data of its tensors, at most: the interpreter parses them in one go."""

MOST_INPUTS = 1 << 10
"""Inputs of a request, at most."""

_REASONS = {
    Problem.TOO_DEEP: "nested too deeply",
    Problem.TOO_LONG: "not valid: a number has too many digits",
    Problem.TOO_MANY: "not valid: it has too many inputs",
}


class Body:
    """A parsed request: the request itself, and which outputs are to be binary.

    The JSON without the data of its tensors, the head, is parsed by the interpreter; the data is read by native code,
    straight into arrays, when a worker runs the request.
    """

    def __init__(self, data: bytes | bytearray | memoryview, header_length: int | None) -> None:
        """`header_length` is the size of the JSON in bytes, if binary tensors follow it. Raises RequestError."""
        if header_length is not None and not 0 <= header_length <= len(data):
            raise RequestError(
                f"Inference-Header-Content-Length is {header_length}, but the body has {len(data)} bytes"
            )
        end = len(data) if header_length is None else header_length
        text = memoryview(data)[:end]
        head, listed = _cut(text)
        root = _object(_parsed(head), "the body")
        parameters = _object(root.get("parameters", {}), "'parameters'")
        check_parameters(parameters)
        binary = _Binary(memoryview(data)[end:])
        inputs = tuple(_input(item, binary, listed) for item in _objects(root, "inputs"))
        if binary.left:
            raise RequestError(f"the body has {binary.left} bytes more than the inputs' binary_data_size")
        outputs = _objects(root, "outputs")
        names = tuple(_text(output, "name") for output in outputs)
        everything = parameters.get("binary_data_output", False) is True
        self.binary = {n: _is_binary(o, everything) for n, o in zip(names, outputs, strict=True)}
        self.binary_by_default = everything
        self.request = Request(
            id=_text(root, "id") if "id" in root else "",
            inputs=inputs,
            outputs=names if names else None,
            timeout=timeout_of(parameters),
        )


def _cut(text: memoryview) -> tuple[bytes, list[memoryview]]:
    """The head of a request, in which the data of each tensor is replaced by its index, and the data."""
    try:
        spans = request_data.cut_json(text, MOST_INPUTS)
    except request_data.DataError as error:
        reason = _REASONS.get(error.problem, "not valid JSON")
        raise RequestError(f"the request is {reason} at byte {error.position}") from None
    size = len(text) - sum(end - begin for begin, end in spans)
    if size > HEAD:
        raise RequestError(f"the request has {size} bytes of JSON beside its tensors' data, more than {HEAD}")
    parts: list[bytes | memoryview] = []
    position = 0
    for index, (begin, end) in enumerate(spans):
        parts += [text[position:begin], b"%d" % index]
        position = end
    return b"".join([*parts, text[position:]]), [text[begin:end] for begin, end in spans]


class Reply:
    """A response in parts: JSON, and the binary tensors behind it. `header_length` is the size of the JSON then."""

    def __init__(
        self, served: Served, body: Body, outputs: Sequence[Output], take: Callable[[int], None] = lambda size: None
    ) -> None:
        """`take` is called with the bytes of memory of each output, before these are used.

        Raises RequestError if an output cannot be represented as JSON.
        """
        tail: list[bytes | memoryview] = []
        root = {"model_name": served.name, "model_version": served.version}
        if body.request.id:
            root["id"] = body.request.id
        text = [_json(root)[:-1], b',"outputs":[']
        for place, output in enumerate(outputs):
            name, array = output.tensor.name, output.array
            item: dict[str, Any] = {"name": name, "datatype": output.tensor.datatype, "shape": list(array.shape)}
            text.append(b"," if place else b"")
            binary = body.binary.get(name, body.binary_by_default)
            take(array.nbytes + answer_bytes(array, binary=binary))
            if binary:
                data = to_raw(array)
                item["parameters"] = {"binary_data_size": len(data)}
                tail.append(data)
                text.append(_json(item))
            else:
                text += [_json(item)[:-1], b',"data":', *to_json(name, array), b"}"]
        text.append(b"]}")
        self.header_length = sum(map(len, text)) if tail else None
        self.parts: list[bytes | memoryview] = [*text, *tail]
        self.size = sum(map(len, self.parts))


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


class _Binary:
    """The bytes behind the JSON, taken input by input."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._position

    def take(self, name: str, size: object) -> memoryview:
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= self.left:
            raise RequestError(
                f"input '{name}' has the binary_data_size {shown(repr(size))}, but {self.left} bytes are left"
            )
        self._position += size
        return self._data[self._position - size : self._position]


def _input(item: Mapping[str, Any], binary: _Binary, listed: Sequence[memoryview]) -> Input:
    name = _text(item, "name")
    label = shown(name)
    parameters = _object(item.get("parameters", {}), f"'parameters' of input '{label}'")
    check_parameters(parameters, f"input '{label}'")
    shape = item.get("shape")
    if not isinstance(shape, list) or not all(type(d) is int for d in shape):
        raise RequestError(f"input '{label}' must have a 'shape', a list of integers")
    if ("data" in item) == ("binary_data_size" in parameters):
        raise RequestError(f"input '{label}' must have either 'data' or the parameter 'binary_data_size'")
    decode: Decode
    if "data" in item:
        data = listed[item["data"]]

        def decode(datatype: str, shape: Sequence[int]) -> Any:
            return from_json(label, data, datatype, shape)
    else:
        data = binary.take(label, parameters["binary_data_size"])

        def decode(datatype: str, shape: Sequence[int]) -> Any:
            return from_raw(label, data, datatype, shape)

    return Input(name, _text(item, "datatype"), tuple(shape), decode, len(data))


def _is_binary(output: Mapping[str, Any], everything: bool) -> bool:
    name = shown(_text(output, "name"))
    parameters = _object(output.get("parameters", {}), f"'parameters' of output '{name}'")
    check_parameters(parameters, f"output '{name}'")
    return parameters.get("binary_data", everything) is True


def _parsed(text: bytes) -> Any:
    try:
        value = json.loads(text.decode())  # no other encoding
        if b"\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()  # an escape may be half a character, which no text may have
    except ValueError as error:
        raise RequestError(f"the request is not valid JSON: {error}") from None
    return value


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RequestError(f"{what} must be a JSON object")
    return value


def _objects(root: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    items = root.get(key, [])
    if not isinstance(items, list):
        raise RequestError(f"'{key}' must be a list")
    return [_object(item, f"each of '{key}'") for item in items]


def _text(item: Mapping[str, Any], key: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise RequestError(f"'{key}' must be a string")
    return value

"""Bodies of HTTP inference requests and responses: JSON, with binary tensors behind it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from heterocc.runtime.serve.errors import RequestError
from heterocc.runtime.serve.inference import Decode, Input, Output, Request, check_parameters, timeout_of
from heterocc.runtime.serve.models import Served
from heterocc.runtime.serve.tensors import from_list, from_raw, to_list, to_raw


class Body:
    """A parsed request: the request itself, and which outputs are to be binary."""

    def __init__(self, data: bytes, header_length: int | None) -> None:
        """`header_length` is the size of the JSON in bytes, if binary tensors follow it. Raises RequestError."""
        if header_length is not None and not 0 <= header_length <= len(data):
            raise RequestError(
                f"Inference-Header-Content-Length is {header_length}, but the body has {len(data)} bytes"
            )
        end = len(data) if header_length is None else header_length
        root = _object(_parsed(data[:end]), "the body")
        parameters = _object(root.get("parameters", {}), "'parameters'")
        check_parameters(parameters)
        binary = _Binary(memoryview(data)[end:])
        inputs = tuple(_input(item, binary) for item in _objects(root, "inputs"))
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


class Reply:
    """A response: `json`, the binary tensors behind it, and the header that gives the JSON's size."""

    def __init__(self, served: Served, body: Body, outputs: Sequence[Output]) -> None:
        """Raises RequestError if an output cannot be represented as JSON."""
        tail: list[bytes | memoryview] = []
        items = []
        for output in outputs:
            name, array = output.tensor.name, output.array
            item: dict[str, Any] = {"name": name, "datatype": output.tensor.datatype, "shape": list(array.shape)}
            if body.binary.get(name, body.binary_by_default):
                data = to_raw(array)
                item["parameters"] = {"binary_data_size": len(data)}
                tail.append(data)
            else:
                item["data"] = to_list(name, array)
            items.append(item)
        root: dict[str, Any] = {"model_name": served.name, "model_version": served.version, "outputs": items}
        if body.request.id:
            root["id"] = body.request.id
        text = json.dumps(root, separators=(",", ":")).encode()
        self.header_length = len(text) if tail else None
        self.content = b"".join([text, *tail]) if tail else text


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
            raise RequestError(f"input '{name}' has the binary_data_size {size!r}, but {self.left} bytes are left")
        self._position += size
        return self._data[self._position - size : self._position]


def _input(item: Mapping[str, Any], binary: _Binary) -> Input:
    name = _text(item, "name")
    parameters = _object(item.get("parameters", {}), f"'parameters' of input '{name}'")
    check_parameters(parameters, f"input '{name}'")
    shape = item.get("shape")
    if not isinstance(shape, list) or not all(type(d) is int for d in shape):
        raise RequestError(f"input '{name}' must have a 'shape', a list of integers")
    if ("data" in item) == ("binary_data_size" in parameters):
        raise RequestError(f"input '{name}' must have either 'data' or the parameter 'binary_data_size'")
    decode: Decode
    if "data" in item:
        values = item["data"]

        def decode(datatype: str, shape: Sequence[int]) -> Any:
            return from_list(name, values, datatype, shape)
    else:
        data = binary.take(name, parameters["binary_data_size"])

        def decode(datatype: str, shape: Sequence[int]) -> Any:
            return from_raw(name, data, datatype, shape)

    return Input(name, _text(item, "datatype"), tuple(shape), decode)


def _is_binary(output: Mapping[str, Any], everything: bool) -> bool:
    name = _text(output, "name")
    parameters = _object(output.get("parameters", {}), f"'parameters' of output '{name}'")
    check_parameters(parameters, f"output '{name}'")
    return parameters.get("binary_data", everything) is True


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise RequestError("the request's JSON is nested too deeply") from None
    except ValueError as error:
        raise RequestError(f"the request is not valid JSON: {error}") from None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


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

"""Requests that are made to cost a service much, and the measurement of what they cost it."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import grpc

from heterocc.runtime.serve.protocols.rpc_messages import MESSAGES
from tests.runtime import standin
from tests.runtime.serve.process import ServiceProcess
from tests.runtime.standin import Model

INFER = "/inference.GRPCInferenceService/ModelInfer"


@dataclass(frozen=True)
class Cost:
    """What requests cost: the longest time in which the service answered no other, and its memory's growth in bytes."""

    seconds: float
    longest: float
    memory: int


def write_models(folder: Path) -> Path:
    """Models that return their input: `numbers`, `wide` (int64) and `texts` take vectors, `ranks` any shape."""
    folder.mkdir(exist_ok=True)
    kinds = {"numbers": ("float32", (None,)), "wide": ("int64", (None,)), "texts": ("string", (None,))}
    for name, value in {**kinds, "ranks": ("float32", None)}.items():
        model = Model({"x": value}, inputs=("x",), outputs=("x",), parts=())
        standin.write_bundle(folder / f"{name}.hcb", model)
    return folder


def memory_of(service: ServiceProcess, field: str = "VmHWM") -> int:
    """The peak of the process's memory in bytes, or what it is now (`VmRSS`)."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(field)).split()[1]) << 10


def cost_of(service: ServiceProcess, requests: Callable[[], object]) -> Cost:
    """Send requests while another client asks whether the service is live, all the time."""
    # Peaks count from here on.
    Path(f"/proc/{service.process.pid}/clear_refs").write_text("5")
    before, ended, times = memory_of(service, "VmRSS"), threading.Event(), []

    def probe() -> None:
        host, _, port = service.http.partition(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while not ended.is_set():
                start = time.perf_counter()
                connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                assert connection.recv(4096).startswith(b"HTTP/1.1 200")
                times.append(time.perf_counter() - start)
                time.sleep(0.001)

    thread = threading.Thread(target=probe)
    thread.start()
    time.sleep(0.1)
    start = time.perf_counter()
    try:
        requests()
    finally:
        seconds = time.perf_counter() - start
        ended.set()
        thread.join()
    return Cost(seconds, max(times), memory_of(service) - before)


def post(service: ServiceProcess, model: str, body: bytes, **headers: str) -> tuple[int, bytes]:
    """The status and body of the answer to an inference request; 0 if the service closed the connection."""
    connection = HTTPConnection(service.http, timeout=120)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", body, headers)
        with connection.getresponse() as response:
            return response.status, response.read()
    except (OSError, HTTPException):
        return 0, b""
    finally:
        connection.close()


def infer(channel: grpc.Channel, message: bytes, timeout: float = 120) -> str:
    """The name of the status of a gRPC request."""
    call = channel.unary_unary(INFER)
    try:
        call(message, timeout=timeout)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def channel_to(service: ServiceProcess) -> grpc.Channel:
    """A channel without limits of its own."""
    options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    return grpc.insecure_channel(service.grpc, options)


def json_body(datatype: str, count: int, data: str, outputs: bool = True) -> bytes:
    """A request for a model of one vector; `data` is JSON. The answer is binary unless `outputs`."""
    head = {"name": "x", "datatype": datatype, "shape": [count]}
    text = json.dumps({"inputs": [head], "parameters": {"binary_data_output": not outputs}})
    return text.replace("}]", f', "data": {data}}}]', 1).encode()


def message(model: str, datatype: str, count: int, raw: bytes) -> bytes:
    """A gRPC request for a model of one vector."""
    head = {"name": "x", "datatype": datatype, "shape": [count]}
    return bytes(
        MESSAGES["ModelInferRequest"](model_name=model, inputs=[head], raw_input_contents=[raw]).SerializeToString()
    )


def _floats(size: int) -> tuple[str, bytes]:
    text = ("0.1234567," * (size // 10))[:-1]
    return "numbers", json_body("FP32", size // 10, f"[{text}]", outputs=False)


def _digits(size: int) -> tuple[str, bytes]:
    return "wide", json_body("INT64", size // 2, f"[{('7,' * (size // 2))[:-1]}]", outputs=False)


def _json_answer(size: int) -> tuple[str, bytes]:
    return "numbers", json_body("FP32", size // 4, f"[{('1.1,' * (size // 4))[:-1]}]")


def _texts_for_numbers(size: int) -> tuple[str, bytes]:
    long = size * 5 // 7
    empty = (size - long) // 3
    return "numbers", json_body("FP32", empty + 1, '["' + "a" * long + '"' + ',""' * empty + "]")


def _texts(size: int) -> tuple[str, bytes]:
    return "texts", json_body("BYTES", size // 5, "[" + ('"ab",' * (size // 5))[:-1] + "]")


def _long_text(size: int) -> tuple[str, bytes]:
    return "texts", json_body("BYTES", 1, '["' + "é😀" * (size // 6) + '"]')


def _nested(size: int) -> tuple[str, bytes]:
    return "numbers", json_body("FP32", 0, f"[{('[],' * (size // 3))[:-1]}]")


def _members(size: int) -> tuple[str, bytes]:
    return "numbers", b'{"id": "", ' + b'"a": {},' * (size // 8) + b'"b": 0}'


def _inputs(size: int) -> tuple[str, bytes]:
    return "numbers", b'{"inputs": [' + (b"{}," * (size // 3))[:-1] + b"]}"


JSON = {
    "numbers": _floats, "digits": _digits, "numbers, answered as JSON": _json_answer,
    "texts for numbers": _texts_for_numbers, "texts": _texts, "one text": _long_text, "empty lists": _nested,
    "other members": _members, "inputs": _inputs,
}  # fmt: skip
"""Requests over HTTP of a size in bytes, by what they are full of."""


def _field(number: int, data: bytes) -> bytes:
    size, head = len(data), bytearray([number << 3 | 2])
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*head, size]) + data


def _typed(size: int) -> bytes:
    contents = _field(5, _field(3, b"\7" * size))
    head = MESSAGES["ModelInferRequest.InferInputTensor"](name="x", datatype="INT64", shape=[size]).SerializeToString()
    return _field(1, b"wide") + _field(5, head + contents)


def _typed_texts(size: int) -> bytes:
    head = MESSAGES["ModelInferRequest.InferInputTensor"](name="x", datatype="BYTES", shape=[size // 4])
    return _field(1, b"texts") + _field(5, head.SerializeToString() + _field(5, b"\x42\2ab" * (size // 4)))


PROTOBUF: dict[str, Callable[[int], bytes]] = {
    "raw data": lambda size: message("numbers", "FP32", size // 4, bytes(size // 4 * 4)),
    "raw data for no model": lambda size: message("none", "FP32", size // 4, bytes(size // 4 * 4)),
    "typed digits": _typed,
    "typed texts": _typed_texts,
    "raw texts": lambda size: message("texts", "BYTES", size // 6, (struct.pack("<I", 2) + b"ab") * (size // 6)),
    "empty inputs": lambda size: _field(1, b"numbers") + b"\x2a\0" * (size // 2),
    "empty raw data": lambda size: _field(1, b"numbers") + b"\x3a\0" * (size // 2),
    "names": lambda size: _field(1, b"n" * size),
    "parameters": lambda size: _field(1, b"numbers") + _field(4, b"\x0a\1a\x12\2\x08\1") * (size // 10),
}
"""Requests over gRPC of a size in bytes, by what they are full of."""

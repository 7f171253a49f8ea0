"""Readers of files and bytes that coverage-guided fuzzing calls, each with seeds; any exception but theirs is a fault.

`scripts/fuzz.sh` runs them; `test_targets.py` runs each on its seeds, damaged seeds and the inputs in `corpus/`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from heterocc.artifacts.errors import HeteroccError, InternalError, PassError
from heterocc.artifacts.npy import parse_npy
from heterocc.artifacts.reader import open_bundle
from heterocc.artifacts.signing.keys import _public_keys
from heterocc.artifacts.signing.signatures import from_member
from heterocc.compiler.devices.file import read_device_file
from heterocc.compiler.importer.reading.read import read_model
from heterocc.compiler.importer.reading.source import ModelSource
from heterocc.compiler.placement.affinity_file import load_affinity
from heterocc.compiler.placement.cost_table import load_cost_table
from heterocc.runtime.execute.onnx_wire import unexpected_external
from heterocc.runtime.files.npz import read_npz
from heterocc.runtime.machine.compat import host, why_not
from heterocc.runtime.serve.inference import Request
from heterocc.runtime.serve.protocols.rest_bodies import Body
from heterocc.runtime.serve.protocols.rpc_bodies import parse_infer
from heterocc.runtime.serve.protocols.rpc_messages import MESSAGES
from heterocc.runtime.serve.tensors import decoded_bytes, is_array_shape
from tests.artifacts.bundle_forge import contents, pack, with_manifest
from tests.artifacts.bundle_sample import write_sample

CORPUS = Path(__file__).with_name("corpus")
"""Inputs that found faults, `TARGET/NAME`, as text: each line of hexadecimal digits."""


@dataclass(frozen=True)
class Target:
    """A reader: `read` returns, or raises a HeteroccError that is not a bug of ours; `seeds` are valid inputs."""

    read: Callable[[bytes], object]
    seeds: Callable[[], list[bytes]]


def run(name: str, data: bytes) -> bool:
    """Call a target. Return whether it accepted the input; raise what it must not raise."""
    try:
        TARGETS[name].read(data)
    except (InternalError, PassError):
        raise
    except HeteroccError as error:
        str(error).encode()
        return False
    return True


def corpus(name: str) -> list[bytes]:
    """The stored inputs of a target."""
    return [bytes.fromhex(file.read_text(encoding="ascii")) for file in sorted((CORPUS / name).glob("*"))]


@cache
def _folder() -> Path:
    """A directory in memory for the readers that take paths."""
    return Path(tempfile.mkdtemp(prefix="fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))


def _by_file(read: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    def call(data: bytes) -> object:
        path = _folder() / f"{os.getpid()}-{name}"
        path.write_bytes(data)
        return read(path)

    return call


@cache
def _sample() -> Mapping[str, bytes]:
    path = _folder() / "sample.hcb"
    write_sample(path, arranged=True)
    return contents(path)


def _sample_bytes() -> bytes:
    path = _folder() / "sample.hcb"
    write_sample(path, replacing=True)
    return path.read_bytes()


def _look(data: bytes) -> None:
    with open_bundle(data) as bundle:
        bundle.signatures()
        bundle.verify()
        for member in bundle.manifest.golden.inputs.values() if bundle.manifest.golden else ():
            bundle.array(member)
        for variant in bundle.manifest.variants:
            why_not(variant, bundle.manifest.producer, host(), lambda device: None)


def _look_at_manifest(text: bytes) -> None:
    """A bundle whose members are right, with any manifest."""
    path = _folder() / f"{os.getpid()}.hcb"
    pack(path, with_manifest(dict(_sample()), text))
    _look(path.read_bytes())


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, x=np.arange(3))
    return buffer.getvalue()


def _request(data: bytes) -> None:
    """An HTTP request for inference: JSON, and from the first zero byte on its binary tensors."""
    end = data.find(b"\0")
    _decode(Body(data, None if end < 0 else end).request)


def _message(data: bytes) -> None:
    """A gRPC request for inference."""
    _decode(parse_infer(data)[1])


def _decode(request: Request) -> None:
    for given in request.inputs:
        # The service compares the datatype and the shape with the model's before it decodes.
        known = given.datatype in ("FP32", "INT16", "INT64", "BYTES")
        if known and min(given.shape, default=0) >= 0 and is_array_shape(given.shape):
            decoded_bytes(given.datatype, given.shape, given.size)
            given.decode(given.datatype, given.shape)


def _requests() -> list[bytes]:
    listed = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [[1.5, 2]], "parameters": {"a": 1}}
    texts = {"name": "s", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]}
    raw = {"name": "r", "datatype": "INT16", "shape": [3], "parameters": {"binary_data_size": 6}}
    outputs = [{"name": "y", "parameters": {"binary_data": True}}]
    one = {"id": "7", "inputs": [listed, texts], "outputs": outputs, "parameters": {"timeout": 1000}}
    return [json.dumps(one).encode(), json.dumps({"inputs": [listed, raw]}).encode() + bytes(6)]


def _messages() -> list[bytes]:
    typed = {"name": "x", "datatype": "INT64", "shape": [2], "contents": {"int64_contents": [1, -2]}}
    texts = {"name": "s", "datatype": "BYTES", "shape": [2], "contents": {"bytes_contents": [b"a", "ü".encode()]}}
    raw = {"name": "r", "datatype": "FP32", "shape": [1, 2]}
    parameters = {"timeout": {"int64_param": 1000}}
    given: list[dict[str, Any]] = [
        {"inputs": [typed, texts], "outputs": [{"name": "y"}], "parameters": parameters, "id": "7"},
        {"inputs": [raw], "raw_input_contents": [bytes(8)]},
    ]
    return [MESSAGES["ModelInferRequest"](model_name="m", **fields).SerializeToString() for fields in given]


def _model() -> bytes:
    from tests.compiler.small import conv_net

    return conv_net(_folder() / "m.onnx").read_bytes()


def _public_key() -> bytes:
    import base64

    der = bytes.fromhex("302a300506032b6570032100") + hashlib.sha256(b"").digest()
    return b"-----BEGIN PUBLIC KEY-----\n" + base64.b64encode(der) + b"\n-----END PUBLIC KEY-----\n"


_COSTS = {
    "devices": ["A", "B"],
    "node_us": {"n": {"A": 1.0}},
    "link": {"A->B": {"latency_us": 1, "gb_per_s": 1}, "B->A": {"latency_us": 1, "gb_per_s": 1}},
    "pin": {"n": "A"},
}
_DEVICE = 'name = "D"\nbackend = "opencl"\nmemory = 1000000\n[target]\nmax_num_threads = 256\n'
_AFFINITY = """mode = "corrected"
[ops]
"Softmax" = "CPU"
[globs]
"a/*" = "GPU"
[ranges]
"a..b" = "CPU"
[nodes]
n = "GPU"
"""

TARGETS: Mapping[str, Target] = {
    "bundle": Target(_look, lambda: [_sample_bytes()]),
    "manifest": Target(_look_at_manifest, lambda: [_sample()["manifest.json"]]),
    "signatures": Target(from_member, lambda: [b"ed25519 " + b"0" * 64 + b" " + b"1" * 128 + b"\n"]),
    "keys": Target(lambda data: _public_keys(data, "keys"), lambda: [_public_key(), _public_key() * 2]),
    "npy": Target(
        lambda data: parse_npy(memoryview(data), "x.npy"), lambda: [_npy(np.ones((2, 3))), _npy(np.array(["ab", "c"]))]
    ),
    "onnx-wire": Target(lambda data: unexpected_external(data, ()), lambda: [_model()]),
    "model": Target(lambda data: read_model(ModelSource(Path("m.onnx"), data, placed=False)), lambda: [_model()]),
    "affinity": Target(_by_file(load_affinity, "a.toml"), lambda: [_AFFINITY.encode()]),
    "device-toml": Target(_by_file(read_device_file, "d.toml"), lambda: [_DEVICE.encode()]),
    "device-json": Target(
        _by_file(read_device_file, "d.json"),
        lambda: [b'{"name": "D", "backend": "opencl", "target": {"max_num_threads": 256}}'],
    ),
    "costs": Target(_by_file(load_cost_table, "c.json"), lambda: [json.dumps(_COSTS).encode()]),
    "npz": Target(_by_file(read_npz, "x.npz"), lambda: [_npz()]),
    "request": Target(_request, _requests),
    "message": Target(_message, _messages),
}

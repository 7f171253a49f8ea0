"""OpenCL modules written by hand, in the bytes that TVM's code generator writes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import tvm_ffi

from heterocc.runtime.native import load_opencl
from tests import device_run
from tests.runtime.native import device_sample
from tests.runtime.native.device_sample import Tensors

HANDLE = (3, 64, 1)
FLOAT32 = (2, 32, 1)
INT8 = (0, 8, 1)

SCALE = """
__kernel void scale(__global float* restrict y, __global float* restrict x, float factor, char bias) {
  int i = get_group_id(0) * get_local_size(0) + get_local_id(0);
  y[i] = x[i] * factor + bias;
}
"""

_TENSORS = Tensors("opencl", load_opencl)
opencl, empty, to_device, run_scale = _TENSORS.device, _TENSORS.empty, _TENSORS.upload, _TENSORS.run_scale
leave_idle_workspace = _TENSORS.leave_idle_workspace
to_host, pointer = device_run.download, device_sample.pointer


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def module_bytes(
    source: str = SCALE,
    name: str = "scale",
    arguments: tuple[tuple[int, int, int], ...] = (HANDLE, HANDLE, FLOAT32, INT8),
    tags: tuple[str, ...] = ("blockIdx.x", "threadIdx.x"),
) -> bytes:
    """A module of one kernel."""
    return modules_bytes({name: source}, arguments, tags)


def modules_bytes(
    sources: Mapping[str, str],
    arguments: tuple[tuple[int, int, int], ...] = (HANDLE, HANDLE, FLOAT32, INT8),
    tags: tuple[str, ...] = ("blockIdx.x", "threadIdx.x"),
) -> bytes:
    """A module of several kernels, name → source, that take the same arguments."""
    out = _text("cl") + struct.pack("<Q", len(sources))
    for name in sources:
        out += _text(name) + _text(name)
        out += struct.pack("<Q", len(arguments)) + b"".join(struct.pack("<BBH", *a) for a in arguments)
        out += struct.pack("<Q", len(tags)) + b"".join(_text(t) for t in tags)
        out += struct.pack("<Q", 0)
    return out + _text("".join(f"// Function: {name}\n{source}" for name, source in sources.items()))


def load(data: bytes) -> Any:
    """The bytes as a module; raises what the plug-in raises."""
    load_opencl()
    return tvm_ffi.get_global_func("ffi.Module.load_from_bytes.opencl")(data)


def header_size() -> int:
    """Bytes of `module_bytes()` before its source."""
    return len(module_bytes()) - len(SCALE.encode())

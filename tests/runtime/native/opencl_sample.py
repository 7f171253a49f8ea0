"""OpenCL modules written by hand, in the bytes that TVM's code generator writes."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm_ffi

from heterocc.runtime.native import load_opencl

HANDLE = (3, 64, 1)
FLOAT32 = (2, 32, 1)
INT8 = (0, 8, 1)

SCALE = """
__kernel void scale(__global float* restrict y, __global float* restrict x, float factor, char bias) {
  int i = get_group_id(0) * get_local_size(0) + get_local_id(0);
  y[i] = x[i] * factor + bias;
}
"""

_ALLOCATE = "runtime.TVMTensorAllocWithScope"
_COPY = "runtime.TVMTensorCopyFromTo"


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


def opencl() -> Any:
    """The first OpenCL device."""
    return tvm_ffi.device("opencl", 0)


def empty(shape: tuple[int, ...], dtype: str = "float32", device: Any = None) -> Any:
    """An uninitialised tensor, on the first OpenCL device unless told otherwise."""
    load_opencl()
    target = opencl() if device is None else device
    return tvm_ffi.get_global_func(_ALLOCATE)(tvm_ffi.Shape(shape), tvm_ffi.dtype(dtype), target, None)


def to_device(array: np.ndarray) -> Any:
    """A copy of an array on the first OpenCL device."""
    tensor = empty(array.shape, str(array.dtype))
    tvm_ffi.get_global_func(_COPY)(tvm_ffi.from_dlpack(array), tensor)
    return tensor


def to_host(tensor: Any) -> np.ndarray:
    """A copy of a device tensor as an array."""
    host = np.empty(tuple(tensor.shape), str(tensor.dtype))
    tvm_ffi.get_global_func(_COPY)(tensor, tvm_ffi.from_dlpack(host))
    return host


def pointer(tensor: Any) -> ctypes.c_void_p:
    """The data handle that host code passes to a kernel."""
    return ctypes.c_void_p(tensor.data_ptr())

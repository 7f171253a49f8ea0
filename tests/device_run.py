"""Tensors on a device, and the virtual machine of a partition compiled for one."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import tvm_ffi

_CPU = 1
_POOLED = 2
"""TVM's memory pool, that of every device here."""


def empty(shape: tuple[int, ...], dtype: str, device: Any) -> Any:
    """An uninitialised tensor on a device whose plug-in is loaded."""
    allocate = tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope")
    return allocate(tvm_ffi.Shape(shape), tvm_ffi.dtype(dtype), device, None)


def copy(source: Any, target: Any) -> None:
    """Copies between tensors of any devices."""
    tvm_ffi.get_global_func("runtime.TVMTensorCopyFromTo")(source, target)


def upload(array: np.ndarray, device: Any) -> Any:
    """A copy of an array on a device."""
    tensor = empty(array.shape, str(array.dtype), device)
    copy(tvm_ffi.from_dlpack(np.array(array)), tensor)
    return tensor


def download(tensor: Any) -> np.ndarray:
    """A copy of a device's tensor as an array."""
    array = np.empty(tuple(tensor.shape), str(tensor.dtype))
    copy(tensor, tvm_ffi.from_dlpack(array))
    return array


def machine(code: bytes, device: Any) -> Any:
    """The virtual machine of a partition's shared library, on a device and the CPU."""
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(code)
        file.flush()
        library = tvm_ffi.get_global_func("ffi.Module.load_from_file.so")(file.name, "so")
    loaded = library.get_function("vm_load_executable")()
    loaded.get_function("vm_initialization")(device.dlpack_device_type(), device.index, _POOLED, _CPU, 0, _POOLED)
    return loaded

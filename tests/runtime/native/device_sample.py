"""Tensors on the first device of an API, and launches of the samples' kernel on them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm_ffi

from tests import device_run
from tests.device_run import download


def pointer(tensor: Any) -> ctypes.c_void_p:
    """The data handle that host code passes to a kernel."""
    return ctypes.c_void_p(tensor.data_ptr())


@dataclass(frozen=True)
class Tensors:
    """Tensors of an API; `load` makes the API known to TVM."""

    backend: str
    load: Callable[[], object]

    def device(self) -> Any:
        """The API's first device."""
        return tvm_ffi.device(self.backend, 0)

    def empty(self, shape: tuple[int, ...], dtype: str = "float32", device: Any = None) -> Any:
        """An uninitialised tensor, by default on the first device."""
        self.load()
        return device_run.empty(shape, dtype, self.device() if device is None else device)

    def upload(self, array: np.ndarray) -> Any:
        """A copy of an array on the first device."""
        self.load()
        return device_run.upload(array, self.device())

    def run_scale(self, module: Any, x: np.ndarray, factor: float, bias: int, group: int = 8) -> np.ndarray:
        """`x * factor + bias` by the kernel `scale`, for a size that is a multiple of the group's."""
        source, target = self.upload(x), self.empty(x.shape)
        kernel = module.get_function("scale")
        kernel(pointer(target), pointer(source), factor, bias, x.size // group, group)
        return download(target)

    def leave_idle_workspace(self) -> None:
        """Takes a workspace of 1 MiB and gives it back, as TVM's host code does."""
        kind, library = self.device().dlpack_device_type(), ctypes.CDLL("libtvm_runtime.so")
        library.TVMBackendAllocWorkspace.restype = ctypes.c_void_p
        library.TVMBackendAllocWorkspace.argtypes = [
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_uint64,
            ctypes.c_int,
            ctypes.c_int,
        ]
        library.TVMBackendFreeWorkspace.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
        workspace = library.TVMBackendAllocWorkspace(kind, 0, 1 << 20, 2, 32)
        assert workspace
        assert library.TVMBackendFreeWorkspace(kind, 0, workspace) == 0

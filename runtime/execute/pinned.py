"""Host memory that a device's driver has pinned, for asynchronous copies, or that the device itself lends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from heterocc.artifacts.errors import DeviceMemoryError
from heterocc.artifacts.manifest import TensorSpec
from heterocc.runtime import ffi as tvm_ffi
from heterocc.runtime.execute.faults import device_fault
from heterocc.runtime.execute.tvm_api import tvm_api
from heterocc.runtime.feeds import Array
from heterocc.runtime.native import plugin_function
from heterocc.runtime.plan.schedule import HOST, Copy, Schedule, Space, nbytes

_CUDA_HOST = 3
"""DLPack's kDLCUDAHost: what TVM allocates there comes from cudaMallocHost."""


def pinning_device(plan: Schedule, values: Sequence[TensorSpec]) -> Space | None:
    """The device whose driver pins the values that cross: the one that moves most bytes; None if none cross.

    Memory is pinned by one driver at a time. For other drivers it is ordinary memory; these, or the Vulkan
    plug-in, copy via their own pinned memory.
    """
    moved: dict[Space, int] = {}
    for step in plan.steps:
        if isinstance(step, Copy) and HOST in (step.source, step.target):
            moved[step.carrier] = moved.get(step.carrier, 0) + nbytes(values[step.value])
    return max(moved, key=lambda space: moved[space], default=None)


def pinned_bytes(space: Space, size: int) -> Array | None:
    """`size` bytes of host memory pinned for a device, 64-byte aligned; None if the driver has none.

    Drivers limit pinned memory, per piece and in total, below the host's memory: copies from and to ordinary memory
    then take its place. The array keeps the memory. Raises DeviceError.
    """
    try:
        tensor = _allocate(space, size)
    except Exception as error:
        fault = device_fault(error, f"pinning {size} bytes of host memory", str(space))
        if isinstance(fault, DeviceMemoryError):
            return None
        raise fault from error
    return None if tensor is None else np.asarray(_Memory(tensor, size, int(tensor.data_ptr())))


def lent_bytes(space: Space, tensor: Any, size: int) -> Array:
    """The bytes of a device's tensor in memory that the host can access; the array keeps the tensor."""
    address = plugin_function(space.backend, "host_ptr")
    place = 0 if address is None else int(address(tensor))
    if not place:
        raise RuntimeError("the device has put the memory where the host cannot access it")
    return np.asarray(_Memory(tensor, size, place))


def _allocate(space: Space, size: int) -> Any:
    if space.backend == "cuda":
        place = tvm_ffi.Device(_CUDA_HOST, 0)
        return tvm_api().allocate(tvm_ffi.Shape((size,)), tvm_ffi.dtype("uint8"), place, None)
    pin = plugin_function(space.backend, "pin")
    return None if pin is None else pin(space.index, size)


class _Memory:
    """A tensor's bytes, as numpy reads them; keeps the tensor."""

    __slots__ = ("__array_interface__", "_tensor")

    def __init__(self, tensor: Any, size: int, address: int) -> None:
        self._tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
        }

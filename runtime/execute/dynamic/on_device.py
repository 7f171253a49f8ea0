"""Calls of a device's code whose values have shapes that are known only at run time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from heterocc.artifacts.errors import DeviceError, HeteroccError
from heterocc.artifacts.manifest import Partition, Variant
from heterocc.runtime import ffi as tvm_ffi
from heterocc.runtime.execute.dynamic.in_memory import aligned_tensor
from heterocc.runtime.execute.executable import Executable, Instrument, synchronizer
from heterocc.runtime.execute.faults import device_fault
from heterocc.runtime.execute.memory import Allocations, device_tensor, to_host
from heterocc.runtime.execute.tvm_api import tvm_api
from heterocc.runtime.plan.schedule import HOST, Schedule, Space


class DynamicValues:
    """The dynamic values of one context in memories of devices.

    Values that come from the host are copied into rooms, which are allocated once, for the largest sizes. `tensors` has
    the values of the current run, by value and memory.
    """

    def __init__(self, variant: Variant, plan: Schedule, allocations: Allocations, *, keep_all: bool) -> None:
        """With `keep_all` the host gets every value that a device computes. Raises DeviceMemoryError or DeviceError."""
        self.tensors: dict[tuple[int, Space], Any] = {}
        self.rooms: dict[tuple[int, Space], Any] = {}
        self._values = variant.values
        self._read_by_host = set(variant.outputs)
        written: dict[int, Space] = {}
        for part, space in zip(variant.partitions, plan.spaces, strict=True):
            written.update(dict.fromkeys(part.outputs, space))
        for part, space in zip(variant.partitions, plan.spaces, strict=True):
            for value in plan.objects.intersection(part.inputs):
                if written.get(value) == space:
                    continue
                self._read_by_host.add(value)
                if space != HOST and (value, space) not in self.rooms:
                    size = variant.rooms[str(value)]
                    self.rooms[value, space] = device_tensor(space, (size,), "uint8", allocations)
        if keep_all:
            self._read_by_host.update(written)

    def is_read_by_host(self, value: int) -> bool:
        """Whether the host, or by way of it another device, reads a value that a device computes."""
        return value in self._read_by_host

    def send(self, value: int, space: Space, array: Any) -> Any:
        """The tensor of a value in a device's memory, which has the contents of a numpy array of the host."""
        room = self.rooms[value, space]
        if array.nbytes > int(room.shape[0]):
            name, size = self._values[value].name, int(room.shape[0])
            raise DeviceError(
                f"'{name}' has {array.nbytes} bytes, and the bundle plans {size} for it on {space}",
                hint="compile the model again with larger bounds (--dim)",
            )
        shape, dtype = tvm_ffi.Shape(array.shape), tvm_ffi.dtype(self._values[value].dtype)
        tensor = tvm_api().view(room, shape, dtype, 0)
        if array.nbytes:
            tvm_api().copy(aligned_tensor(array, 1), tensor)
        self.tensors[value, space] = tensor
        return tensor


def call_on_device(
    executable: Executable,
    part: Partition,
    space: Space,
    tensors: Mapping[tuple[int, Space], Any],
    objects: dict[int, Any],
    dynamic: DynamicValues,
    known: Collection[int],
    instrument: Instrument | None = None,
) -> Callable[[], None]:
    """A call of `main(*inputs, params)`, which returns a new tensor of the device for each output.

    Static values are in `tensors`. Dynamic ones, those in `known`, are numpy arrays in `objects`, or already in the
    device's memory. Results that the host reads become numpy arrays, which waits for the device.
    """
    try:
        function, _ = executable.function(instrument)
    except HeteroccError:
        raise
    except Exception as error:
        raise device_fault(error, f"preparing partition '{part.name}'", str(space)) from error
    static = [None if value in known else tensors[value, space] for value in part.inputs]
    # TVM's copies to and from CUDA devices are in another stream than kernels, and are only queued.
    settle = synchronizer(space) if space.backend == "cuda" else None

    def given(value: int) -> Any:
        held = dynamic.tensors.get((value, space))
        return dynamic.send(value, space, objects[value]) if held is None else held

    def run() -> None:
        inputs = [given(value) if tensor is None else tensor for value, tensor in zip(part.inputs, static, strict=True)]
        if settle is not None:
            settle()
        results = function(*inputs, executable.params)
        if settle is not None:
            settle()
        for value, result in zip(part.outputs, results, strict=True):
            if value not in known:
                tvm_api().copy(result, tensors[value, space])
                continue
            dynamic.tensors[value, space] = result
            if dynamic.is_read_by_host(value):
                objects[value] = to_host(result)
        if settle is not None:
            settle()

    return run

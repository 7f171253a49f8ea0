"""Memory of values: arenas per context on the host, pooled buffers on devices, weights placed once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from math import prod
from typing import Any

import numpy as np

from heterocc.artifacts.dtypes import COMPUTED
from heterocc.artifacts.errors import HeteroccError
from heterocc.artifacts.manifest import TensorSpec
from heterocc.runtime import ffi as tvm_ffi
from heterocc.runtime.execute.faults import device_fault
from heterocc.runtime.execute.pinned import lent_bytes, pinned_bytes, pinning_device
from heterocc.runtime.execute.transfer import lender, turner
from heterocc.runtime.execute.tvm_api import tvm_api
from heterocc.runtime.feeds import Array
from heterocc.runtime.native import plugin_function
from heterocc.runtime.plan.schedule import HOST, Buffer, Schedule, Space, numpy_dtype
from heterocc.runtime.plan.slots import ALIGNMENT, Slots, plan_slots


class Allocations:
    """Counts tensor memory that a session allocates: `count` allocations of `nbytes` bytes together."""

    __slots__ = ("_lock", "count", "nbytes")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count = 0
        self.nbytes = 0

    def add(self, nbytes: int) -> None:
        """Count one allocation."""
        with self._lock:
            self.count += 1
            self.nbytes += nbytes


def aligned_bytes(nbytes: int) -> Array:
    """`nbytes` of host memory at a multiple of ALIGNMENT, not initialised."""
    raw: Array = np.empty(nbytes + ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + nbytes]


def host_tensor(array: Array) -> Any:
    """A TVM tensor over a writable, aligned, C-contiguous array's memory, which it keeps alive."""
    if array.nbytes == 0:  # numpy's strides of empty arrays differ from those that compiled code requires
        base = tvm_ffi.from_dlpack(aligned_bytes(ALIGNMENT))
        return tvm_api().view(base, tvm_ffi.Shape(array.shape), tvm_ffi.dtype(array.dtype.name), 0)
    return tvm_ffi.from_dlpack(array)


def device_of(space: Space) -> Any:
    """TVM's device for a memory."""
    return tvm_ffi.device("cpu" if space == HOST else space.backend, space.index)


def device_tensor(space: Space, shape: Sequence[int], dtype: str, allocations: Allocations) -> Any:
    """A new tensor in a device's memory. Raises DeviceMemoryError or DeviceError."""
    nbytes = prod(shape) * np.dtype(dtype).itemsize
    api = tvm_api()
    try:
        if nbytes:
            tensor = api.allocate(tvm_ffi.Shape(tuple(shape)), tvm_ffi.dtype(dtype), device_of(space), None)
        else:  # drivers refuse buffers without bytes
            base = api.allocate(tvm_ffi.Shape((ALIGNMENT,)), tvm_ffi.dtype("uint8"), device_of(space), None)
            tensor = api.view(base, tvm_ffi.Shape(tuple(shape)), tvm_ffi.dtype(dtype), 0)
    except Exception as error:
        raise device_fault(error, f"allocating {nbytes} bytes", str(space)) from error
    allocations.add(nbytes)
    return tensor


def to_host(tensor: Any) -> Array:
    """A copy of a TVM tensor of any device in host memory."""
    shape, dtype = tuple(int(d) for d in tensor.shape), str(tensor.dtype)
    copy: Array = np.empty(shape, dtype)
    if copy.size:
        tvm_api().copy(tensor, tvm_ffi.from_dlpack(copy))
        if tensor.device.type == "cuda":  # TVM only enqueues its copies
            tvm_api().synchronize(tensor.device, 0)
    return copy


def alias(array: Array, space: Space) -> Any:
    """A tensor of a device that shares the host's memory, over an aligned array's bytes; the array must outlive it."""
    make = tvm_ffi.get_global_func(f"heterocc.{space.backend}.alias")
    return make(array.ctypes.data, tvm_ffi.Shape(array.shape), tvm_ffi.dtype(array.dtype.name), device_of(space))


def lent_tensor(space: Space, size: int, allocations: Allocations) -> Any:
    """`size` bytes in memory that a device lends to the host, on the host's side. Raises as `device_tensor` does."""
    lend = plugin_function(space.backend, "lend")
    if lend is None:  # the host can access all of its memory
        return device_tensor(space, (size,), "uint8", allocations)
    try:
        tensor = lend(space.index, size)
    except Exception as error:
        raise device_fault(error, f"lending {size} bytes to the host", str(space)) from error
    allocations.add(size)
    return tensor


class Weights:
    """The bundle's weights as arrays and tensors, each made once and shared by partitions and contexts.

    `array_of` gives the mapped array of a weight. Host tensors alias it, and so do devices in `shared` that work in
    memory of the host; any other device gets one copy. `tensors` are those made so far, by weight and memory.
    """

    def __init__(
        self, array_of: Callable[[int], Array], allocations: Allocations, shared: frozenset[Space] = frozenset()
    ) -> None:
        self._array_of = array_of
        self._shared = shared
        self._lender = lender(shared)
        self._allocations = allocations
        self._arrays: dict[int, Array] = {}
        self.tensors: dict[tuple[Hashable, Space], Any] = {}

    def array(self, index: int) -> Array:
        """Weight `index` in host memory, 64-byte aligned."""
        found = self._arrays.get(index)
        if found is None:
            found = self._arrays[index] = self._array_of(index)
        return found

    def in_place(self, space: Space) -> bool:
        """Whether code of a memory's device reads weights in host memory."""
        return space == HOST or (space in self._shared and space != self._lender)

    def tensor(self, index: int, space: Space) -> Any:
        """Weight `index` in a memory."""
        return self.placed(index, space, lambda: self.array(index))

    def placed(self, key: Hashable, space: Space, array_of: Callable[[], Array]) -> Any:
        """An array that belongs to the weights, in a memory; `key` identifies it."""
        found = self.tensors.get((key, space))
        if found is None:
            array = array_of()
            found = host_tensor(array)
            if space != HOST and self.in_place(space) and array.nbytes:
                found = alias(array, space)
            elif space != HOST:
                there = device_tensor(space, array.shape, array.dtype.name, self._allocations)
                if array.nbytes:
                    try:
                        tvm_api().copy(found, there)
                    except Exception as error:
                        raise device_fault(error, f"uploading {array.nbytes} bytes of weights", str(space)) from error
                found = there
            self.tensors[key, space] = found
        return found


class Buffers:
    """Memory of one context's static values: host values are views of arenas, device values of pooled buffers.

    Host values that are copied to a device or from one are in memory pinned by its driver, if possible; values that a
    device uses in place are in memory that it lends. `arrays` holds the host views by value, `tensors`
    the TVM tensors by value and memory. If lent memory must be turned between sides, `lent` has
    its pieces and `slots` the piece of each value; values that only the device uses are in its own memory.
    """

    def __init__(
        self,
        plan: Schedule,
        values: Sequence[TensorSpec],
        allocations: Allocations,
        *,
        reuse: bool,
        tensors: bool,
    ) -> None:
        self.arrays: dict[int, Array] = {}
        self.tensors: dict[tuple[int, Space], Any] = {}
        self.nbytes = 0
        self.lent: list[Any] = []
        self.slots: dict[int, int] = {}
        self._values = values
        self._allocations = allocations
        self._shared = plan.shared
        self._lender = lender(plan.shared)
        turns = self._lender if self._lender is not None and turner(self._lender) is not None else None
        self._with_tensors = tensors
        pinner = pinning_device(plan, values)
        # By memory and, for the host's, by the device that pins or lends it.
        groups: dict[tuple[Space, Space | None], list[Buffer]] = {}
        for buffer in plan.buffers:
            space, owner = buffer.space, None
            if turns is not None and space == HOST and buffer.users == {turns}:
                space = turns
            elif space == HOST:
                copied = any(user not in (HOST, *plan.shared) for user in buffer.users)
                owner = self._lender if self._lender in buffer.users else pinner if copied else None
            groups.setdefault((space, owner), []).append(buffer)
        for (space, owner), buffers in groups.items():
            slots = plan_slots([b.lifetime for b in buffers], reuse=reuse)
            self.nbytes += slots.nbytes
            if space == HOST:
                self._place_on_host(buffers, slots, owner)
            else:
                self._place_on_device(space, buffers, slots)

    def _place_on_host(self, buffers: Sequence[Buffer], slots: Slots, owner: Space | None) -> None:
        if owner is not None and owner == self._lender:
            pools = [lent_tensor(owner, size, self._allocations) for size in slots.sizes]
            self._view(owner, buffers, slots, pools)
            places = [lent_bytes(owner, pool, size) for pool, size in zip(pools, slots.sizes, strict=True)]
            if turner(owner) is not None:
                self.lent = pools
                self.slots = {b.value: number for b, number in zip(buffers, slots.slot, strict=True)}
        else:
            try:
                places = _host_places(slots, owner)
            except MemoryError as error:
                raise device_fault(error, f"allocating {slots.nbytes} bytes for values", "the host") from error
            self._allocations.add(slots.nbytes)
        for buffer, number in zip(buffers, slots.slot, strict=True):
            spec = self._values[buffer.value]
            array = places[number][: buffer.lifetime.nbytes].view(spec.dtype).reshape(_dims(spec))
            self.arrays[buffer.value] = array
            if self._with_tensors and spec.dtype in COMPUTED:
                self.tensors[buffer.value, HOST] = host_tensor(array)
            for space in self._shared.intersection(buffer.users) - {self._lender}:
                self.tensors[buffer.value, space] = _share(array, space, self._allocations)

    def _place_on_device(self, space: Space, buffers: Sequence[Buffer], slots: Slots) -> None:
        pools = [device_tensor(space, (size,), "uint8", self._allocations) for size in slots.sizes]
        self._view(space, buffers, slots, pools)

    def _view(self, space: Space, buffers: Sequence[Buffer], slots: Slots, pools: Sequence[Any]) -> None:
        for buffer, number in zip(buffers, slots.slot, strict=True):
            spec = self._values[buffer.value]
            try:
                view = tvm_api().view(pools[number], tvm_ffi.Shape(_dims(spec)), tvm_ffi.dtype(spec.dtype), 0)
            except HeteroccError:
                raise
            except Exception as error:
                raise device_fault(error, f"placing '{spec.name}'", str(space)) from error
            self.tensors[buffer.value, space] = view


def _host_places(slots: Slots, pinner: Space | None) -> list[Array]:
    """Memory for each slot: pinned for a device piece by piece, because drivers limit a piece, else one arena."""
    if pinner is not None:
        pinned = [pinned_bytes(pinner, size) for size in slots.sizes]
        places = [place for place in pinned if place is not None]
        if len(places) == len(pinned):
            return places
    arena = aligned_bytes(slots.nbytes)
    return [arena[start : start + size] for start, size in zip(slots.offsets, slots.sizes, strict=True)]


def _share(array: Array, space: Space, allocations: Allocations) -> Any:
    return alias(array, space) if array.nbytes else device_tensor(space, array.shape, array.dtype.name, allocations)


def _dims(spec: TensorSpec) -> tuple[int, ...]:
    if numpy_dtype(spec.dtype) is None or spec.shape is None:
        raise ValueError(f"'{spec.name}' has no static shape")
    return tuple(d for d in spec.shape if isinstance(d, int))

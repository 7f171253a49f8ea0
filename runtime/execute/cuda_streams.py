"""A context's work on CUDA devices: kernels on a stream that the process shares, copies on separate streams.

Kernels of all contexts are in one order per device, because TVM's pool reuses freed memory without waiting. Copies use
only the context's own buffers. Copies to a device and from it have a stream each, so that they run concurrently with
kernels of any context. Events order reads after writes of another stream; the planner ensures that buffers are not
overwritten too early (see `schedule`).
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from heterocc.artifacts.manifest import Variant
from heterocc.runtime import ffi as tvm_ffi
from heterocc.runtime import forks
from heterocc.runtime.execute.inflight import Settle
from heterocc.runtime.native.cuda_driver import Event, Stream, kept_context
from heterocc.runtime.plan.steps import HOST, Copy, Space

_KERNELS: dict[int, Stream] = {}
_LOCK = threading.Lock()


def kernel_stream(device: int) -> Stream:
    """The process's stream for kernels of a device."""
    with _LOCK:
        if device not in _KERNELS:
            _KERNELS[device] = Stream(device)
        return _KERNELS[device]


def hold(owner: object, memory: object) -> None:
    """Free tensors and arrays in CUDA's memory with their owner, but never after a device has failed for good.

    Freeing fails then, and TVM ends the process if it does. The same holds in a forked child.
    """
    weakref.finalize(owner, _let_go, memory, forks.generation)


def _let_go(memory: object, generation: int) -> None:
    try:
        if forks.generation != generation:
            raise RuntimeError("the driver does not work in a forked child")
        for stream in list(_KERNELS.values()):
            stream.wait()
    except RuntimeError:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))  # never freed


def device_keeper(variant: Variant) -> Callable[[], AbstractContextManager[None]]:
    """A maker of context managers that restore the calling thread's CUDA device after work on a variant."""
    return kept_context if any(device.backend == "cuda" for device in variant.devices) else nullcontext


class CudaStreams:
    """Binds the steps of a context in the order in which they run. For one thread at a time."""

    def __init__(self) -> None:
        self._streams: dict[tuple[int, str], Stream] = {}
        self._called: dict[Space, Event] = {}  # device → its last partition so far
        self._sent: dict[tuple[int, Space], Event] = {}  # value, memory → the copy that puts it there
        self._copies: dict[Space, list[Event]] = {}  # device → its copies so far

    def copy(self, step: Copy, tensors: Mapping[tuple[int, Space], Any]) -> Callable[[], Settle]:
        """A function that starts a copy and returns one that waits for it and the device's earlier work."""
        carrier = step.carrier
        stream = self._stream(carrier.index, "out" if step.target == HOST else "in")
        done = Event(carrier.index)
        source, target = tensors[step.value, step.source], tensors[step.value, step.target]
        size = int(source.numel()) * int(source.dtype.itemsize)
        devices = [space for space in dict.fromkeys((step.source, carrier)) if space != HOST]
        called = [self._called[space] for space in devices if space in self._called]
        # A copy to a device need not wait for its kernels, which do not use the buffer any more. A wait for the copy
        # includes them all the same.
        first = called if step.source != HOST else []
        before = [event for event in called if event not in first]
        if len(devices) == 2:
            before += self._copies.get(step.source, ())
        self._sent[step.value, step.target] = done
        self._copies.setdefault(carrier, []).append(done)

        def settle() -> None:
            done.wait()
            for event in before:
                event.wait()

        def start() -> Settle:
            stream.follow(first)
            if size:
                stream.copy(source.data_ptr(), target.data_ptr(), size)
            stream.record(done)
            return settle

        return start

    def call(self, space: Space, call: Callable[[], Any], reads: Sequence[int]) -> Callable[[], Settle]:
        """A function that queues a partition's kernels and returns one that waits for them."""
        stream = kernel_stream(space.index)
        first = [self._sent[value, space] for value in reads if (value, space) in self._sent]
        done = self._called[space] = Event(space.index)
        device = tvm_ffi.device("cuda", space.index)

        def start() -> Settle:
            stream.follow(first)
            with tvm_ffi.use_raw_stream(device, stream.handle):
                call()
            stream.record(done)
            return done.wait

        return start

    def abandon(self) -> None:
        """Wait for all work of this context on its devices, failed or not, before its memory is freed."""
        for stream in (*self._streams.values(), *(kernel_stream(space.index) for space in self._called)):
            with suppress(RuntimeError):
                stream.wait()

    def _stream(self, device: int, way: str) -> Stream:
        if (device, way) not in self._streams:
            self._streams[device, way] = Stream(device)
        return self._streams[device, way]

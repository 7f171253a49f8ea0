"""NVIDIA's driver through its C interface (libcuda.so.1): the calls of CUDA that TVM's runtime does not offer.

Streams, events and copies are those of the device's primary context, which TVM, PyTorch and ONNX Runtime use too.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

LIBRARY = "libcuda.so.1"

_NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: does not synchronise with the default stream, which all code shares."""
_DISABLE_TIMING = 2
"""CU_EVENT_DISABLE_TIMING: without a timestamp, which costs less."""

_POINTER = ctypes.POINTER(ctypes.c_void_p)
_SIGNATURES: dict[str, Sequence[Any]] = {
    "cuCtxGetCurrent": (_POINTER,),
    "cuCtxSetCurrent": (ctypes.c_void_p,),
    "cuDeviceGet": (ctypes.POINTER(ctypes.c_int), ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (_POINTER, ctypes.c_int),
    "cuEventCreate": (_POINTER, ctypes.c_uint),
    "cuEventDestroy_v2": (ctypes.c_void_p,),
    "cuEventRecord": (ctypes.c_void_p, ctypes.c_void_p),
    "cuEventSynchronize": (ctypes.c_void_p,),
    "cuMemcpyAsync": (ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p),
    "cuStreamCreate": (_POINTER, ctypes.c_uint),
    "cuStreamDestroy_v2": (ctypes.c_void_p,),
    "cuStreamSynchronize": (ctypes.c_void_p,),
    "cuStreamWaitEvent": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint),
}
_CONTEXTS: dict[int, int] = {}
_LOCK = threading.Lock()


@cache
def driver() -> Any:
    """The driver's library, initialised, its functions typed. Raises OSError if it is missing."""
    library = ctypes.CDLL(LIBRARY)
    library.cuInit(0)  # may be called again; every other call reports its error too
    for name, arguments in _SIGNATURES.items():
        getattr(library, name).argtypes = arguments
    return library


def check(function: str, *arguments: Any) -> None:
    """Call a function of the driver. Raises RuntimeError with the driver's text if it fails."""
    status = getattr(driver(), function)(*arguments)
    if status != 0:
        raise RuntimeError(f"{function}: {_text('cuGetErrorName', status)} ({_text('cuGetErrorString', status)})")


def _text(function: str, status: int) -> str:
    text = ctypes.c_char_p()
    known = getattr(driver(), function)(status, ctypes.byref(text)) == 0 and text.value is not None
    return text.value.decode("utf-8", "replace") if known and text.value is not None else f"error {status}"


def _made(function: str, *arguments: Any) -> int:
    """The handle that a function writes to its first argument."""
    handle = ctypes.c_void_p()
    check(function, ctypes.byref(handle), *arguments)
    return handle.value or 0


@contextmanager
def kept_context() -> Iterator[None]:
    """Restore the calling thread's CUDA context, if it had one, at the end of the block.

    TVM makes the device that it works on current. For other code in this thread, such as PyTorch on `cuda:1`, that
    would be a change of device.
    """
    before = _made("cuCtxGetCurrent")
    try:
        yield
    finally:
        if before and _made("cuCtxGetCurrent") != before:
            check("cuCtxSetCurrent", before)


@contextmanager
def _current(device: int) -> Iterator[None]:
    """Make a device's primary context current inside the block."""
    before = _made("cuCtxGetCurrent")
    mine = _primary_context(device)
    if mine != before:
        check("cuCtxSetCurrent", mine)
    try:
        yield
    finally:
        if mine != before:
            check("cuCtxSetCurrent", before)


def _use(device: int) -> None:
    """Make a device's primary context current."""
    mine = _primary_context(device)
    if _made("cuCtxGetCurrent") != mine:
        check("cuCtxSetCurrent", mine)


def _primary_context(device: int) -> int:
    """A device's primary context, retained until the process ends, as TVM retains it."""
    found = _CONTEXTS.get(device)
    if found is not None:
        return found
    with _LOCK:
        if device not in _CONTEXTS:
            number = ctypes.c_int()
            check("cuDeviceGet", ctypes.byref(number), device)
            _CONTEXTS[device] = _made("cuDevicePrimaryCtxRetain", number)
        return _CONTEXTS[device]


class Event:
    """A point in a device's work."""

    __slots__ = ("__weakref__", "device", "handle")

    def __init__(self, device: int) -> None:
        self.device = device
        with _current(device):
            self.handle = _made("cuEventCreate", _DISABLE_TIMING)
        _destroy_with(self, "cuEventDestroy_v2")

    def wait(self) -> None:
        """Wait until the device has reached the point of the last record, if there is one."""
        with _current(self.device):
            check("cuEventSynchronize", self.handle)


class Stream:
    """A queue of a device: its work is done in order, concurrently with the host and with other streams.

    Methods that add work leave the device current (see `kept_context`).
    """

    __slots__ = ("__weakref__", "device", "handle")

    def __init__(self, device: int) -> None:
        self.device = device
        with _current(device):
            self.handle = _made("cuStreamCreate", _NON_BLOCKING)
        _destroy_with(self, "cuStreamDestroy_v2")

    def follow(self, events: Sequence[Event]) -> None:
        """Make all later work wait until the events, as recorded now, are reached."""
        if events:
            _use(self.device)
        for event in events:
            check("cuStreamWaitEvent", self.handle, event.handle, 0)

    def copy(self, source: int, target: int, size: int) -> None:
        """Start to copy bytes between two addresses, of devices or of the host."""
        _use(self.device)
        check("cuMemcpyAsync", target, source, size, self.handle)

    def record(self, event: Event) -> None:
        """Record an event of this device behind all work given so far."""
        _use(self.device)
        check("cuEventRecord", event.handle, self.handle)

    def wait(self) -> None:
        """Wait until all work is done."""
        with _current(self.device):
            check("cuStreamSynchronize", self.handle)


def _destroy_with(owner: Event | Stream, function: str) -> None:
    """Destroy a handle when its owner is collected; at the end of the process the driver does so."""
    weakref.finalize(owner, _destroy, function, owner.device, owner.handle).atexit = False


def _destroy(function: str, device: int, handle: int) -> None:
    with suppress(RuntimeError), _current(device):  # a device that has failed for good takes its handles with it
        check(function, handle)

"""Copies by direct calls of an API, with all memory allocated and pinned before: what our transfers are measured by."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from heterocc.runtime.native.cuda_api import cudart_candidates

Copies = Mapping[str, Callable[[], None]]
"""By direction (`host -> device`, `device -> host`, `device -> device`), a call that copies and waits."""

UP, DOWN, ACROSS = "host -> device", "device -> host", "device -> device"

_READ_WRITE, _ALLOC_HOST, _MAP_READ_WRITE, _ALL_DEVICES = 1 << 0, 1 << 4, 3, 0xFFFFFFFF


@contextmanager
def opencl(index: int, size: int) -> Iterator[Copies]:
    """clEnqueueWriteBuffer, ReadBuffer and CopyBuffer; `index` counts the devices of all platforms."""
    cl = ctypes.CDLL("libOpenCL.so.1")
    for name in ("clCreateContext", "clCreateCommandQueue", "clCreateBuffer", "clEnqueueMapBuffer"):
        getattr(cl, name).restype = ctypes.c_void_p
    device = ctypes.c_void_p(_opencl_ids(cl)[index])
    context = ctypes.c_void_p(cl.clCreateContext(None, 1, ctypes.byref(device), None, None, None))
    queue = ctypes.c_void_p(cl.clCreateCommandQueue(context, device, ctypes.c_ulong(0), None))

    def buffer(flags: int) -> ctypes.c_void_p:
        made = cl.clCreateBuffer(context, ctypes.c_ulong(flags), ctypes.c_size_t(size), None, None)
        return ctypes.c_void_p(made)

    here, there, pinned = buffer(_READ_WRITE), buffer(_READ_WRITE), buffer(_READ_WRITE | _ALLOC_HOST)
    bytes_, nothing = ctypes.c_size_t(size), ctypes.c_size_t(0)
    mapped = cl.clEnqueueMapBuffer(
        queue, pinned, 1, ctypes.c_ulong(_MAP_READ_WRITE), nothing, bytes_, 0, None, None, None
    )
    host = ctypes.c_void_p(mapped)

    def finish(status: int) -> None:
        if status or cl.clFinish(queue):
            raise RuntimeError(f"the raw copy failed: {status}")

    yield {
        UP: lambda: finish(cl.clEnqueueWriteBuffer(queue, here, 0, nothing, bytes_, host, 0, None, None)),
        DOWN: lambda: finish(cl.clEnqueueReadBuffer(queue, here, 0, nothing, bytes_, host, 0, None, None)),
        ACROSS: lambda: finish(cl.clEnqueueCopyBuffer(queue, here, there, nothing, nothing, bytes_, 0, None, None)),
    }
    cl.clEnqueueUnmapMemObject(queue, pinned, host, 0, None, None)
    cl.clFinish(queue)
    for memory in (here, there, pinned):
        cl.clReleaseMemObject(memory)
    cl.clReleaseCommandQueue(queue)
    cl.clReleaseContext(context)


def _opencl_ids(cl: Any) -> list[int]:
    found: list[int] = []
    platforms, count = (ctypes.c_void_p * 16)(), ctypes.c_uint()
    cl.clGetPlatformIDs(16, platforms, ctypes.byref(count))
    for platform in platforms[: count.value]:
        ids, devices = (ctypes.c_void_p * 16)(), ctypes.c_uint()
        cl.clGetDeviceIDs(ctypes.c_void_p(platform), ctypes.c_ulong(_ALL_DEVICES), 16, ids, ctypes.byref(devices))
        found += [i for i in ids[: devices.value] if i is not None]
    return found


@cache
def _raw_vulkan() -> Any:
    """The C++ beside this file, compiled."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "raw_vulkan.so")
        source = Path(__file__).with_name("raw_vulkan.cc")
        subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-o", library, source, "-lvulkan"], check=True)
        loaded = ctypes.CDLL(str(library))
    loaded.raw_open.restype = ctypes.c_void_p
    return loaded


@contextmanager
def vulkan(index: int, size: int) -> Iterator[Copies]:
    """vkCmdCopyBuffer in a command buffer recorded before; `index` counts as the loader does."""
    raw = _raw_vulkan()
    handle = ctypes.c_void_p(raw.raw_open(index, ctypes.c_uint64(size)))
    if not handle.value:
        raise RuntimeError("the raw Vulkan copy cannot be set up")

    def copy(which: int) -> None:
        if raw.raw_copy(handle, which):
            raise RuntimeError("the raw copy failed")

    yield {UP: lambda: copy(0), DOWN: lambda: copy(1), ACROSS: lambda: copy(2)}
    raw.raw_close(handle)


@contextmanager
def cuda(index: int, size: int) -> Iterator[Copies]:
    """cudaMemcpyAsync from and to memory of cudaMallocHost, and cudaDeviceSynchronize."""
    runtime = next(ctypes.CDLL(place) for place in cudart_candidates())
    here, there, host = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    bytes_ = ctypes.c_size_t(size)

    def checked(status: int) -> None:
        if status:
            raise RuntimeError(f"the raw copy failed: {status}")

    checked(runtime.cudaSetDevice(index))
    checked(runtime.cudaMalloc(ctypes.byref(here), bytes_))
    checked(runtime.cudaMalloc(ctypes.byref(there), bytes_))
    checked(runtime.cudaMallocHost(ctypes.byref(host), bytes_))

    def copy(to: ctypes.c_void_p, source: ctypes.c_void_p, kind: int) -> None:
        checked(runtime.cudaMemcpyAsync(to, source, bytes_, kind, None))
        checked(runtime.cudaDeviceSynchronize())

    yield {UP: lambda: copy(here, host, 1), DOWN: lambda: copy(host, here, 2), ACROSS: lambda: copy(there, here, 3)}
    runtime.cudaFree(here)
    runtime.cudaFree(there)
    runtime.cudaFreeHost(host)


RAW = {"opencl": opencl, "vulkan": vulkan, "cuda": cuda}

"""The few functions of TVM's runtime library that a session needs, without TVM's Python package."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any

from heterocc.artifacts.frozen import frozen
from heterocc.runtime import ffi as tvm_ffi
from heterocc.runtime import native

POOLED = 2
"""`AllocatorType` of the Relax VM: freed intermediates go back to a pool and are not allocated again."""


@frozen
class TvmApi:
    """Global functions of the loaded library, looked up once."""

    load_module: Callable[..., Any]
    allocate: Callable[..., Any]
    view: Callable[..., Any]
    copy: Callable[[Any, Any], None]
    synchronize: Callable[..., None]


def available_cores() -> int:
    """Cores that this process may use: the size of its affinity mask."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@cache
def tvm_api() -> TvmApi:
    """Load libtvm_runtime, once per process. Raises NativePluginError if it is missing or has another version.

    Loaded code does not use TVM's threads (see `cpu_api`). Whatever else in the process does gets as many as there are
    cores, bound to none, unless the user's environment says otherwise: TVM's own default is half of the machine's
    threads, each bound to one core whatever the affinity mask is.
    """
    os.environ.setdefault("TVM_NUM_THREADS", str(available_cores()))
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    native.load_tvm_runtime()
    get = tvm_ffi.get_global_func
    return TvmApi(
        load_module=get("ffi.Module.load_from_file.so"),
        allocate=get("runtime.TVMTensorAllocWithScope"),
        view=get("runtime.TVMTensorCreateView"),
        copy=get("runtime.TVMTensorCopyFromTo"),
        synchronize=get("runtime.Device_StreamSync"),
    )


def release_pools() -> None:
    """Give back the memory that TVM's pooled allocators keep for later; what is in use stays.

    The memory of a permanently failed CUDA device is kept too; it is freed when the process ends.
    """
    try:
        tvm_ffi.get_global_func("vm.builtin.memory_manager.clear")()
    except RuntimeError as error:
        if "CUDA Runtime Error" not in str(error):
            raise


def max_threads() -> int:
    """The most threads that a parallel kernel can use in this process (`TVM_NUM_THREADS`)."""
    try:
        return max(1, int(os.environ.get("TVM_NUM_THREADS", "")))
    except ValueError:
        return available_cores()

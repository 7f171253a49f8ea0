"""The few functions of TVM's runtime library that a session needs, without TVM's Python package."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import tvm_ffi

from heterocc.runtime import native

POOLED = 2
"""`AllocatorType` of the Relax VM: freed intermediates go back to a pool and are not allocated again."""

_DEFAULT_MODE = 1
"""`ThreadGroup::kBig` of TVM; with TVM_BIND_THREADS=0 it binds nothing."""

_threads = threading.local()


@dataclass(frozen=True, slots=True)
class TvmApi:
    """Global functions of the loaded library, looked up once."""

    load_module: Callable[..., Any]
    allocate: Callable[..., Any]
    view: Callable[..., Any]
    copy: Callable[[Any, Any], None]
    synchronize: Callable[..., None]
    configure_threads: Callable[..., None]


SPIN_COUNT = 10_000
"""How often an idle worker yields before it sleeps: milliseconds, longer than the serial code between two kernels.

With TVM's own count, idle workers would keep cores from other work for a tenth of a second.
"""


def available_cores() -> int:
    """Cores that this process may use: the size of its affinity mask."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@cache
def tvm_api() -> TvmApi:
    """Load libtvm_runtime, once per process. Raises NativePluginError where it is missing or another version.

    TVM's own defaults are half of the machine's threads, each bound to one core whatever the affinity mask says, and
    workers that yield 300,000 times before they sleep. The variables are read when a thread first runs parallel code,
    and a user's setting wins.
    """
    os.environ.setdefault("TVM_NUM_THREADS", str(available_cores()))
    os.environ.setdefault("TVM_BIND_THREADS", "0")
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", str(SPIN_COUNT))
    native.load_tvm_runtime()
    get = tvm_ffi.get_global_func
    return TvmApi(
        load_module=get("ffi.Module.load_from_file.so"),
        allocate=get("runtime.TVMTensorAllocWithScope"),
        view=get("runtime.TVMTensorCreateView"),
        copy=get("runtime.TVMTensorCopyFromTo"),
        synchronize=get("runtime.Device_StreamSync"),
        configure_threads=get("runtime.config_threadpool"),
    )


def release_pools() -> None:
    """Give back the memory that TVM's pooled allocators keep for later; what is in use stays.

    That of a CUDA device that has failed for good stays as well: it goes with the process.
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


def use_threads(count: int) -> None:
    """Make the calling thread's kernels use `count` threads: itself and workers that TVM starts.

    For threads that call it with one count only, because TVM makes the pool of a thread once. Where something else has
    made a larger one, its other workers sleep.
    """
    if getattr(_threads, "count", None) == count:
        return
    # As many entries as there may be workers: TVM takes the length for the number of cores, in this mode no more.
    tvm_api().configure_threads(_DEFAULT_MODE, count, ["0"] * count)
    _threads.count = count

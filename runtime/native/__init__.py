"""Native plug-ins: OpenCL and Vulkan devices for the stock TVM wheel, and what CPU code calls.

`opencl/` and `vulkan/` implement TVM's device APIs in C++; `common/` is compiled into each, in a separate namespace.
CUDA uses TVM's runtime. Drivers' binaries are identified by a hash of device, driver, options and source.
`tvm_libraries.py` chooses the copy of TVM's libraries.

`cpu/` has the thread pool of CPU kernels, the memory of their tensors of dynamic sizes (`heap.h`, with the limits in
`memory_limits.h`), copies weights in other layouts, times kernels for profiles (`kernel_times.cc`), and asks the
processor for its features where /proc/cpuinfo cannot be read (`processor.h`). A run of plain arrays whose inputs and
outputs only CPU code touches is one call of it (`cpu/feed_runner.h`; `cpu_runner.py` and `cpu/fast_path.h` for fixed
sizes, `cpu_sizes.py` and `cpu/fast_sizes.h` for those of the run): it checks the feed, points the tensors at the
caller's arrays and at new results, and runs the code. It returns None for any other feed, and if the code fails; the
run then goes through the chain, which converts inputs and says what is wrong. Code runs without TVM's virtual machine:
`cpu/straight_reader.cc` and `straight_values.cc` translate it once, `straight_code.cc` runs it, and `joined_code.cc`
what joins it by branches and loops (decision 50).

`straight_appends.cc` has the kernels that lengthen keys and values where they are (decision 51), in memory with room
for more rows (`row_memory.h`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from heterocc.artifacts.errors import HeteroccError
from heterocc.runtime import ffi as tvm_ffi
from heterocc.runtime.native.tvm_runtime import load_tvm_runtime

if TYPE_CHECKING:
    from heterocc.runtime.native.cuda_api import CudaDevice, cuda_devices, cuda_unavailable_reason, load_cuda
    from heterocc.runtime.native.opencl_api import (
        OpenCLDevice,
        load_opencl,
        opencl_devices,
        opencl_unavailable_reason,
    )
    from heterocc.runtime.native.vulkan_api import (
        VulkanDevice,
        load_vulkan,
        vulkan_devices,
        vulkan_unavailable_reason,
    )

__all__ = [
    "CudaDevice",
    "OpenCLDevice",
    "VulkanDevice",
    "cuda_devices",
    "cuda_unavailable_reason",
    "load_cuda",
    "load_opencl",
    "load_tvm_runtime",
    "load_vulkan",
    "opencl_devices",
    "opencl_unavailable_reason",
    "plugin_function",
    "register",
    "typed_error",
    "vulkan_devices",
    "vulkan_unavailable_reason",
]


def __getattr__(name: str) -> Any:
    """Names of the APIs of GPUs, which are imported on first use: a bundle for CPUs needs none of them."""
    if name in __all__:
        for backend in ("opencl", "vulkan", "cuda"):
            if backend in name.lower():
                return getattr(import_module(f"heterocc.runtime.native.{backend}_api"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def register() -> None:
    """Load the plug-ins that can be loaded: the entry point of group `tvm.backends`, called by `import tvm`.

    Errors are left to later calls.
    """
    from heterocc.runtime.native import opencl_api, vulkan_api

    for module in (opencl_api, vulkan_api):
        with suppress(HeteroccError):
            module.PLUGIN.load()


def plugin_function(backend: str, name: str) -> Callable[..., Any] | None:
    """A function of a plug-in, or None if there is none, for example if TVM has its own back end."""
    found: Callable[..., Any] | None = tvm_ffi.get_global_func(f"heterocc.{backend}.{name}", allow_missing=True)
    return found


def typed_error(error: BaseException, where: str | None = None) -> HeteroccError | None:
    """The typed error for an exception that a plug-in raised, or None if it came from elsewhere."""
    from heterocc.runtime.native import opencl_api, vulkan_api

    return opencl_api.PLUGIN.typed_error(error, where) or vulkan_api.PLUGIN.typed_error(error, where)

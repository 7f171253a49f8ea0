"""Native plug-ins of the runtime: what gives the stock TVM wheel OpenCL and Vulkan devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi

from heterocc.artifacts.errors import HeteroccError
from heterocc.runtime.native import opencl_api, vulkan_api
from heterocc.runtime.native.cuda_api import CudaDevice, cuda_devices, cuda_unavailable_reason, load_cuda
from heterocc.runtime.native.opencl_api import (
    OpenCLDevice,
    build_kernels,
    load_opencl,
    opencl_devices,
    trim,
    unavailable_reason,
)
from heterocc.runtime.native.tvm_runtime import load_tvm_runtime
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
    "build_kernels",
    "cuda_devices",
    "cuda_unavailable_reason",
    "load_cuda",
    "load_opencl",
    "load_tvm_runtime",
    "load_vulkan",
    "opencl_devices",
    "plugin_function",
    "register",
    "trim",
    "typed_error",
    "unavailable_reason",
    "vulkan_devices",
    "vulkan_unavailable_reason",
]


def register() -> None:
    """Entry point of group `tvm.backends`, called by `import tvm`; leaves it to later calls to say what is wrong."""
    opencl_api.register()
    vulkan_api.register()


def plugin_function(backend: str, name: str) -> Callable[..., Any] | None:
    """A function of a plug-in; None where there is none, as where the user's TVM brings a back end of its own."""
    found: Callable[..., Any] | None = tvm_ffi.get_global_func(f"heterocc.{backend}.{name}", allow_missing=True)
    return found


def typed_error(error: BaseException, where: str | None = None) -> HeteroccError | None:
    """The typed error for an exception that a plug-in raised, or None if it came from elsewhere."""
    return opencl_api.typed_error(error, where) or vulkan_api.PLUGIN.typed_error(error, where)

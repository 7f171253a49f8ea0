"""Native plug-ins that add OpenCL and Vulkan devices to the stock TVM wheel."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import tvm_ffi

from heterocc.artifacts.errors import HeteroccError
from heterocc.runtime.native import opencl_api, vulkan_api
from heterocc.runtime.native.cuda_api import CudaDevice, cuda_devices, cuda_unavailable_reason, load_cuda
from heterocc.runtime.native.opencl_api import (
    OpenCLDevice,
    load_opencl,
    opencl_devices,
    opencl_unavailable_reason,
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


def register() -> None:
    """Load the plug-ins that can be loaded: the entry point of group `tvm.backends`, called by `import tvm`.

    Errors are left to later calls.
    """
    for module in (opencl_api, vulkan_api):
        with suppress(HeteroccError):
            module.PLUGIN.load()


def plugin_function(backend: str, name: str) -> Callable[..., Any] | None:
    """A function of a plug-in, or None if there is none, for example if TVM has its own back end."""
    found: Callable[..., Any] | None = tvm_ffi.get_global_func(f"heterocc.{backend}.{name}", allow_missing=True)
    return found


def typed_error(error: BaseException, where: str | None = None) -> HeteroccError | None:
    """The typed error for an exception that a plug-in raised, or None if it came from elsewhere."""
    return opencl_api.PLUGIN.typed_error(error, where) or vulkan_api.PLUGIN.typed_error(error, where)

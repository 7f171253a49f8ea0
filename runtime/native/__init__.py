"""Native plug-ins that add OpenCL and Vulkan devices to the stock TVM wheel."""

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

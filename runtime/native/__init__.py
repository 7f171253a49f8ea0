"""Native plug-ins of the runtime: what gives the stock TVM wheel an OpenCL device."""

from heterocc.runtime.native.opencl_api import (
    OpenCLDevice,
    build_kernels,
    load_opencl,
    opencl_devices,
    register,
    set_profiling,
    take_profile,
    trim,
    typed_error,
    unavailable_reason,
)
from heterocc.runtime.native.tvm_runtime import load_tvm_runtime

__all__ = [
    "OpenCLDevice",
    "build_kernels",
    "load_opencl",
    "load_tvm_runtime",
    "opencl_devices",
    "register",
    "set_profiling",
    "take_profile",
    "trim",
    "typed_error",
    "unavailable_reason",
]

"""Lowering of one partition of the graph to code for its device.

The back ends (`cpu/`, `opencl/`, `vulkan/`, `cuda/`, `ort/`) do not import each other. They share the way from ONNX
nodes to a Relax module (`converters/`, `relax/`), what is known of kernels (`kernels/`), code generation (`codegen/`),
schedules for GPUs (`gpu/`), half precision (`half/`) and workarounds for TVM (`tvm_fixes/`). One partition is lowered
at a time: scopes of TVM belong to the process. `variables.py` maps names of dimensions to TVM's variables.
"""

from __future__ import annotations

from importlib import import_module

from heterocc.artifacts.errors import DeviceError
from heterocc.artifacts.foreign import handlers_wait
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.lower.backend import Lowering

_LOWERINGS = {
    "cpu": ("cpu.lowering", "CpuLowering"),
    "cuda": ("cuda.lowering", "CudaLowering"),
    "opencl": ("opencl.lowering", "OpenclLowering"),
    "ort": ("ort.lowering", "OrtLowering"),
    "vulkan": ("vulkan.lowering", "VulkanLowering"),
}
"""Module and class of each back end. They are imported on first use: importing TVM takes about a second, and a plan
for ORT alone does not need it."""


def lowering_for(device: TargetDevice) -> Lowering:
    """The back end of a device. Raises DeviceError (HC401) if heterocc does not have it."""
    if device.backend not in _LOWERINGS:
        raise DeviceError(
            f"heterocc does not support back end '{device.backend}'",
            where=f"device {device.name}",
            hint="list CPU, an OpenCL device or ORT",
        )
    module, name = _LOWERINGS[device.backend]
    with handlers_wait():
        if device.backend != "ort":
            from heterocc.compiler.lower.tvm_fixes.start import import_tvm

            import_tvm(device.backend)
        imported = import_module(f"{__name__}.{module}")
    back_end: Lowering = getattr(imported, name)()
    return back_end

"""Lowering: one partition of the graph to code for its device."""

from __future__ import annotations

from importlib import import_module

from heterocc.artifacts.errors import DeviceError
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.lower.backend import Lowering

_LOWERINGS = {
    "cpu": ("cpu.lowering", "CpuLowering"),
    "cuda": ("cuda.lowering", "CudaLowering"),
    "opencl": ("opencl.lowering", "OpenclLowering"),
    "ort": ("ort.lowering", "OrtLowering"),
    "vulkan": ("vulkan.lowering", "VulkanLowering"),
}
"""Module and class of each back end; loaded on use, because TVM takes a second that plans for ORT can do without."""


def lowering_for(device: TargetDevice) -> Lowering:
    """The back end of a device. Raises DeviceError (HC401) if there is none."""
    if device.backend not in _LOWERINGS:
        raise DeviceError(
            f"heterocc cannot compile for back end '{device.backend}' yet",
            where=f"device {device.name}",
            hint="list CPU, an OpenCL device or ORT",
        )
    module, name = _LOWERINGS[device.backend]
    back_end: Lowering = getattr(import_module(f"{__name__}.{module}"), name)()
    return back_end

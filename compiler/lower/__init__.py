"""Lowering: one partition of the graph to code for its device."""

from __future__ import annotations

from heterocc.artifacts.errors import DeviceError
from heterocc.compiler.devices.device import Device
from heterocc.compiler.lower.backend import Lowering


def lowering_for(device: Device) -> Lowering:
    """The back end of a device. Raises DeviceError (HC401) where there is none yet.

    TVM is loaded here and not before: commands that only plan for ORT, or print help, do without it.
    """
    if device.backend == "ort":
        from heterocc.compiler.lower.ort.lowering import OrtLowering

        return OrtLowering()
    if device.backend == "cpu":
        from heterocc.compiler.lower.cpu.lowering import CpuLowering

        return CpuLowering()
    if device.backend == "opencl":
        from heterocc.compiler.lower.opencl.lowering import OpenclLowering

        return OpenclLowering()
    if device.backend == "vulkan":
        from heterocc.compiler.lower.vulkan.lowering import VulkanLowering

        return VulkanLowering()
    if device.backend == "cuda":
        from heterocc.compiler.lower.cuda.lowering import CudaLowering

        return CudaLowering()
    raise DeviceError(
        f"heterocc cannot compile for back end '{device.backend}' yet",
        where=f"device {device.name}",
        hint="list CPU, an OpenCL device or ORT",
    )

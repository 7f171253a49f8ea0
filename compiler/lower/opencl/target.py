"""The TVM target of an OpenCL device, and the limits that its schedules keep to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.lower.codegen.tvm_target import gpu_target
from heterocc.compiler.lower.gpu.limits import Limits

if TYPE_CHECKING:
    from tvm.target import Target


SMALLEST_GROUP = 64
"""Work items in a group where the device does not say how many it takes."""

SMALLEST_SHARED = 16384
"""Bytes that the work items of a group share where the device does not say: half of what OpenCL 1.2 promises."""


MOST_TENSORS = 128
"""Tensors of a kernel that every device takes: OpenCL 1.2 promises 1024 bytes of arguments, pointers of 8."""


def limits_of(device: TargetDevice) -> Limits:
    """The limits of a device."""
    group = int(device.target.get("max_num_threads", SMALLEST_GROUP))  # type: ignore[arg-type]  # a number by its name
    shared = int(device.target.get("max_shared_memory_per_block", SMALLEST_SHARED))  # type: ignore[arg-type]
    processor = device.software or device.unit == "cpu"
    return Limits(max(1, group), processor, device.dtypes, shared=shared, software=processor, buffers=MOST_TENSORS)


def opencl_target(device: TargetDevice) -> Target:
    """The `tvm.target.Target` of a device; its host code is for the CPU of this machine, baseline instructions.

    Raises DeviceError for attributes that TVM refuses.
    """
    return gpu_target(device, "opencl")

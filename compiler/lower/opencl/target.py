"""The TVM target of an OpenCL device, and the limits of its schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.lower.codegen.tvm_target import gpu_target
from heterocc.compiler.lower.gpu.limits import Limits

if TYPE_CHECKING:
    from tvm.target import Target


SMALLEST_GROUP = 64
"""The most work items of a group if the device does not specify it."""

SMALLEST_SHARED = 16384
"""The shared memory of a group in bytes if the device does not specify it: half of OpenCL 1.2's minimum."""


MOST_TENSORS = 128
"""The most tensors of a kernel: OpenCL 1.2 guarantees 1024 bytes of arguments, and a pointer is 8 bytes."""


def limits_of(device: TargetDevice) -> Limits:
    """The limits of a device."""
    group = int(device.target.get("max_num_threads", SMALLEST_GROUP))  # type: ignore[arg-type]  # a number by its name
    shared = int(device.target.get("max_shared_memory_per_block", SMALLEST_SHARED))  # type: ignore[arg-type]
    processor = device.software or device.unit == "cpu"
    return Limits(max(1, group), processor, device.dtypes, shared=shared, software=processor, buffers=MOST_TENSORS)


def opencl_target(device: TargetDevice) -> Target:
    """The `tvm.target.Target` of a device, with host code for the CPU of this machine and baseline instructions.

    Raises DeviceError if TVM refuses the device's attributes.
    """
    return gpu_target(device, "opencl")

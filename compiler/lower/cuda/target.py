"""The TVM target of a CUDA device, and the limits of its schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heterocc.artifacts.errors import DeviceError
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.file import CUDA_ARCH
from heterocc.compiler.lower.codegen.tvm_target import gpu_target
from heterocc.compiler.lower.gpu.limits import Limits

if TYPE_CHECKING:
    from tvm.target import Target


THREADS = 1024
"""The most threads of a block on every GPU of compute capability 2.0 or later."""

SHARED_BYTES = 48 * 1024
"""The most shared memory of a block that a kernel may declare, in bytes. Newer GPUs have more, but only on request at
the launch."""


def arch_of(device: TargetDevice) -> str:
    """The GPU architecture of a device, such as `sm_90`.

    Raises DeviceError if the device does not specify one. There is no default, as a cubin is for one architecture.
    """
    arch = device.target.get("arch")
    if not isinstance(arch, str) or CUDA_ARCH.fullmatch(arch) is None:
        raise DeviceError(
            f"device {device.name} does not specify its GPU architecture",
            where=device.target_json(),
            hint='set target.arch in its device file, for example to "sm_90"',
        )
    return arch


def limits_of(device: TargetDevice) -> Limits:
    """The limits of a device for schedules."""
    threads = int(device.target.get("max_num_threads", THREADS))  # type: ignore[arg-type]  # a number by its name
    shared = int(device.target.get("max_shared_memory_per_block", SHARED_BYTES))  # type: ignore[arg-type]
    return Limits(max(1, min(threads, THREADS)), False, device.dtypes, shared=min(shared, SHARED_BYTES))


def cuda_target(device: TargetDevice) -> Target:
    """The `tvm.target.Target` of a device, with host code for the CPU of this machine and baseline instructions.

    Raises DeviceError if TVM refuses the device's attributes.
    """
    threads = device.target.get("max_num_threads", THREADS)
    return gpu_target(
        device,
        "cuda",
        arch=arch_of(device),
        max_num_threads=threads,
        max_threads_per_block=threads,
        max_shared_memory_per_block=SHARED_BYTES,
        thread_warp_size=32,
    )

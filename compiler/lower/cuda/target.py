"""The TVM target of a CUDA device, and the limits that its schedules keep to."""

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
"""Threads of a block that every GPU of compute capability 2.0 or later takes."""

SHARED_BYTES = 48 * 1024
"""Shared memory of a block that a kernel may declare; what newer GPUs have beyond has to be asked for at the launch."""


def arch_of(device: TargetDevice) -> str:
    """The architecture that code for a device is for.

    Raises DeviceError where the device has none: a cubin is for one architecture, so there is nothing to assume.
    """
    arch = device.target.get("arch")
    if not isinstance(arch, str) or CUDA_ARCH.fullmatch(arch) is None:
        raise DeviceError(
            f"device {device.name} does not say which GPU architecture it has",
            where=device.target_json(),
            hint='give its device file target.arch = "sm_90", or another that nvcc knows',
        )
    return arch


def limits_of(device: TargetDevice) -> Limits:
    """The limits of a device, as far as kernels may use them."""
    threads = int(device.target.get("max_num_threads", THREADS))  # type: ignore[arg-type]  # a number by its name
    shared = int(device.target.get("max_shared_memory_per_block", SHARED_BYTES))  # type: ignore[arg-type]
    return Limits(max(1, min(threads, THREADS)), False, device.dtypes, shared=min(shared, SHARED_BYTES))


def cuda_target(device: TargetDevice) -> Target:
    """The `tvm.target.Target` of a device; its host code is for the CPU of this machine, baseline instructions.

    Raises DeviceError for attributes that TVM refuses.
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

"""The TVM target of a CUDA device, and the limits that its schedules keep to."""

from __future__ import annotations

from typing import Any

import tvm

from heterocc.artifacts.errors import DeviceError
from heterocc.compiler.devices.device import Device
from heterocc.compiler.devices.file import CUDA_ARCH
from heterocc.compiler.devices.host import host_cpu
from heterocc.compiler.lower.gpu.limits import Limits

THREADS = 1024
"""Threads of a block that every GPU of compute capability 2.0 or later takes."""

SHARED_BYTES = 48 * 1024
"""Shared memory of a block that a kernel may declare on every such GPU."""


def arch_of(device: Device) -> str:
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


def limits_of(device: Device) -> Limits:
    """The limits of a device."""
    threads = int(device.target.get("max_num_threads", THREADS))  # type: ignore[arg-type]  # a number by its name
    shared = int(device.target.get("max_shared_memory_per_block", SHARED_BYTES))  # type: ignore[arg-type]
    return Limits(max(1, threads), False, device.dtypes, shared=shared)


def cuda_target(device: Device) -> Any:
    """The `tvm.target.Target` of a device; its host code is for the CPU of this machine, baseline instructions.

    Raises DeviceError for attributes that TVM refuses.
    """
    attributes: dict[str, Any] = {k: list(v) if isinstance(v, tuple) else v for k, v in device.target.items()}
    attributes["kind"] = "cuda"
    attributes["arch"] = arch_of(device)
    threads = attributes.setdefault("max_num_threads", THREADS)
    attributes.setdefault("max_threads_per_block", threads)
    attributes.setdefault("max_shared_memory_per_block", SHARED_BYTES)
    attributes.setdefault("thread_warp_size", 32)
    attributes.setdefault("host", {"kind": "llvm", "mtriple": f"{host_cpu().arch}-linux-gnu"})
    try:
        return tvm.target.Target(attributes)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DeviceError(
            f"TVM refuses the target of device {device.name}: {str(error).splitlines()[0]}",
            where=device.target_json(),
            hint="check the target attributes of the device file",
        ) from error

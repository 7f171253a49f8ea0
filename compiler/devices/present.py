"""The accelerators of this machine, as devices."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler.devices.device import Device, TargetAttr
from heterocc.compiler.devices.host import host_cpu
from heterocc.runtime.native import CudaDevice, OpenCLDevice, VulkanDevice, opencl_devices, vulkan_devices
from heterocc.runtime.select.device_records import dtypes_of, unit_of
from heterocc.runtime.select.devices import usable_cuda_devices
from heterocc.runtime.select.ranking import Backend

LANES_PER_UNIT = 64
"""Multiply-adds a clock of one compute unit: AMD and NVIDIA have 64 to 128, integrated GPUs 8 to 64."""


MAX_GROUP = 256
"""Work items of a group, at most: larger groups lower occupancy on GPUs and gain nothing on a CPU."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """The accelerators here, and for each back end without one the reason why."""

    devices: tuple[Device, ...] = ()
    missing: tuple[tuple[Backend, str], ...] = ()

    def why_missing(self, backend: Backend) -> str | None:
        """Why there is no device of a back end, None if there is one or nothing is known."""
        return dict(self.missing).get(backend)


@functools.cache
def inventory() -> Inventory:
    """Devices of all GPU back ends, of each hardware before software, named `OPENCL`, `OPENCL.1`, `VULKAN` …"""
    found: list[Device] = []
    missing: list[tuple[Backend, str]] = []
    try:
        found += [opencl_device(device, index) for index, device in enumerate(opencl_devices())]
    except HeteroccError as error:
        missing.append(("opencl", error.message))
    try:
        found += [vulkan_device(device, index) for index, device in enumerate(vulkan_devices())]
    except HeteroccError as error:
        missing.append(("vulkan", error.message))
    try:
        found += [cuda_device(device, index) for index, device in enumerate(usable_cuda_devices())]
    except HeteroccError as error:
        missing.append(("cuda", error.message))
    return Inventory(tuple(found), tuple(missing))


def opencl_device(found: OpenCLDevice, index: int) -> Device:
    """An OpenCL device of the driver's list as the compiler sees it; figures for the cost model are rough."""
    threads = min(found.max_group, MAX_GROUP)
    target: dict[str, TargetAttr] = {
        "kind": "opencl",
        "max_num_threads": threads,
        "max_threads_per_block": threads,
        "max_shared_memory_per_block": found.local_memory,
        # Sub-group sizes differ between drivers and kernels: generated code must not rely on one.
        "thread_warp_size": 1,
    }
    host = host_cpu()
    unit = unit_of(found)
    if unit == "cpu":
        # The same cores as CPU's, through kernels that are written for another kind of machine.
        flops, bandwidth = host.flops / 4, host.bandwidth
    else:
        flops = 2.0 * found.compute_units * LANES_PER_UNIT * max(found.clock_mhz, 500) * 1e6
        bandwidth = 2e11 if unit == "discrete" else max(3e10, host.bandwidth)
    return Device(
        name=f"OPENCL.{index}" if index else "OPENCL",
        backend="opencl",
        index=index,
        target=target,
        software=found.software,
        description=f"{found.name} ({found.platform})",
        dtypes=dtypes_of(found),
        memory=found.memory,
        max_buffer=found.max_alloc,
        flops=flops,
        bandwidth=bandwidth,
        unit=unit,
    )


def vulkan_device(found: VulkanDevice, index: int) -> Device:
    """A Vulkan device of the driver's list as the compiler sees it; Vulkan tells nothing of speed."""
    threads = min(found.max_group, MAX_GROUP)
    x, y, z = found.max_group_sizes
    target: dict[str, TargetAttr] = {
        "kind": "vulkan",
        "max_num_threads": threads,
        "max_threads_per_block": threads,
        "max_block_size_x": x,
        "max_block_size_y": y,
        "max_block_size_z": z,
        "max_shared_memory_per_block": found.shared_memory,
        "max_push_constants_size": found.push_constants,
        "max_storage_buffer_range": found.storage_range,
        "max_per_stage_descriptor_storage_buffer": found.storage_buffers,
        "supports_float16": found.fp16,
        "supports_float64": found.fp64,
        "supports_int8": found.int8,
        "supports_int16": found.int16,
        "supports_int64": found.int64,
        "supports_8bit_buffer": found.storage8,
        "supports_16bit_buffer": found.storage16,
        "supports_nan16": found.nan16,
        "supports_nan32": found.nan32,
        "supports_nan64": found.nan64,
        "supported_subgroup_operations": found.subgroup_operations,
        "thread_warp_size": 1,
    }
    unit = unit_of(found)
    host = host_cpu()
    return Device(
        name=f"VULKAN.{index}" if index else "VULKAN",
        backend="vulkan",
        index=index,
        target=target,
        software=found.software,
        description=f"{found.name} (Vulkan)",
        dtypes=dtypes_of(found),
        memory=found.memory,
        max_buffer=found.max_alloc,
        flops=host.flops / 4 if unit == "cpu" else None,
        bandwidth=host.bandwidth if unit == "cpu" else None,
        unit=unit,
    )


def cuda_device(found: CudaDevice, index: int) -> Device:
    """A CUDA device as the compiler sees it; its peaks follow from the figures that the driver gives."""
    target: dict[str, TargetAttr] = {
        "kind": "cuda",
        "arch": found.arch,
        "max_num_threads": found.max_group,
        "max_threads_per_block": found.max_group,
        "max_shared_memory_per_block": found.shared_memory,
        "thread_warp_size": 32,
    }
    # float32 lanes of a multiprocessor: CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions".
    lanes = 64 if found.capability in ((7, 0), (7, 2), (7, 5), (8, 0)) else 128
    # Both edges of the clock move data.
    measured = 2.0 * found.memory_clock_khz * 1e3 * found.memory_bus_bits / 8
    return Device(
        name=f"CUDA.{index}" if index else "CUDA",
        backend="cuda",
        index=index,
        target=target,
        description=f"{found.name} (CUDA)",
        dtypes=dtypes_of(found),
        memory=found.memory,
        flops=2.0 * found.multiprocessors * lanes * max(found.clock_khz, 500_000) * 1e3,
        bandwidth=measured or 2e11,
        unit=unit_of(found),
    )

"""The accelerators of this machine as target devices."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from heterocc.compiler.devices.device import TargetAttr, TargetDevice
from heterocc.compiler.devices.host import host_cpu
from heterocc.runtime.machine.devices import found_accelerators
from heterocc.runtime.machine.found import FoundDevice
from heterocc.runtime.machine.ranking import Backend
from heterocc.runtime.native import CudaDevice, OpenCLDevice, VulkanDevice

LANES_PER_UNIT = 64
"""Multiply-adds per clock of one compute unit: AMD and NVIDIA have 64 to 128, integrated GPUs 8 to 64."""


SLOWER_OPENCL, SLOWER_VULKAN = 2.5, 20.0
"""The CPU's peak over that of a driver that runs on it: fitted to ten networks on PoCL 3.1 and lavapipe 22.3."""

MAX_GROUP = 256
"""The largest number of work items in a group; more would lower occupancy on GPUs and not help on a CPU."""

Rates = tuple[float | None, float | None]
"""FLOP/s and bytes/s; None if unknown."""


@dataclass(frozen=True, slots=True)
class Accelerators:
    """The accelerators of this machine, and the reason for each back end without one."""

    devices: tuple[TargetDevice, ...] = ()
    missing: tuple[tuple[Backend, str], ...] = ()

    def why_missing(self, backend: Backend) -> str | None:
        """The reason why a back end has no device, or None if it has one or the reason is unknown."""
        return dict(self.missing).get(backend)


@functools.cache
def accelerators() -> Accelerators:
    """The devices of all GPU back ends, hardware before software in each, named `OPENCL`, `OPENCL.1`, `VULKAN` …"""
    here = found_accelerators()
    return Accelerators(
        tuple(target_device(found) for found in here.devices), tuple((a.backend, a.reason) for a in here.absent)
    )


def target_device(found: FoundDevice) -> TargetDevice:
    """The target device for an accelerator found by the runtime, with estimates for the cost model.

    Raises ValueError for a device that is not an accelerator.
    """
    own = found.own
    if isinstance(own, OpenCLDevice):
        api, target, (flops, bandwidth) = own.platform, _opencl_target(own), _opencl_rates(found, own)
    elif isinstance(own, VulkanDevice):
        api, target, (flops, bandwidth) = "Vulkan", _vulkan_target(own), _vulkan_rates(found)
    elif isinstance(own, CudaDevice):
        api, target, (flops, bandwidth) = "CUDA", _cuda_target(own), _cuda_rates(own)
    else:
        raise ValueError(f"{found.label} is not an accelerator")
    return TargetDevice(
        name=found.label,
        backend=found.backend,
        index=found.index,
        target=target,
        software=found.software,
        description=f"{found.description} ({api})",
        dtypes=found.dtypes,
        memory=found.memory,
        max_buffer=found.limits.buffer,
        flops=flops,
        bandwidth=bandwidth,
        unit=found.unit,
    )


def _opencl_target(device: OpenCLDevice) -> dict[str, TargetAttr]:
    threads = min(device.max_group, MAX_GROUP)
    return {
        "kind": "opencl",
        "max_num_threads": threads,
        "max_threads_per_block": threads,
        "max_shared_memory_per_block": device.local_memory,
        # Sub-group sizes differ between drivers and kernels: generated code must not rely on one.
        "thread_warp_size": 1,
    }


def _opencl_rates(found: FoundDevice, device: OpenCLDevice) -> Rates:
    host = host_cpu()
    if found.unit == "cpu":
        # The same cores as CPU's, through kernels that are written for another kind of machine.
        return host.flops / SLOWER_OPENCL, host.bandwidth
    flops = 2.0 * device.compute_units * LANES_PER_UNIT * max(device.clock_mhz, 500) * 1e6
    return flops, 2e11 if found.unit == "discrete" else max(3e10, host.bandwidth)


def _vulkan_target(device: VulkanDevice) -> dict[str, TargetAttr]:
    threads = min(device.max_group, MAX_GROUP)
    x, y, z = device.max_group_sizes
    return {
        "kind": "vulkan",
        "max_num_threads": threads,
        "max_threads_per_block": threads,
        "max_block_size_x": x,
        "max_block_size_y": y,
        "max_block_size_z": z,
        "max_shared_memory_per_block": device.shared_memory,
        "max_push_constants_size": device.push_constants,
        "max_storage_buffer_range": device.storage_range,
        "max_per_stage_descriptor_storage_buffer": device.storage_buffers,
        "supports_float16": device.fp16,
        "supports_float64": device.fp64,
        "supports_int8": device.int8,
        "supports_int16": device.int16,
        "supports_int64": device.int64,
        "supports_8bit_buffer": device.storage8,
        "supports_16bit_buffer": device.storage16,
        "supports_nan16": device.nan16,
        "supports_nan32": device.nan32,
        "supports_nan64": device.nan64,
        "supported_subgroup_operations": device.subgroup_operations,
        "thread_warp_size": 1,
    }


def _vulkan_rates(found: FoundDevice) -> Rates:
    """The host's rates if its CPU computes, else None, because Vulkan does not report speeds."""
    host = host_cpu()
    return (host.flops / SLOWER_VULKAN, host.bandwidth) if found.unit == "cpu" else (None, None)


def _cuda_target(device: CudaDevice) -> dict[str, TargetAttr]:
    return {
        "kind": "cuda",
        "arch": device.arch,
        "max_num_threads": device.max_group,
        "max_threads_per_block": device.max_group,
        "max_shared_memory_per_block": device.shared_memory,
        "thread_warp_size": 32,
    }


def _cuda_rates(device: CudaDevice) -> Rates:
    """Peak rates, computed from the driver's figures."""
    # float32 lanes of a multiprocessor: CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions".
    lanes = 64 if device.capability in ((7, 0), (7, 2), (7, 5), (8, 0)) else 128
    flops = 2.0 * device.multiprocessors * lanes * max(device.clock_khz, 500_000) * 1e3
    # Both edges of the clock move data.
    measured = 2.0 * device.memory_clock_khz * 1e3 * device.memory_bus_bits / 8
    return flops, measured or 2e11

"""Sends values between memories, and knows which memories are one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from heterocc.artifacts.manifest import Variant
from heterocc.runtime.executable import synchronizer
from heterocc.runtime.native import OpenCLDevice, VulkanDevice, opencl_devices, vulkan_devices
from heterocc.runtime.schedule import HOST, Copy, Space
from heterocc.runtime.tvm_api import tvm_api


def shared_spaces(variant: Variant) -> frozenset[Space]:
    """Devices of the variant that compute in the host's memory, so that nothing need be sent: PoCL and lavapipe.

    GPUs that share it are not among them: OpenCL wants their buffers mapped and unmapped around the host's use, and
    Vulkan's drivers take little of what the host allocates.
    """
    used = {(d.backend, d.index) for d in (variant.devices[p.device] for p in variant.partitions)}
    return frozenset(
        Space(backend, index)
        for backend, devices in _SHARERS.items()
        if any(name == backend for name, _ in used)
        for index, device in enumerate(devices())
        if (backend, index) in used and device.type == "cpu" and device.shares_host_memory
    )


_SHARERS: Mapping[str, Callable[[], Sequence[OpenCLDevice | VulkanDevice]]] = {
    "opencl": opencl_devices,
    "vulkan": vulkan_devices,
}


def bind_copy(step: Copy, tensors: Mapping[tuple[int, Space], Any]) -> Callable[[], Any]:
    """A call without arguments that sends the value; when it returns from a copy to the host, the bytes are there."""
    source, target = tensors[step.value, step.source], tensors[step.value, step.target]
    copy = partial(tvm_api().copy, source, target)
    space = step.source if step.source != HOST else step.target
    wait = synchronizer(space) if space.backend == "cuda" else None
    if wait is None:
        return copy

    def copy_and_wait() -> None:
        # TVM only enqueues copies of CUDA, and where the driver reads and writes pageable memory itself
        # (cudaDevAttrPageableMemoryAccess) they need not be over when the call returns, in either direction.
        copy()
        wait()

    return copy_and_wait

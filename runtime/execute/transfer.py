"""Copies of values between memories, and detection of shared and linked memories."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from heterocc.artifacts.manifest import Variant
from heterocc.runtime.execute.executable import synchronizer
from heterocc.runtime.execute.inflight import Settle
from heterocc.runtime.execute.tvm_api import tvm_api
from heterocc.runtime.native import plugin_function
from heterocc.runtime.plan.schedule import Copy, Space

if TYPE_CHECKING:
    from heterocc.runtime.native import OpenCLDevice, VulkanDevice


def shared_spaces(variant: Variant) -> frozenset[Space]:
    """Devices of the variant that compute in the host's memory, so that no copy is needed.

    PoCL and lavapipe work in memory that the host allocates. One integrated GPU or CPU of another driver lends memory
    that it allocates to the host (see `lender`); further ones copy.
    """
    used = {(d.backend, d.index) for d in (variant.devices[p.device] for p in variant.partitions)}
    lenders = []
    for backend, devices in _SHARERS.items():
        indices = sorted(index for name, index in used if name == backend)
        lends = plugin_function(backend, "lends") if indices and devices() else None
        if lends is not None:
            lenders += [Space(backend, i) for i in indices if not devices()[i].shares_host_memory and lends(i)]
    return frozenset(lenders[:1]) | frozenset(
        Space(backend, index)
        for backend, devices in _SHARERS.items()
        if any(name == backend for name, _ in used)
        for index, device in enumerate(devices())
        if (backend, index) in used and device.type == "cpu" and device.shares_host_memory
    )


def _opencl_devices() -> Sequence[OpenCLDevice]:
    from heterocc.runtime.native import opencl_devices

    return opencl_devices()


def _vulkan_devices() -> Sequence[VulkanDevice]:
    from heterocc.runtime.native import vulkan_devices

    return vulkan_devices()


_SHARERS: Mapping[str, Callable[[], Sequence[OpenCLDevice | VulkanDevice]]] = {
    "opencl": _opencl_devices,
    "vulkan": _vulkan_devices,
}


def lender(shared: frozenset[Space]) -> Space | None:
    """The device among `shared` that lends its memory to the host, because it cannot import other memory."""
    spaces = sorted(space for space in shared if space.backend in _SHARERS)
    return next((s for s in spaces if not _SHARERS[s.backend]()[s.index].shares_host_memory), None)


def turner(space: Space) -> Callable[..., Settle] | None:
    """A function that turns memory that a device lends to the other side (see `lending_turns`).

    None if both sides use the memory as it is.

    Called with tensors and sides, it starts that and gives the call that waits for it.
    """
    return plugin_function(space.backend, "turn")


def direct_pairs(variant: Variant) -> frozenset[tuple[Space, Space]]:
    """Pairs of the variant's devices whose memories copy without the host: two of one OpenCL context, two of CUDA.

    Vulkan has no portable way between two physical devices: they meet in host memory.
    """
    used = {Space(d.backend, d.index) for d in (variant.devices[p.device] for p in variant.partitions)}
    pairs = frozenset((a, b) for a in used for b in used if a != b and a.backend == b.backend)
    linked = None
    found: set[tuple[Space, Space]] = set()
    for a, b in pairs:
        if a.backend == "cuda":
            found.add((a, b))
        elif a.backend == "opencl":
            linked = linked or plugin_function("opencl", "linked")
            if linked is not None and linked(a.index, b.index):
                found.add((a, b))
    return frozenset(found)


def bind_copy(step: Copy, tensors: Mapping[tuple[int, Space], Any]) -> Callable[[], Settle]:
    """A function that starts the copy of a value and returns one that waits for it. CUDA uses CudaStreams instead."""
    source, target = tensors[step.value, step.source], tensors[step.value, step.target]
    start = plugin_function(step.carrier.backend, "start_copy")
    if start is not None:
        return partial(start, source, target)
    copy, wait = partial(tvm_api().copy, source, target), device_wait(step.carrier)

    def start_and_go_on() -> Settle:
        copy()
        return wait

    return start_and_go_on


def bind_mark(space: Space) -> Callable[[], Settle]:
    """A function that returns a function that waits for all work given to a device before."""
    mark = plugin_function(space.backend, "mark")
    if mark is not None:
        return partial(mark, space.index)
    wait = device_wait(space)
    return lambda: wait


def device_wait(space: Space) -> Settle:
    """A function that waits until a device has finished all its work."""
    wait = synchronizer(space)
    if wait is None:
        raise ValueError("there is no queue of the host to wait for")
    return wait

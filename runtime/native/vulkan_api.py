"""The Vulkan plug-in: its devices, its kernels, its statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from heterocc.runtime.native.plugin import Plugin

PLUGIN = Plugin(
    name="vulkan",
    label="Vulkan",
    library="libheterocc_vulkan.so",
    driver_hint="install the device's Vulkan driver; lavapipe runs Vulkan on the CPU (Debian: mesa-vulkan-drivers)",
    plugin_hint="install g++ and the Vulkan headers (Debian: g++ libvulkan-dev), then reinstall heterocc",
    build_hint="compile without VULKAN, or on this machine",
)


@dataclass(frozen=True, slots=True)
class VulkanDevice:
    """A Vulkan device of this machine; its index in `vulkan_devices()` is its device index in TVM.

    Sizes are in bytes. `max_alloc` limits one buffer and `storage_range` what a kernel sees of one, `storage_buffers`
    how many a kernel has, `push_constants` its scalars, `shared_memory` and `max_group` one work group,
    `max_group_counts` a launch. `software` marks implementations that run on the CPU (lavapipe). `subgroup_operations`
    are Vulkan's flags for compute shaders. The flags from `int64` to `subgroups` (sums and shuffles) are what kernels
    may compute with; `storage8` and `storage16` are buffers of such elements.
    `nan16` to `nan64`: arithmetic of that width keeps NaN, infinities and the sign of zero on request.
    `unified`: the host reads and writes buffers in place. `shares_host_memory`: buffers can be on
    memory that the host allocated.
    """

    name: str
    driver: str
    version: str
    type: Literal["gpu", "cpu", "accelerator"]
    integrated: bool
    software: bool
    vendor_id: int
    uuid: str
    memory: int
    max_alloc: int
    storage_range: int
    storage_buffers: int
    push_constants: int
    shared_memory: int
    max_group: int
    max_group_sizes: tuple[int, int, int]
    max_group_counts: tuple[int, int, int]
    subgroup_size: int
    subgroup_operations: int
    int64: bool
    fp64: bool
    fp16: bool
    int16: bool
    int8: bool
    storage8: bool
    storage16: bool
    subgroups: bool
    nan16: bool
    nan32: bool
    nan64: bool
    push_descriptors: bool
    timestamps: bool
    unified: bool
    shares_host_memory: bool

    @property
    def features(self) -> tuple[str, ...]:
        """The device's features that kernels may need, by their names in a bundle's `requires`."""
        return tuple(name for name, flag in _FEATURES.items() if getattr(self, flag))


_FEATURES = {
    "fp16": "fp16",
    "fp64": "fp64",
    "int8": "int8",
    "int16": "int16",
    "int64": "int64",
    "storage8": "storage8",
    "storage16": "storage16",
    "subgroup_arithmetic": "subgroups",
    "nan16": "nan16",
    "nan32": "nan32",
    "nan64": "nan64",
}


def load_vulkan() -> None:
    """Load the plug-in and make sure that there is a device; raises as `Plugin.require_device` does.

    Safe to call from any thread, and again.
    """
    PLUGIN.require_device()


def vulkan_devices() -> tuple[VulkanDevice, ...]:
    """The Vulkan devices here, discrete GPUs first and software last; raises as `load_vulkan` does."""
    return PLUGIN.devices(VulkanDevice)


def vulkan_unavailable_reason() -> str | None:
    """The reason why no Vulkan device can be used here, in one sentence; None if one can."""
    return PLUGIN.unavailable_reason()


def trim() -> int:
    """Free workspaces and blocks of memory that nothing uses now; gives the number of bytes."""
    return int(PLUGIN.call("trim"))


@dataclass(frozen=True, slots=True)
class Statistics:
    """Work of a device in this process: counts, and bytes of memory held now and, of those, in use."""

    submissions: int
    kernels: int
    copies: int
    barriers: int
    held: int
    used: int


def statistics(device: int = 0) -> Statistics:
    """The statistics of a Vulkan device."""
    return Statistics(*(int(number) for number in PLUGIN.call("statistics", device)))


def build_kernels(library: Any, device: int) -> int:
    """Have the driver compile all Vulkan kernels that a loaded library imports; gives their number.

    See `Plugin.build_kernels`.
    """
    return PLUGIN.build_kernels(library, device)

"""The TVM target of a Vulkan device, and the limits for its code.

The limits are TVM's target attributes: `max_num_threads` (invocations of a work group),
`max_block_size_x/y/z`, `max_shared_memory_per_block`, `max_push_constants_size`, `max_storage_buffer_range`,
`max_per_stage_descriptor_storage_buffer`, `supports_float16`, `supports_float64`, `supports_int8`, `supports_int16`,
`supports_int64`, `supports_8bit_buffer`, `supports_16bit_buffer`, and `supported_subgroup_operations` (bits as in
VkSubgroupFeatureFlagBits). heterocc adds `supports_nan16`, `supports_nan32` and `supports_nan64`: arithmetic of that
width preserves NaN, infinities and the sign of zero on request (shaderSignedZeroInfNanPreserveFloat16 …). The default
of a limit is the minimum in the Vulkan specification. The default of a `supports` attribute is whether the device has
the dtype, and false for NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from heterocc.compiler.devices.device import TargetAttr, TargetDevice
from heterocc.compiler.devices.file import VULKAN_NAN
from heterocc.compiler.lower.codegen.tvm_target import gpu_target
from heterocc.compiler.lower.vulkan.iterations import LLVMPIPE_ITERATIONS
from heterocc.compiler.lower.vulkan.kernel import Feature, Kernel

if TYPE_CHECKING:
    from tvm.target import Target


GRID = 65535
"""The most work groups along an axis that every device supports."""

SUBGROUP_ARITHMETIC = 0x4
"""The bit of `supported_subgroup_operations` for sums, minima and maxima."""

GUARANTEED: Mapping[str, int] = {
    "max_num_threads": 128,
    "max_block_size_x": 128,
    "max_block_size_y": 128,
    "max_block_size_z": 64,
    "max_shared_memory_per_block": 16384,
    "max_push_constants_size": 128,
    "max_storage_buffer_range": 1 << 27,
    "max_per_stage_descriptor_storage_buffer": 4,
}
"""The minimum limits that the specification guarantees, by the name of the target attribute."""

_SUPPORTS: tuple[tuple[Feature, str, frozenset[str]], ...] = (
    (Feature.FLOAT16, "supports_float16", frozenset(["float16"])),
    (Feature.FLOAT64, "supports_float64", frozenset(["float64"])),
    (Feature.INT8, "supports_int8", frozenset(["int8", "uint8"])),
    (Feature.INT16, "supports_int16", frozenset(["int16", "uint16"])),
    (Feature.INT64, "supports_int64", frozenset(["int64", "uint64"])),
    (Feature.STORAGE_8BIT, "supports_8bit_buffer", frozenset(["int8", "uint8", "bool"])),
    (Feature.STORAGE_16BIT, "supports_16bit_buffer", frozenset(["int16", "uint16", "float16"])),
    # Dtypes do not need these: the default is code without them.
    (Feature.NAN16, "supports_nan16", frozenset()),
    (Feature.NAN32, "supports_nan32", frozenset()),
    (Feature.NAN64, "supports_nan64", frozenset()),
)
_MISSING = {
    Feature.INT64: "64-bit integers",
    Feature.FLOAT64: "float64",
    Feature.FLOAT16: "float16 arithmetic",
    Feature.INT8: "8-bit arithmetic",
    Feature.STORAGE_8BIT: "buffers of 8-bit elements (bool, int8, uint8)",
    Feature.STORAGE_16BIT: "buffers of 16-bit elements",
    Feature.INT16: "16-bit arithmetic",
    Feature.SUBGROUP_ARITHMETIC: "arithmetic in subgroups",
}


@dataclass(frozen=True, slots=True)
class VulkanLimits:
    """The limits of a device for its kernels; sizes are in bytes. `iterations` is described in iterations.py."""

    threads: int
    local_size: tuple[int, int, int]
    shared_bytes: int
    push_bytes: int
    buffer_bytes: int
    buffers: int
    features: Feature
    iterations: int | None = None

    def misfit(self, kernel: Kernel) -> str | None:
        """The reason why a kernel cannot run on the device, in one sentence, or None."""
        missing = [name for feature, name in _MISSING.items() if feature in kernel.features & ~self.features]
        if missing:
            return f"the device does not support {missing[0]}"
        if kernel.buffers > self.buffers:
            return f"a kernel has {kernel.buffers} buffers, but the device allows only {self.buffers}"
        if kernel.buffer_bytes > self.buffer_bytes:
            return (
                f"a kernel has a buffer of {kernel.buffer_bytes} bytes, but the device allows only {self.buffer_bytes}"
            )
        x, y, z = kernel.local_size
        if x * y * z > self.threads or any(s > m for s, m in zip(kernel.local_size, self.local_size, strict=True)):
            a, b, c = self.local_size
            return (
                f"a kernel has work groups of {x} x {y} x {z}, but the device allows only {self.threads} invocations "
                f"and {a} x {b} x {c} along the axes"
            )
        if kernel.shared_bytes > self.shared_bytes:
            return f"a kernel needs {kernel.shared_bytes} bytes of shared memory, the device has {self.shared_bytes}"
        if kernel.push_bytes > self.push_bytes:
            return f"a kernel has {kernel.push_bytes} bytes of scalars, but the device allows only {self.push_bytes}"
        if self.iterations is not None and kernel.iterations > self.iterations:
            return (
                f"a kernel runs {kernel.iterations} loop iterations per invocation, but the driver silently stops "
                f"after {self.iterations}"
            )
        if max(kernel.groups) > GRID:
            return f"a kernel has {max(kernel.groups)} work groups along one axis, but Vulkan guarantees only {GRID}"
        return None


def limits_of(device: TargetDevice) -> VulkanLimits:
    """The limits of a device. Every software device is assumed to be llvmpipe."""
    limits = limits_from(device.target, device.dtypes)
    return replace(limits, iterations=LLVMPIPE_ITERATIONS) if device.software else limits


def limits_from(target: Mapping[str, TargetAttr], dtypes: frozenset[str]) -> VulkanLimits:
    """The limits given by target attributes, with defaults for missing ones."""

    def number(name: str) -> int:
        return int(target.get(name, GUARANTEED[name]))  # type: ignore[arg-type]  # a number by its name

    features = Feature(0)
    for feature, name, needed in _SUPPORTS:
        if bool(target[name]) if name in target else bool(dtypes & needed):
            features |= feature
    operations = int(target.get("supported_subgroup_operations", 0))  # type: ignore[arg-type]
    if operations & SUBGROUP_ARITHMETIC:
        features |= Feature.SUBGROUP_ARITHMETIC
    return VulkanLimits(
        threads=number("max_num_threads"),
        local_size=(number("max_block_size_x"), number("max_block_size_y"), number("max_block_size_z")),
        shared_bytes=number("max_shared_memory_per_block"),
        push_bytes=number("max_push_constants_size"),
        buffer_bytes=number("max_storage_buffer_range"),
        buffers=number("max_per_stage_descriptor_storage_buffer"),
        features=features,
    )


def vulkan_target(device: TargetDevice) -> Target:
    """The `tvm.target.Target` of a device, with host code for the CPU of this machine and baseline instructions.

    Raises DeviceError if TVM refuses the device's attributes.
    """
    threads = device.target.get("max_num_threads", GUARANTEED["max_num_threads"])
    known = {name: value for name, value in device.target.items() if name not in VULKAN_NAN}
    device = replace(device, target=known)
    return gpu_target(device, "vulkan", max_num_threads=threads, max_threads_per_block=threads, thread_warp_size=1)

"""The OpenCL plug-in: its devices, its kernels and the driver's binaries of them, its statistics."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Literal

from heterocc.runtime import ffi as tvm_ffi
from heterocc.runtime.native.plugin import Plugin

PLUGIN = Plugin(
    name="opencl",
    label="OpenCL",
    library="libheterocc_opencl.so",
    driver_hint="install the OpenCL driver of the device; PoCL runs OpenCL on the CPU (Debian: pocl-opencl-icd)",
    plugin_hint="install g++ and the OpenCL headers (Debian: g++ opencl-c-headers), then reinstall heterocc",
    build_hint="the driver's compiler refuses the kernel; compile without OPENCL",
)


@dataclass(frozen=True, slots=True)
class OpenCLDevice:
    """An OpenCL device of this machine; its index in `opencl_devices()` is its device index in TVM.

    Sizes are in bytes. `max_alloc` limits one buffer, `local_memory` and `max_group` one work group. `software` marks
    implementations that run on the CPU (PoCL, llvmpipe). `unified`: its memory is the host's own, so that both can see
    a buffer. `shares_host_memory`: its buffers can be in memory that the host allocated.
    """

    name: str
    vendor: str
    platform: str
    version: str
    driver: str
    type: Literal["gpu", "cpu", "accelerator"]
    software: bool
    memory: int
    max_alloc: int
    local_memory: int
    max_group: int
    max_group_sizes: tuple[int, int, int]
    compute_units: int
    clock_mhz: int
    alignment: int
    fp16: bool
    fp64: bool
    shares_host_memory: bool
    extensions: tuple[str, ...]
    unified: bool = False


def load_opencl() -> None:
    """Load the plug-in and make sure that there is a device; raises as `Plugin.require_device` does.

    Safe to call from any thread, and again.
    """
    PLUGIN.require_device()


def opencl_devices() -> tuple[OpenCLDevice, ...]:
    """The OpenCL devices here, hardware GPUs first and software last; raises as `load_opencl` does."""
    return PLUGIN.devices(OpenCLDevice)


def opencl_unavailable_reason() -> str | None:
    """The reason why no OpenCL device can be used here, in one sentence; None if one can."""
    return PLUGIN.unavailable_reason()


def trim() -> int:
    """Free workspaces that no kernel uses now; gives the number of bytes."""
    return int(PLUGIN.call("trim"))


@dataclass(frozen=True, slots=True)
class Statistics:
    """Work of a device in this process: counts, and for `copied` bytes of copies. `maps` are of lent memory."""

    copies: int
    copied: int
    maps: int


def statistics(device: int = 0) -> Statistics:
    """The statistics of an OpenCL device."""
    return Statistics(*(int(number) for number in PLUGIN.call("statistics", device)))


@dataclass(frozen=True, slots=True)
class Origins:
    """Counts of a library's programs by origin: binaries of the bundle, binaries on disk, source.

    `refused` are binaries, of the bundle or on disk, that the driver did not take.
    """

    bundle: int = 0
    disk: int = 0
    source: int = 0
    refused: int = 0


def build_kernels(library: Any, device: int, binaries: bytes = b"") -> int:
    """Have the driver compile all OpenCL kernels that a loaded library imports; gives their number.

    `binaries` (see `program_binaries`) are used if they are for exactly this device and driver. See
    `Plugin.build_kernels`.
    """
    if binaries:
        for module in PLUGIN.modules(library):
            module.get_function("heterocc_offer")(binaries)
    return PLUGIN.build_kernels(library, device)


def warm_up(device: int) -> None:
    """Have the driver compile a kernel that does nothing, for what its compiler loads once per process.

    PoCL takes 0.4 s for its library of functions. Raises as `load_opencl` does, and what the driver raises.
    """
    load_opencl()
    tvm_ffi.get_global_func("ffi.Module.load_from_bytes.opencl")(_NOTHING).get_function("heterocc_build")(device)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


_NOTHING = b"".join(
    [
        _text("cl") + struct.pack("<Q", 1) + 2 * _text("nothing"),
        struct.pack("<QQQ", 0, 0, 0),  # no arguments, launch tags or others
        _text("// Function: nothing\n__kernel void nothing() {}\n"),
    ]
)
"""A module of one kernel, in the form of `opencl/module_format.cc`."""


def origins(library: Any, device: int) -> Origins:
    """Origins of the programs that were built for a device."""
    counts = [module.get_function("heterocc_origins")(device) for module in PLUGIN.modules(library)]
    return Origins(*(sum(int(c[i]) for c in counts) for i in range(4)))


def program_binaries(library: Any, device: int) -> bytes:
    """The driver's binaries of what was built for a device, as `build_kernels` takes them; empty without OpenCL code.

    May take as long as building: PoCL compiles each kernel once more. PoCL's code for the sizes of a run is in
    its binaries only after that run.
    """
    return b"".join(bytes(module.get_function("heterocc_binaries")(device)) for module in PLUGIN.modules(library)[:1])

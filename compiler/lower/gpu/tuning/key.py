"""The key of a kernel in the cache of timings."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import fields

from tvm import tirx

from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.host import host_cpu
from heterocc.compiler.files.records import toolchain_digest
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.runtime.machine.devices import usable_cuda_devices
from heterocc.runtime.native import opencl_devices, vulkan_devices


def identity(device: TargetDevice) -> str:
    """The names of the device and its driver; for a software device also the CPU's name and number of cores."""
    names: tuple[str, ...]
    if device.backend == "opencl":
        found = opencl_devices()[device.index]
        names = (found.name, found.vendor, found.platform, found.version, found.driver)
    elif device.backend == "vulkan":
        card = vulkan_devices()[device.index]
        names = (card.name, card.driver, card.version, card.uuid)
    else:
        cuda = usable_cuda_devices()[device.index]
        names = (cuda.name, cuda.arch, str(cuda.multiprocessors), cuda.driver)
    cpu = (host_cpu().name, str(host_cpu().cores)) if device.software else ()
    return "\n".join([device.backend, *names, *cpu])


def key_of(function: tirx.PrimFunc, limits: Limits, packable: Collection[int], device: str) -> str:
    """The SHA-256 digest of the kernel, limits, repackable parameters, device, and the compiler's sources."""
    digest = hashlib.sha256(toolchain_digest().encode())
    known = {f.name: getattr(limits, f.name) for f in fields(limits) if f.name != "choose"}
    known["dtypes"] = sorted(limits.dtypes)
    text = function.with_attr("global_symbol", "kernel").script(show_meta=True)
    for part in (device, repr(known), repr(sorted(packable)), text):
        digest.update(f"\n{part}\n".encode())
    return digest.hexdigest()

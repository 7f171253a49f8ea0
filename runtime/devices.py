"""The devices of this machine, as records, and why those of other back ends cannot be used."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any, Literal

from heterocc.artifacts.errors import HeteroccError
from heterocc.artifacts.manifest import Device
from heterocc.runtime.compat import host
from heterocc.runtime.native import (
    CudaDevice,
    OpenCLDevice,
    VulkanDevice,
    cuda_devices,
    load_cuda,
    opencl_devices,
    vulkan_devices,
)
from heterocc.runtime.tvm_api import available_cores

Backend = Literal["cpu", "opencl", "vulkan", "cuda", "ort"]
GPU_BACKENDS: tuple[Backend, ...] = ("cuda", "vulkan", "opencl")
"""Back ends that `GPU` may stand for, the preferred one first."""

SOFTWARE_BACKENDS: tuple[Backend, ...] = ("opencl", "vulkan", "cuda")
"""The same where only software devices are here: PoCL runs kernels faster than lavapipe."""


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """A device that this process can run code on.

    `label` is what `--devices` calls it. `software` marks GPU APIs implemented on the CPU (PoCL, lavapipe). `memory` is
    in bytes (of the machine for the CPU), `cores` are those this process may use, or compute units. `features` are
    LLVM's names of CPU features, or the device's capabilities (`fp16`, `fp64`; of Vulkan what its kernels may need).
    """

    label: str
    backend: Backend
    index: int
    description: str
    type: Literal["cpu", "gpu", "accelerator"]
    software: bool
    memory: int | None
    cores: int | None
    features: tuple[str, ...]
    driver: str

    def to_json(self) -> dict[str, Any]:
        """As `heterocc devices --json` prints it."""
        return {name: getattr(self, name) for name in DeviceRecord.__slots__}


@dataclass(frozen=True, slots=True)
class Inventory:
    """What is here: `devices` in order of label, and by back end a sentence for each that is `absent`."""

    devices: tuple[DeviceRecord, ...]
    absent: tuple[tuple[Backend, str], ...]

    def to_json(self) -> dict[str, Any]:
        """As `heterocc devices --json` prints it."""
        return {
            "devices": [d.to_json() for d in self.devices],
            "absent": [{"backend": backend, "reason": reason} for backend, reason in self.absent],
        }


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """What the alias `GPU` stands for; `note` says so where it is only a software device."""

    device: DeviceRecord
    note: str | None


def inventory() -> Inventory:
    """Look for the devices of every back end; loads the plug-ins and drivers. Never raises for a missing one."""
    found = [cpu_record()]
    absent: list[tuple[Backend, str]] = []
    try:
        found += [_opencl_record(index, device) for index, device in enumerate(opencl_devices())]
    except HeteroccError as error:
        absent.append(("opencl", error.message))
    try:
        found += [_vulkan_record(index, device) for index, device in enumerate(vulkan_devices())]
    except HeteroccError as error:
        absent.append(("vulkan", error.message))
    try:
        found += [_cuda_record(index, device) for index, device in enumerate(usable_cuda_devices())]
    except HeteroccError as error:
        absent.append(("cuda", error.message))
    if util.find_spec("onnxruntime") is None:
        absent.append(("ort", "the package onnxruntime is not installed"))
    else:
        found.append(_ort_record())
    return Inventory(tuple(found), tuple(absent))


def cpu_record() -> DeviceRecord:
    """The host CPU."""
    return DeviceRecord(
        label="CPU",
        backend="cpu",
        index=0,
        description=_cpu_model(),
        type="cpu",
        software=False,
        memory=_physical_memory(),
        cores=available_cores(),
        features=tuple(sorted(host().cpu_features)),
        driver=f"TVM {host().tvm}" if host().tvm else "TVM is not installed",
    )


def resolve_gpu(devices: Sequence[DeviceRecord], index: int = 0) -> GpuChoice | None:
    """The device that `GPU` (`GPU.<index>`) stands for, None if there is none.

    Devices of the first GPU back end that has hardware; a software device only where no back end has any.
    """
    candidates = [d for d in devices if d.backend in GPU_BACKENDS]
    for backend in GPU_BACKENDS:
        hardware = [d for d in candidates if d.backend == backend and not d.software and d.type != "cpu"]
        if hardware:
            return GpuChoice(hardware[index], None) if index < len(hardware) else None
    if index >= len(candidates):
        return None
    chosen = sorted(candidates, key=lambda d: SOFTWARE_BACKENDS.index(d.backend))[index]
    return GpuChoice(chosen, f"no GPU is here: GPU is the software device '{chosen.description}'")


def driver_reason(device: Device) -> str | None:
    """Why a device of a manifest (of a back end other than `cpu` and `ort`) cannot be used here, None if it can."""
    try:
        here = _capabilities(device.backend)
    except HeteroccError as error:
        return f"device {device.name}: {error.message}"
    if device.index >= len(here):
        api = {"opencl": "OpenCL", "vulkan": "Vulkan", "cuda": "CUDA"}[device.backend]
        return f"device {device.name} is {api} device {device.index}, this machine has {len(here)}"
    name, have = here[device.index]
    if device.backend == "cuda":
        return _cuda_reason(device, usable_cuda_devices()[device.index])
    missing = [c for c in device.requires if c not in have]
    return f"device {device.name} ({name}) lacks {', '.join(missing)}" if missing else None


def _capabilities(backend: str) -> list[tuple[str, frozenset[str]]]:
    """For each device of a back end, its name and what code may require of it."""
    if backend == "vulkan":
        return [(d.name, frozenset(d.features)) for d in vulkan_devices()]
    if backend == "cuda":
        return [(d.name, frozenset([d.arch])) for d in usable_cuda_devices()]
    return [(d.name, frozenset([*_precisions(d), *d.extensions])) for d in opencl_devices()]


def usable_cuda_devices() -> tuple[CudaDevice, ...]:
    """The CUDA devices here, once TVM's CUDA runtime is loaded; raises as `load_cuda` does."""
    found = cuda_devices()
    load_cuda()
    return found


def _cuda_reason(device: Device, here: CudaDevice) -> str | None:
    """Why the machine code of a manifest's device does not run on a CUDA device."""
    arch = json.loads(device.target or "{}").get("arch")
    if not isinstance(arch, str):
        return f"the bundle does not say which GPU architecture the code for {device.name} is for"
    if here.runs(arch):
        return None
    return f"the code for {device.name} is for {arch}, {here.name} is {here.arch}"


def _precisions(device: OpenCLDevice) -> tuple[str, ...]:
    return tuple(name for name in ("fp16", "fp64") if getattr(device, name))


def _opencl_record(index: int, device: OpenCLDevice) -> DeviceRecord:
    return DeviceRecord(
        label="OPENCL" if index == 0 else f"OPENCL.{index}",
        backend="opencl",
        index=index,
        description=device.name,
        type=device.type,
        software=device.software,
        memory=device.memory,
        cores=device.compute_units,
        features=_precisions(device),
        driver=f"{device.platform} {device.driver}",
    )


def _vulkan_record(index: int, device: VulkanDevice) -> DeviceRecord:
    return DeviceRecord(
        label="VULKAN" if index == 0 else f"VULKAN.{index}",
        backend="vulkan",
        index=index,
        description=device.name,
        type=device.type,
        software=device.software,
        memory=device.memory,
        cores=None,  # Vulkan does not tell
        features=device.features,
        driver=f"{device.driver}, Vulkan {device.version}",
    )


def _cuda_record(index: int, device: CudaDevice) -> DeviceRecord:
    return DeviceRecord(
        label="CUDA" if index == 0 else f"CUDA.{index}",
        backend="cuda",
        index=index,
        description=device.name,
        type="gpu",
        software=False,
        memory=device.memory,
        cores=device.multiprocessors,
        features=("fp16", "fp64", device.arch),
        driver=f"NVIDIA, CUDA {device.driver}",
    )


def _ort_record() -> DeviceRecord:
    try:
        version = metadata.version("onnxruntime")
    except metadata.PackageNotFoundError:  # other distributions of the same package, such as onnxruntime-gpu
        version = "of unknown version"
    return DeviceRecord(
        label="ORT",
        backend="ort",
        index=0,
        description=f"ONNX Runtime {version}",
        type="cpu",
        software=False,
        memory=_physical_memory(),
        cores=available_cores(),
        features=(),
        driver=f"onnxruntime {version}",
    )


def _cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def _physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None

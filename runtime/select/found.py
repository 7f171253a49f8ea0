"""The devices that the drivers here report, in one form for all back ends."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from heterocc.artifacts.dtypes import NUMERIC_DTYPES
from heterocc.runtime.execute.tvm_api import available_cores
from heterocc.runtime.native import CudaDevice, OpenCLDevice, VulkanDevice
from heterocc.runtime.select.compat import host
from heterocc.runtime.select.ranking import Backend, Unit, label_of

GENERIC_GPU_DTYPES = NUMERIC_DTYPES - {"float64", "float16"}
"""What every OpenCL GPU holds and computes."""

ApiDevice = OpenCLDevice | VulkanDevice | CudaDevice


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device allows; sizes in bytes, None where the API has no such limit or does not tell.

    `buffer` is the largest allocation. `group_size` counts the work items of a group, `group_sizes` by axis, and
    `shared_memory` is what they share. `storage_buffers` are those of one kernel, `storage_range` what it sees of one,
    `push_constants` its scalars. `subgroup_size` is how many work items run in step.
    """

    buffer: int | None = None
    group_size: int | None = None
    group_sizes: tuple[int, int, int] | None = None
    shared_memory: int | None = None
    storage_buffers: int | None = None
    storage_range: int | None = None
    push_constants: int | None = None
    subgroup_size: int | None = None


@dataclass(frozen=True, slots=True)
class FoundDevice:
    """A device that this process can run code on.

    `label` is what `--devices` calls it. `type` is what its driver calls it, `unit` what computes; `software` marks GPU
    APIs implemented on the CPU (PoCL, lavapipe). `memory` is in bytes (of the machine for the CPU), `cores` are those
    this process may use, or compute units. `dtypes` are those it holds and computes. `features` are LLVM's names of CPU
    features, or the device's capabilities (`fp16`, `fp64`; of Vulkan what its kernels may need). `driver` is the
    driver's name and version, `api` the API's. `own` is the API's own description of it, None for CPU and ORT.
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
    unit: Unit = "cpu"
    dtypes: frozenset[str] = NUMERIC_DTYPES
    limits: Limits = field(default_factory=Limits)
    api: str = ""
    own: ApiDevice | None = None

    def to_json(self) -> dict[str, Any]:
        """As `heterocc devices --json` prints it."""
        data = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "own"}
        return {**data, "dtypes": sorted(self.dtypes), "limits": asdict(self.limits)}


def unit_of(device: ApiDevice) -> Unit:
    """What computes behind a driver's device."""
    if isinstance(device, CudaDevice):
        return "integrated" if device.integrated else "discrete"
    if device.software or device.type == "cpu":
        return "cpu"
    if device.type != "gpu":
        return "other"
    integrated = device.integrated if isinstance(device, VulkanDevice) else device.unified
    return "integrated" if integrated else "discrete"


def dtypes_of(device: ApiDevice) -> frozenset[str]:
    """What a device can both hold in buffers and compute with."""
    if isinstance(device, CudaDevice):
        return NUMERIC_DTYPES
    if isinstance(device, OpenCLDevice):
        floats = {name for name, here in (("float64", device.fp64), ("float16", device.fp16)) if here}
        return GENERIC_GPU_DTYPES | floats
    dtypes = {"float32", "int32", "uint32"}
    for here, names in (
        (device.fp64, ("float64",)),
        (device.int64, ("int64", "uint64")),
        (device.fp16 and device.storage16, ("float16",)),
        (device.int16 and device.storage16, ("int16", "uint16")),
        (device.int8 and device.storage8, ("int8", "uint8", "bool")),
    ):
        if here:
            dtypes.update(names)
    return frozenset(dtypes)


def precisions(device: OpenCLDevice) -> tuple[str, ...]:
    """What code may require of an OpenCL device by name, beside its extensions."""
    return tuple(name for name in ("fp16", "fp64") if getattr(device, name))


def found_cpu() -> FoundDevice:
    """The host CPU."""
    return FoundDevice(
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
        api=host().arch,
    )


def found_opencl(index: int, device: OpenCLDevice) -> FoundDevice:
    """An OpenCL device of the driver's list."""
    return FoundDevice(
        label=label_of("opencl", index),
        backend="opencl",
        index=index,
        description=device.name,
        type=device.type,
        software=device.software,
        memory=device.memory,
        cores=device.compute_units,
        features=precisions(device),
        driver=f"{device.platform} {device.driver}",
        unit=unit_of(device),
        dtypes=dtypes_of(device),
        limits=Limits(
            buffer=device.max_alloc,
            group_size=device.max_group,
            group_sizes=device.max_group_sizes,
            shared_memory=device.local_memory,
        ),
        api=device.version,
        own=device,
    )


def found_vulkan(index: int, device: VulkanDevice) -> FoundDevice:
    """A Vulkan device of the driver's list."""
    return FoundDevice(
        label=label_of("vulkan", index),
        backend="vulkan",
        index=index,
        description=device.name,
        type=device.type,
        software=device.software,
        memory=device.memory,
        cores=None,  # Vulkan does not tell
        features=device.features,
        driver=device.driver,
        unit=unit_of(device),
        dtypes=dtypes_of(device),
        limits=Limits(
            buffer=device.max_alloc,
            group_size=device.max_group,
            group_sizes=device.max_group_sizes,
            shared_memory=device.shared_memory,
            storage_buffers=device.storage_buffers,
            storage_range=device.storage_range,
            push_constants=device.push_constants,
            subgroup_size=device.subgroup_size or None,
        ),
        api=f"Vulkan {device.version}",
        own=device,
    )


def found_cuda(index: int, device: CudaDevice) -> FoundDevice:
    """A CUDA device of the driver's list."""
    return FoundDevice(
        label=label_of("cuda", index),
        backend="cuda",
        index=index,
        description=device.name,
        type="gpu",
        software=False,
        memory=device.memory,
        cores=device.multiprocessors,
        features=("fp16", "fp64", device.arch),
        driver=" ".join(("NVIDIA", _nvidia_release())).strip(),
        unit=unit_of(device),
        dtypes=dtypes_of(device),
        limits=Limits(
            group_size=device.max_group,
            shared_memory=device.shared_memory,
            subgroup_size=32,  # CUDA C++ Programming Guide: a warp has 32 threads on every device
        ),
        api=f"CUDA {device.driver}",
        own=device,
    )


def found_ort() -> FoundDevice:
    """ONNX Runtime, which is installed."""
    try:
        version = metadata.version("onnxruntime")
    except metadata.PackageNotFoundError:  # other distributions of the same package, such as onnxruntime-gpu
        version = "of unknown version"
    return FoundDevice(
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
        api="CPU execution provider",
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


def _nvidia_release() -> str:
    """The driver's release (`580.65.06`) as its kernel module tells it; empty where it does not."""
    path = Path("/sys/module/nvidia/version")
    return path.read_text(encoding="ascii", errors="replace").strip() if path.is_file() else ""

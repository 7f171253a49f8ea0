"""The devices that this machine's drivers report, in a common form for all back ends."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from heterocc.artifacts.dtypes import NUMERIC_DTYPES
from heterocc.runtime.execute.tvm_api import available_cores
from heterocc.runtime.machine.compat import host
from heterocc.runtime.machine.ranking import Backend, Unit, label_of
from heterocc.runtime.native import CudaDevice, OpenCLDevice, VulkanDevice
from heterocc.runtime.native.processor import cpuinfo

GENERIC_GPU_DTYPES = NUMERIC_DTYPES - {"float64", "float16"}
"""The dtypes that every OpenCL GPU stores and computes."""

ApiDevice = OpenCLDevice | VulkanDevice | CudaDevice


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a device; sizes in bytes, None if the API has no such limit or does not report it.

    `buffer` is the largest allocation, `group_size` the largest number of work items in a group, `group_sizes` that
    along each axis, and `shared_memory` the memory of a group. `storage_buffers` is the largest number of buffers of a
    kernel, `storage_range` the largest range of one that it can access, and `push_constants` the size of its scalars.
    `subgroup_size` is the number of work items that run in lockstep.
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

    `label` is its name in `--devices`. `type` is reported by its driver, `unit` is the kind of processor; `software`
    marks GPU APIs implemented on the CPU (PoCL, lavapipe). `memory` is in bytes (of the machine for the CPU). `cores`
    is the number of CPU cores that this process may use, or of compute units. `dtypes` are those that it stores and
    computes. `features` are LLVM's names of CPU features, or the device's capabilities (`fp16`, `fp64`; for Vulkan
    those that kernels may need). `driver` is the driver's name and version, `api` the API's version. `own` is the API's
    description of the device, None for CPU and ORT.
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

    def __repr__(self) -> str:
        return f"<FoundDevice {self.label}: {self.description}{' (software)' * self.software}>"

    def to_json(self) -> dict[str, Any]:
        """As `heterocc devices --json` prints it."""
        data = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "own"}
        return {**data, "dtypes": sorted(self.dtypes), "limits": asdict(self.limits)}


def unit_of(device: ApiDevice) -> Unit:
    """The kind of processor of a driver's device."""
    if isinstance(device, CudaDevice):
        return "integrated" if device.integrated else "discrete"
    if device.software or device.type == "cpu":
        return "cpu"
    if device.type != "gpu":
        return "other"
    integrated = device.integrated if isinstance(device, VulkanDevice) else device.unified
    return "integrated" if integrated else "discrete"


def dtypes_of(device: ApiDevice) -> frozenset[str]:
    """The dtypes that a device can both store in buffers and compute."""
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
    """The precisions of an OpenCL device that code may require by name, beside extensions."""
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


def _accelerator(backend: Backend, index: int, device: ApiDevice, **own: Any) -> FoundDevice:
    """A device of a driver's list: the fields that all APIs report, and `own`, those of one API."""
    common: dict[str, Any] = {
        "label": label_of(backend, index),
        "backend": backend,
        "index": index,
        "description": device.name,
        "memory": device.memory,
        "unit": unit_of(device),
        "dtypes": dtypes_of(device),
        "own": device,
    }
    if not isinstance(device, CudaDevice):
        common |= {"type": device.type, "software": device.software}
    return FoundDevice(**{**common, **own})


def found_opencl(index: int, device: OpenCLDevice) -> FoundDevice:
    """An OpenCL device of the driver's list."""
    return _accelerator(
        "opencl",
        index,
        device,
        cores=device.compute_units,
        features=precisions(device),
        driver=f"{device.platform} {device.driver}",
        limits=Limits(
            buffer=device.max_alloc,
            group_size=device.max_group,
            group_sizes=device.max_group_sizes,
            shared_memory=device.local_memory,
        ),
        api=device.version,
    )


def found_vulkan(index: int, device: VulkanDevice) -> FoundDevice:
    """A Vulkan device of the driver's list."""
    return _accelerator(
        "vulkan",
        index,
        device,
        cores=None,  # Vulkan does not report it
        features=device.features,
        driver=device.driver,
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
    )


def found_cuda(index: int, device: CudaDevice) -> FoundDevice:
    """A CUDA device of the driver's list."""
    return _accelerator(
        "cuda",
        index,
        device,
        type="gpu",
        software=False,
        cores=device.multiprocessors,
        features=("fp16", "fp64", device.arch),
        driver=" ".join(("NVIDIA", _nvidia_release())).strip(),
        limits=Limits(
            group_size=device.max_group,
            shared_memory=device.shared_memory,
            subgroup_size=32,  # CUDA C++ Programming Guide: a warp has 32 threads on every device
        ),
        api=f"CUDA {device.driver}",
    )


def found_ort() -> FoundDevice:
    """ONNX Runtime as a device; it must be installed."""
    from importlib import metadata  # not at the top: takes long to import

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
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo(), re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def _physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _nvidia_release() -> str:
    """The driver's release (such as `580.65.06`) according to its kernel module; empty if unknown."""
    path = Path("/sys/module/nvidia/version")
    return path.read_text(encoding="ascii", errors="replace").strip() if path.is_file() else ""

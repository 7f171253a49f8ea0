"""The devices of this machine, and the reasons why other back ends cannot be used."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from heterocc.artifacts.errors import HeteroccError
from heterocc.artifacts.manifest import Device
from heterocc.runtime.execute.ort import OLDEST_TEXT
from heterocc.runtime.machine.compat import has_onnxruntime
from heterocc.runtime.machine.found import (
    FoundDevice,
    found_cpu,
    found_cuda,
    found_opencl,
    found_ort,
    found_vulkan,
    precisions,
)
from heterocc.runtime.machine.ranking import Backend
from heterocc.runtime.native import CudaDevice, cuda_devices, load_cuda, opencl_devices, vulkan_devices


@dataclass(frozen=True, slots=True)
class Absent:
    """A back end without a device on this machine: `reason` is one sentence, `hint` the remedy."""

    backend: Backend
    reason: str
    hint: str

    def to_json(self) -> dict[str, str]:
        """As `heterocc devices --json` prints it."""
        return {"backend": self.backend, "reason": self.reason, "hint": self.hint}


@dataclass(frozen=True, slots=True)
class Inventory:
    """The devices of a machine, in order of label, and its `absent` back ends. A sequence of the devices."""

    devices: tuple[FoundDevice, ...]
    absent: tuple[Absent, ...]

    def __repr__(self) -> str:
        return f"<Inventory: {', '.join(device.label for device in self.devices)}>"

    def __iter__(self) -> Iterator[FoundDevice]:
        return iter(self.devices)

    def __len__(self) -> int:
        return len(self.devices)

    def __getitem__(self, place: int) -> FoundDevice:
        return self.devices[place]

    def to_json(self) -> dict[str, Any]:
        """As `heterocc devices --json` prints it."""
        return {"devices": [d.to_json() for d in self.devices], "absent": [a.to_json() for a in self.absent]}


def inventory() -> Inventory:
    """Find the devices of every back end; loads the plug-ins and drivers. Does not raise for missing ones."""
    accelerators = found_accelerators()
    found = [found_cpu(), *accelerators.devices]
    absent = list(accelerators.absent)
    if not has_onnxruntime():
        what = f"onnxruntime>={OLDEST_TEXT}"
        absent.append(Absent("ort", f"the package {what} is not installed", f"pip install '{what}'"))
    else:
        found.append(found_ort())
    return Inventory(tuple(found), tuple(absent))


def found_accelerators() -> Inventory:
    """The devices of the GPU back ends only."""
    found: list[FoundDevice] = []
    absent: list[Absent] = []
    backends: tuple[Backend, ...] = ("opencl", "vulkan", "cuda")
    for backend in backends:
        try:
            found += _found(backend)
        except HeteroccError as error:
            absent.append(Absent(backend, error.message, error.hint or ""))
    return Inventory(tuple(found), tuple(absent))


def _found(backend: Backend) -> list[FoundDevice]:
    """The devices of a GPU back end. Raises NativePluginError or DriverMissingError if there are none."""
    if backend == "opencl":
        return [found_opencl(index, device) for index, device in enumerate(opencl_devices())]
    if backend == "vulkan":
        return [found_vulkan(index, device) for index, device in enumerate(vulkan_devices())]
    return [found_cuda(index, device) for index, device in enumerate(usable_cuda_devices())]


def device_here(device: Device) -> FoundDevice:
    """The device of this machine for a manifest's device, for which `driver_reason` must be None."""
    plain: dict[str, Callable[[], FoundDevice]] = {"cpu": found_cpu, "ort": found_ort}
    return plain[device.backend]() if device.backend in plain else _found(device.backend)[device.index]


def driver_reason(device: Device) -> str | None:
    """The reason why a manifest's device (not of `cpu` or `ort`) cannot be used here, or None if it can."""
    try:
        here = _capabilities(device.backend)
    except HeteroccError as error:
        return f"device {device.name}: {error.message}"
    if device.index >= len(here):
        api = {"opencl": "OpenCL", "vulkan": "Vulkan", "cuda": "CUDA"}[device.backend]
        return f"device {device.name} is {api} device {device.index}, but this machine has {len(here)}"
    name, have = here[device.index]
    if device.backend == "cuda":
        return _cuda_reason(device, usable_cuda_devices()[device.index])
    missing = [c for c in device.requires if c not in have]
    return f"device {device.name} ({name}) lacks {', '.join(missing)}" if missing else None


def _capabilities(backend: str) -> list[tuple[str, frozenset[str]]]:
    """The name of each device of a back end, and the features that code may require of it."""
    if backend == "vulkan":
        return [(d.name, frozenset(d.features)) for d in vulkan_devices()]
    if backend == "cuda":
        return [(d.name, frozenset([d.arch])) for d in usable_cuda_devices()]
    return [(d.name, frozenset([*precisions(d), *d.extensions])) for d in opencl_devices()]


def usable_cuda_devices() -> tuple[CudaDevice, ...]:
    """Load TVM's CUDA runtime and return the CUDA devices. Raises the errors of `load_cuda`."""
    found = cuda_devices()
    load_cuda()
    return found


def _cuda_reason(device: Device, here: CudaDevice) -> str | None:
    """The reason why the machine code for a manifest's device cannot run on a CUDA device, or None."""
    try:
        target = json.loads(device.target or "{}")
    except (ValueError, RecursionError):  # the manifest's text may be anything
        target = None
    arch = target.get("arch") if isinstance(target, dict) else None
    if not isinstance(arch, str):
        return f"the bundle does not state the GPU architecture of the code for {device.name}"
    if here.runs(arch):
        return None
    return f"the code for {device.name} is for {arch}, but {here.name} is {here.arch}"

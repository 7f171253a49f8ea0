"""Resolution of device names, such as `--devices GPU,CPU`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from heterocc.artifacts.errors import DeviceFileError, DriverMissingError, Hint, UnknownDeviceError, UsageError
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.file import GENERIC_OPENCL_TARGET, read_device_file
from heterocc.compiler.devices.host import host_cpu
from heterocc.compiler.devices.present import Accelerators, accelerators
from heterocc.compiler.devices.properties import apply_properties
from heterocc.runtime.select.found import GENERIC_GPU_DTYPES
from heterocc.runtime.select.ranking import GPU_BACKENDS, SOFTWARE_BACKENDS, Backend, kind_text, rank

DEFAULT_DEVICES = "CPU,ORT"
ORT_IS_LAST = (
    "ORT is treated as if listed last: it runs only what no other listed device can; to run all nodes in ONNX "
    "Runtime, list ORT alone"
)
"""The note for a list that is reordered."""
FLOAT32 = frozenset(["float32"])

_ACCELERATORS: dict[str, Backend] = {"OPENCL": "opencl", "VULKAN": "vulkan", "CUDA": "cuda"}
_LABELS = ("CPU", "GPU", "OPENCL", "VULKAN", "CUDA", "ORT", "AUTO")


def host_device() -> TargetDevice:
    """The CPU of this machine."""
    cpu = host_cpu()
    return TargetDevice(
        name="CPU",
        backend="cpu",
        target=cpu.target,
        description=f"{cpu.name}, {cpu.cores} cores",
        unit="cpu",
        flops=cpu.flops,
        bandwidth=cpu.bandwidth,
    )


def ort_device() -> TargetDevice:
    """ONNX Runtime, the device of last resort."""
    cpu = host_cpu()
    return TargetDevice(
        name="ORT",
        backend="ort",
        description="ONNX Runtime, CPU execution provider",
        unit="cpu",
        flops=cpu.flops,
        bandwidth=cpu.bandwidth,
        static_shapes_only=False,
    )


def generic_gpu() -> TargetDevice:
    """An OpenCL device that this machine lacks: code can be compiled for it, but not checked."""
    return TargetDevice(
        name="GPU",
        backend="opencl",
        target=GENERIC_OPENCL_TARGET,
        present=False,
        description="generic OpenCL device, not on this machine",
        dtypes=GENERIC_GPU_DTYPES,
        unit="discrete",
    )


def resolve_devices(
    names: str | Sequence[str] | None = None,
    device_files: Iterable[Path | TargetDevice] = (),
    properties: Iterable[str] = (),
    *,
    precisions: frozenset[str] = FLOAT32,
    present: Accelerators | None = None,
) -> tuple[tuple[TargetDevice, ...], tuple[str, ...]]:
    """The devices of a priority list, high to low, and notes for the user.

    `names` is in the form of `--devices` (`GPU,CPU`, `AUTO:GPU,CPU`) or a sequence of names; None means `CPU,ORT`. Case
    does not matter. `device_files` add devices, or replace `CPU`. `precisions` are the dtypes that a device
    chosen by `AUTO` must compute. `present` replaces this machine's accelerators.

    Raises UnknownDeviceError (HC402) for an empty list, an unknown name, a device listed twice or a back end that this
    version lacks, and the errors of the parsers: PropertyError, DeviceFileError and FileMissingError.
    """
    (devices,), notes = resolve_lists(
        [DEFAULT_DEVICES if names is None else names], device_files, properties, precisions=precisions, present=present
    )
    return devices, notes


def resolve_lists(
    lists: Iterable[str | Sequence[str]],
    device_files: Iterable[Path | TargetDevice] = (),
    properties: Iterable[str] = (),
    *,
    precisions: frozenset[str] = FLOAT32,
    present: Accelerators | None = None,
) -> tuple[tuple[tuple[TargetDevice, ...], ...], tuple[str, ...]]:
    """Resolve several lists together. A name is the same device in all lists, and a property may name any device."""
    resolver = _Resolver(_described(device_files), accelerators() if present is None else present, precisions)
    resolved = [resolver.resolve(_split(names)) for names in lists]
    every = {d.name: d for devices in resolved for d in devices}
    changed = {d.name: d for d in apply_properties(tuple(every.values()), properties)}
    return (
        tuple(tuple(changed[d.name] for d in devices) for devices in resolved),
        tuple(dict.fromkeys(resolver.notes)),
    )


def known_devices(device_files: Iterable[Path | TargetDevice] = ()) -> tuple[TargetDevice, ...]:
    """Every device that can be named on this machine, in the order of `heterocc devices`."""
    described = _described(device_files)
    here = [d for d in accelerators().devices if d.name not in described]
    own = [d for d in (host_device(), ort_device()) if d.name not in described]
    return (*own[:-1], *here, *described.values(), *own[-1:])


def _described(device_files: Iterable[Path | TargetDevice]) -> dict[str, TargetDevice]:
    described: dict[str, TargetDevice] = {}
    for entry in device_files:
        device = entry if isinstance(entry, TargetDevice) else read_device_file(Path(entry))
        if device.name.upper() in (name.upper() for name in described):
            raise DeviceFileError(f"device '{device.name}' is described twice", where=str(entry))
        described[device.name] = device
    return described


def _kind(device: TargetDevice) -> str:
    """The kind of a device in words, for notes on `AUTO`."""
    return kind_text(device.unit, software=device.software) + ("" if device.present else " that is missing here")


def _verify(place: str) -> Hint:
    return Hint(f"call verify_bundle {place}", f"run `heterocc verify` {place}")


def _split(names: str | Sequence[str]) -> list[str]:
    """The names of a list in order. `AUTO:GPU,CPU` is one name: its candidates extend to the end of the list."""
    if not isinstance(names, str) and not (isinstance(names, Sequence) and all(isinstance(n, str) for n in names)):
        raise UsageError(f'devices must be a string such as "GPU,CPU" or a sequence of names, not {names!r}'[:200])
    text = names if isinstance(names, str) else ",".join(names)
    where = Hint(f"devices={text!r}", f"--devices {text}")
    if not text.strip(" ,"):
        raise UnknownDeviceError(
            "the list of devices is empty",
            where=where,
            hint=Hint(f"for example devices={DEFAULT_DEVICES!r}", f"for example --devices {DEFAULT_DEVICES}"),
        )
    head, auto, candidates = text.upper().partition("AUTO:")
    split = len(head) if auto else len(text)
    found = [name.strip() for name in text[:split].split(",")]
    if auto:
        if found.pop():
            raise UnknownDeviceError(f"'{text}' is not a list of devices", where=where, hint="write AUTO:GPU,CPU")
        found.append("AUTO:" + text[-len(candidates) :].strip() if candidates else "AUTO:")
    if "" in found:
        raise UnknownDeviceError("the list of devices has an empty name", where=where)
    return found


class _Resolver:
    """Resolves lists of names and collects notes."""

    def __init__(self, described: dict[str, TargetDevice], here: Accelerators, precisions: frozenset[str]) -> None:
        self.described = described
        self.here = here
        self.present = here.devices
        self.precisions = precisions
        self.notes: list[str] = []

    def resolve(self, names: list[str]) -> tuple[TargetDevice, ...]:
        devices: list[TargetDevice] = []
        for name in names:
            for device in self._automatic(name) if name.upper().split(":")[0] == "AUTO" else (self._one(name),):
                self._refuse_twice(device, devices)
                devices.append(device)
        last = [d for d in devices if d.last_resort]
        if last and devices[-1] is not last[0]:
            self.notes.append(ORT_IS_LAST)
        return (*(d for d in devices if not d.last_resort), *last)

    def _refuse_twice(self, device: TargetDevice, devices: list[TargetDevice]) -> None:
        for other in devices:
            same = other.backend == device.backend and other.index == device.index and other.present and device.present
            if other.name == device.name or (same and device.backend not in ("cpu", "ort")):
                what = f"'{device.name}'" if other.name == device.name else f"'{other.name}' and '{device.name}'"
                message = (
                    f"device {what} is listed twice" if other.name == device.name else f"{what} are the same device"
                )
                raise UnknownDeviceError(message, hint="list each device once")

    def _one(self, name: str) -> TargetDevice:
        for label, device in self.described.items():
            if label.upper() == name.upper():
                if not device.present:
                    self.notes.append(
                        f"{label} is described by a file and is not on this machine: its code is not checked; "
                        + _verify("on its machine")
                    )
                return device
        match = re.fullmatch(r"([A-Z]+)(?:\.([0-9]{1,3}))?", name.upper())
        if match is None or match[1] not in _LABELS or match[1] == "AUTO":
            raise self._unknown(name)
        label, index = match[1], int(match[2] or 0)
        if label in ("CPU", "ORT"):
            if index:
                raise self._unknown(name)
            device = host_device() if label == "CPU" else ort_device()
        elif label in _ACCELERATORS:
            device = self._accelerator(_ACCELERATORS[label], name, index)
        else:
            device = self._gpu(name, index)
        return dataclasses.replace(device, name=name.upper())

    def _accelerator(self, backend: Backend, name: str, index: int) -> TargetDevice:
        found = [d for d in self.present if d.backend == backend]
        reason = self.here.why_missing(backend)
        if reason is not None:
            hint = "install its driver, or compile for GPU, which without a GPU is a generic target, not checked"
            if backend == "cuda":
                hint = (
                    "`pip install 'heterocc[cuda]'` installs all but the driver; to compile without a GPU, "
                    "describe it in a device file (backend, target.arch)"
                )
            raise DriverMissingError(
                f"device '{name}' is not available: {reason}",
                where=Hint(f"devices={name!r}", f"--devices {name}"),
                hint=hint,
            )
        if index >= len(found):
            raise self._unknown(name)
        return found[index]

    def _gpu(self, name: str, index: int) -> TargetDevice:
        hardware = [d for d in self.present if not d.software and d.unit != "cpu" and d.backend in GPU_BACKENDS]
        first = min((GPU_BACKENDS.index(d.backend) for d in hardware), default=None)
        found = [d for d in hardware if GPU_BACKENDS.index(d.backend) == first]
        if not found:
            software = [d for d in self.present if d.backend in GPU_BACKENDS]
            found = sorted(software, key=lambda d: SOFTWARE_BACKENDS.index(d.backend))
            if index < len(found):
                self.notes.append(
                    f"{name.upper()} is a software device, {found[index].description}: no GPU was found; "
                    "`heterocc devices` shows what is missing"
                )
        if not found and index == 0:
            reason = self.here.why_missing("opencl")
            why = f" ({reason})" if reason else ""
            self.notes.append(
                f"{name.upper()} is a generic OpenCL target: no GPU was found{why}, its code is not checked; "
                + _verify("on a machine with a GPU")
            )
            return generic_gpu()
        if index >= len(found):
            raise self._unknown(name)
        return found[index]

    def _automatic(self, name: str) -> tuple[TargetDevice, ...]:
        _, colon, listed = name.partition(":")
        names = [n.strip() for n in listed.split(",")] if colon else ["GPU", "CPU"]
        if "ORT" in (n.upper() for n in names[:-1]):
            self.notes.append(ORT_IS_LAST)
        if "" in names:
            raise UnknownDeviceError("AUTO: has an empty list of candidates", hint="write AUTO:GPU,CPU")
        if any(n.upper().startswith("AUTO") for n in names):
            raise UnknownDeviceError(
                "AUTO cannot be a candidate of AUTO", where=Hint(f"devices={name!r}", f"--devices {name}")
            )
        quiet = _Resolver(self.described, self.here, self.precisions)
        candidates = [quiet._one(n) for n in names]
        last = [d for d in candidates if d.last_resort]
        ranked = sorted((d for d in candidates if not d.last_resort), key=self._rank)
        if not ranked:
            raise UnknownDeviceError("AUTO has no device to choose from", hint="add CPU to its candidates")
        best = ranked[0]
        if not self.precisions <= best.dtypes:
            missing = ", ".join(sorted(self.precisions - best.dtypes))
            self.notes.append(f"AUTO: no candidate computes {missing}; add one that does, such as CPU, or ORT")
        others = [f"{d.name} ({_kind(d)})" for d in ranked[1:]]
        before = f" before {', '.join(others)}" if others else ""
        self.notes.append(f"AUTO chose {best.name} ({best.description}, {_kind(best)}){before}")
        self.notes.extend(note for note in quiet.notes if note.startswith(best.name + " "))
        return (best, *last)

    def _rank(self, device: TargetDevice) -> tuple[bool, bool, int]:
        """The sort key of a device for `AUTO`, as in heterocc.runtime.select.ranking; ties keep the listed order."""
        computes = self.precisions <= device.dtypes
        return rank(computes=computes, present=device.present, unit=device.unit, software=device.software)

    def _unknown(self, name: str) -> UnknownDeviceError:
        known = ["CPU", *(d.name for d in self.present), *self.described, "ORT", "AUTO"]
        if "GPU" not in known:
            known.insert(1, "GPU")
        return UnknownDeviceError(
            f"there is no device '{name}'",
            where=Hint(f"devices={name!r}", f"--devices {name}"),
            hint=f"known devices: {', '.join(known)}",
        )

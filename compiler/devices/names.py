"""Resolution of device names, such as `--devices GPU,CPU`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from heterocc.artifacts.dtypes import CARRIED, NUMERIC_DTYPES
from heterocc.artifacts.errors import DeviceFileError, DriverMissingError, HeteroccError, Hint, UnknownDeviceError
from heterocc.compiler.devices.choice import ModelTraits, answers, choose
from heterocc.compiler.devices.config import read_config, settings_for
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.file import GENERIC_OPENCL_TARGET, read_device_file
from heterocc.compiler.devices.host import host_cpu
from heterocc.compiler.devices.lists import DEFAULT_DEVICES, parse_list
from heterocc.compiler.devices.present import Accelerators, accelerators
from heterocc.compiler.devices.properties import apply_properties, apply_settings, with_fast_math
from heterocc.runtime.machine.found import GENERIC_GPU_DTYPES
from heterocc.runtime.machine.ranking import GPU_BACKENDS, SOFTWARE_BACKENDS, Backend
from heterocc.runtime.select.request import CANDIDATES, DeviceRequest

ORT_IS_LAST = (
    "ORT is treated as if listed last: it runs only what no other listed device can; to run all nodes in ONNX "
    "Runtime, list ORT alone"
)
"""The note for a list that is reordered."""

_ACCELERATORS: dict[str, Backend] = {"OPENCL": "opencl", "VULKAN": "vulkan", "CUDA": "cuda"}
_LABELS = ("CPU", "GPU", "OPENCL", "VULKAN", "CUDA", "ORT", "AUTO")

SEE_DEVICES = "; `heterocc devices` shows what is missing"
"""The end of notes about a missing device, which the report of that command leaves out."""


def host_device() -> TargetDevice:
    """The CPU of this machine."""
    cpu = host_cpu()
    return TargetDevice(
        name="CPU",
        backend="cpu",
        target=cpu.target,
        description=f"{cpu.name}, {cpu.cores} cores",
        dtypes=NUMERIC_DTYPES | CARRIED.keys(),
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
    names: str | Sequence[str] | DeviceRequest | None = None,
    device_files: Iterable[Path | TargetDevice] = (),
    properties: Iterable[str] = (),
    *,
    config: Path | None = None,
    traits: Callable[[], ModelTraits] = ModelTraits,
    present: Accelerators | None = None,
) -> tuple[tuple[TargetDevice, ...], tuple[str, ...]]:
    """The devices of a priority list, high to low, and notes for the user.

    `names` is in the form of `--devices` (`GPU,CPU`, `AUTO:GPU,CPU`), a sequence of names or a parsed list; None means
    `CPU,ORT`. Case does not matter. `device_files` add devices, or replace `CPU`. `config` is a file of properties,
    which `properties` override. `traits` finds those of the model, for `AUTO`.
    `present` replaces this machine's accelerators. For `MULTI` the result has the devices of all its lists.

    Raises UnknownDeviceError (HC402) for an empty list, an unknown name, a device listed twice or a back end that this
    version lacks, and the errors of the parsers: PropertyError, DeviceFileError and FileMissingError.
    """
    lists, notes = resolve_lists(
        [names if isinstance(names, DeviceRequest) else parse_list(DEFAULT_DEVICES if names is None else names)],
        device_files,
        properties,
        config=config,
        traits=traits,
        present=present,
    )
    every = {d.name: d for devices in lists for d in devices}
    return tuple(sorted(every.values(), key=lambda d: d.last_resort)), notes


def resolve_lists(
    lists: Iterable[DeviceRequest],
    device_files: Iterable[Path | TargetDevice] = (),
    properties: Iterable[str] = (),
    *,
    config: Path | None = None,
    fast_math: bool = False,
    traits: Callable[[], ModelTraits] = ModelTraits,
    present: Accelerators | None = None,
) -> tuple[tuple[tuple[TargetDevice, ...], ...], tuple[str, ...]]:
    """Resolve several lists together. A name is the same device in all lists, and a property may name any device.

    `MULTI:GPU,CPU` among them becomes a list for each of its devices. `fast_math` is for devices without a value of
    the property.
    """
    find = accelerators if present is None else lambda: present
    resolver = _Resolver(_described(device_files), find, traits)
    resolved = [devices for request in lists for devices in resolver.resolve(request)]
    every = {d.name: d for devices in resolved for d in devices}
    properties = tuple(properties)
    devices = tuple(every.values())
    if config is not None:
        settings, unused = settings_for(read_config(config), every, properties)
        devices = apply_settings(devices, settings)
        resolver.notes.extend(unused)
    devices = apply_properties(devices, properties)
    changed = {d.name: d for d in (with_fast_math(devices) if fast_math else devices)}
    return (
        tuple(tuple(changed[d.name] for d in devices) for devices in resolved),
        tuple(dict.fromkeys(resolver.notes)),
    )


def known_devices() -> tuple[TargetDevice, ...]:
    """Every device that can be named on this machine, in the order of `heterocc devices`."""
    return host_device(), *accelerators().devices, ort_device()


def _described(device_files: Iterable[Path | TargetDevice]) -> dict[str, TargetDevice]:
    described: dict[str, TargetDevice] = {}
    for entry in device_files:
        device = entry if isinstance(entry, TargetDevice) else read_device_file(Path(entry))
        if device.name.upper() in (name.upper() for name in described):
            raise DeviceFileError(f"device '{device.name}' is described twice", where=str(entry))
        described[device.name] = device
    return described


def _verify(place: str) -> Hint:
    return Hint(f"call verify_bundle {place}", f"run `heterocc verify` {place}")


class _Resolver:
    """Resolves lists of names and collects notes. It asks drivers only if a name needs it: loading them takes time."""

    def __init__(
        self, described: dict[str, TargetDevice], find: Callable[[], Accelerators], traits: Callable[[], ModelTraits]
    ) -> None:
        self.described = described
        self.find = find
        self.traits = traits
        self.notes: list[str] = []

    @property
    def here(self) -> Accelerators:
        """The accelerators of this machine."""
        return self.find()

    @property
    def present(self) -> tuple[TargetDevice, ...]:
        """Those that have a device."""
        return self.here.devices

    def resolve(self, request: DeviceRequest) -> list[tuple[TargetDevice, ...]]:
        """The devices of each list that a request stands for: one, but with MULTI one for each device."""
        if request.kind == "multi":
            return self._several(request)
        if request.kind == "auto":
            devices = list(self._automatic(request))
            for name in request.then:
                further = self._one(name)
                if further.name not in [d.name for d in devices]:
                    self._refuse_twice(further, devices)
                    devices.append(further)
            return [self._ort_last(devices, quiet=bool(request.names))]
        devices = []
        for name in request.names:
            device = self._one(name)
            self._refuse_twice(device, devices)
            devices.append(device)
        return [self._ort_last(devices)]

    def _ort_last(self, devices: list[TargetDevice], *, quiet: bool = False) -> tuple[TargetDevice, ...]:
        last = [d for d in devices if d.last_resort]
        if last and devices[-1] is not last[0] and not quiet:
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
                    "`pip install nvidia-cuda-nvrtc==13.* nvidia-cuda-runtime==13.*` "
                    "installs all but the driver; to compile without a GPU, "
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
                    f"{name.upper()} is a software device, {found[index].description}: no GPU was found{SEE_DEVICES}"
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

    def _candidates(self, request: DeviceRequest) -> list[TargetDevice]:
        """The devices among which AUTO or MULTI chooses, without excluded and absent ones; ORT is last.

        Raises the error of the first absent one if all are absent.
        """
        word = request.kind.upper()
        where = Hint(f"devices={request.text!r}", f"--devices {request.text}")
        names = request.names or CANDIDATES
        for name in (*names, *request.excluded):
            if name.upper() in ("AUTO", "MULTI", "HETERO") or ":" in name:
                raise UnknownDeviceError(f"{name.upper()} cannot be a candidate of {word}", where=where)
        if "ORT" in (n.upper() for n in names[:-1]):
            self.notes.append(ORT_IS_LAST)
        self._refuse_unknown(request.excluded)
        found: dict[str, TargetDevice] = {}
        missing: HeteroccError | None = None
        for name in names:
            try:
                device = _Resolver(self.described, self.find, self.traits)._one(name)
            except (DriverMissingError, UnknownDeviceError) as error:
                if not self._is_label(name):
                    raise
                missing = missing or error
                self.notes.append(f"{word} skipped {name.upper()}: {error.message}")
                continue
            if not any(answers(device, away) for away in request.excluded):
                found.setdefault(device.name, device)
        if all(d.last_resort for d in found.values()):
            if missing is not None:
                raise missing
            raise UnknownDeviceError(f"{word} has no device to choose from", where=where, hint="add CPU to the list")
        return sorted(found.values(), key=lambda d: d.last_resort)

    def _automatic(self, request: DeviceRequest) -> tuple[TargetDevice, ...]:
        """The best candidate; then the CPU, if it is one, for nodes that the best lacks; then ORT, if it is one."""
        candidates = self._candidates(request)
        traits = self.traits()
        choice = choose([d for d in candidates if not d.last_resort], traits)
        best, precisions = choice.ranked[0], traits.precisions
        if not precisions <= best.dtypes:
            missing = ", ".join(sorted(precisions - best.dtypes))
            self.notes.append(f"AUTO: no candidate computes {missing}; add one that does, such as CPU, or ORT")
        self.notes.append(choice.note())
        rest = [d for d in candidates if d.name == "CPU" and d is not best]
        if rest:
            self.notes.append(f"CPU runs the nodes that {best.name} lacks; AUTO:-CPU forbids it")
        self._note_own(best)
        return (best, *rest, *(d for d in candidates if d.last_resort))

    def _several(self, request: DeviceRequest) -> list[tuple[TargetDevice, ...]]:
        """A list for each candidate, with the CPU, if it is one, for nodes that the candidate lacks."""
        candidates = self._candidates(request)
        after = [d for d in candidates if d.name == "CPU" or d.last_resort]
        lists = [(device, *(d for d in after if d is not device)) for device in candidates if not device.last_resort]
        for first, *_ in lists:
            self._note_own(first)
        names = [devices[0].name for devices in lists]
        each = f"a variant for each of {', '.join(names)}"
        if len(names) == 1:
            each = f"one variant, for {names[0]}, the only device of the list that can be the first of one"
        self.notes.append(f"MULTI compiles {each}; load the bundle with MULTI:{','.join(names)}")
        return lists

    def _note_own(self, device: TargetDevice) -> None:
        """Note what a name stands for, as for a list that names the device."""
        quiet = _Resolver(self.described, self.find, self.traits)
        quiet._one(device.name)
        self.notes.extend(note for note in quiet.notes if note.startswith(device.name + " "))

    def _is_label(self, name: str) -> bool:
        """Return whether a name is one that some machine has."""
        match = re.fullmatch(r"([A-Z]+)(?:\.([0-9]{1,3}))?", name.upper())
        return match is not None and match[1] in _LABELS and (match[1] not in ("CPU", "ORT") or not int(match[2] or 0))

    def _refuse_unknown(self, names: Iterable[str]) -> None:
        for name in names:
            if not self._is_label(name) and name.upper() not in (label.upper() for label in self.described):
                raise self._unknown(name)

    def _unknown(self, name: str) -> UnknownDeviceError:
        known = ["CPU", *(d.name for d in self.present), *self.described, "ORT", "AUTO"]
        if "GPU" not in known:
            known.insert(1, "GPU")
        return UnknownDeviceError(
            f"there is no device '{name}'",
            where=Hint(f"devices={name!r}", f"--devices {name}"),
            hint=f"known devices: {', '.join(known)}",
        )

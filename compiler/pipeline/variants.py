"""The variants of one bundle: the devices, name and affinity of each."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from heterocc.artifacts.errors import Hint, UsageError
from heterocc.artifacts.manifest import Range
from heterocc.compiler.devices.device import TargetDevice
from heterocc.passes.affinity import Affinity
from heterocc.passes.graph import Node
from heterocc.passes.plan import Plan
from heterocc.runtime.machine.ranking import GPU_BACKENDS

MAIN = "main"
CPU = "cpu"
MAX_NAME = 100
"""Maximum number of characters of a variant's name, which is part of members' names."""


@dataclass(frozen=True, slots=True)
class VariantSpec:
    """A variant to compile: its name in the bundle, the devices it may use, and the user's affinity for it.

    `automatic` marks the CPU-only variant that is added by default, which may fail without an error. `shapes` are those
    of the model's inputs, by the model's names, `bounds` those of their dynamic dimensions. `choice` is the name of the
    variant for the first shapes on the same choice of devices.
    """

    name: str
    devices: tuple[TargetDevice, ...]
    affinity: Affinity
    automatic: bool = False
    shapes: Mapping[str, tuple[int | str | None, ...]] = field(default_factory=dict)
    choice: str | None = None
    bounds: Mapping[str, Range] = field(default_factory=dict)

    @property
    def is_main(self) -> bool:
        """Whether it is the main variant, for whatever shapes."""
        return MAIN in (self.name, self.choice)

    @property
    def prefix(self) -> str:
        """The prefix of the names of the variant's dumps; empty for the main variant."""
        return "" if self.name == MAIN else self.name


def variant_specs(
    lists: Sequence[tuple[TargetDevice, ...]], nodes: Sequence[Node], affinity: Affinity
) -> tuple[tuple[VariantSpec, ...], tuple[str, ...]]:
    """The main variant and those of `--variant`, from their lists of devices, and notes on ignored pins.

    A variant ignores a pin to a device that it does not list but another variant does. A pin to a device that no
    variant lists is kept, and fails when nodes are placed. Raises UsageError (HC120) if two lists are the same.
    """
    _refuse_twice(lists)
    taken: set[str] = {CPU} if not any(_is_cpu(devices) for devices in lists) else set()
    specs: list[VariantSpec] = []
    notes: list[str] = []
    everywhere = {d.name for devices in lists for d in devices}
    for number, devices in enumerate(lists):
        name = _free_name(devices, taken) if number else MAIN
        taken.add(name)
        foreign = sorted(everywhere - {d.name for d in devices})
        own, ignored = _own_pins(affinity, foreign, nodes)
        specs.append(VariantSpec(name, devices, own))
        if ignored:
            notes.append(f"variant {name} ignores {ignored}: it does not list {', '.join(foreign)}")
    return tuple(specs), tuple(notes)


def last_resort_of(spec: VariantSpec) -> VariantSpec:
    """The variant with its devices of last resort alone, for sizes that are excluded from the code for others."""
    return replace(spec, devices=tuple(d for d in spec.devices if d.last_resort), affinity=Affinity(mode="automatic"))


def cpu_specs(
    specs: Iterable[VariantSpec], used: Iterable[Collection[str]]
) -> tuple[tuple[VariantSpec, ...], str | None]:
    """The CPU-only variants to add beside the placed `specs`, one for each CPU target of the first that lists a CPU.

    `used` are the devices of each spec's nodes, for all shapes. None if one of them runs on the CPU alone or, with a
    note, if no CPU is listed.
    """
    specs = tuple(specs)
    backend = {d.name: d.backend for spec in specs for d in spec.devices}
    if any({backend[name] for name in names} <= {"cpu", "ort"} for names in used):
        return (), None
    lists = [tuple(d for d in spec.devices if d.backend in ("cpu", "ort")) for spec in specs]
    lists = [devices for devices in lists if any(d.backend == "cpu" for d in devices)]
    first = [devices for devices in lists if _labels(devices) == _labels(lists[0])]
    taken = {spec.name for spec in specs}
    found: list[VariantSpec] = []
    for devices in first:
        if devices not in [spec.devices for spec in found]:
            name = _free_name(devices, taken) if found else CPU
            taken.add(name)
            # Pins may name devices that this variant lacks.
            found.append(VariantSpec(name, devices, Affinity(mode="automatic"), automatic=True))
    if found:
        return tuple(found), None
    return (
        (),
        "no CPU variant: CPU is not listed; if it is listed last, the bundle also runs without the other devices",
    )


def all_devices(lists: Iterable[tuple[TargetDevice, ...]]) -> tuple[TargetDevice, ...]:
    """The devices of several lists, each name once, in order; devices of last resort come last."""
    found: Mapping[str, TargetDevice] = {d.name: d for devices in lists for d in devices}
    return tuple(sorted(found.values(), key=lambda d: d.last_resort))


def one_for_each_code(specs: Sequence[VariantSpec], plans: Sequence[Plan]) -> tuple[VariantSpec, ...]:
    """The specs without those that differ from an earlier one only in the target of a CPU that gets no node."""
    kept: list[VariantSpec] = []
    seen: list[tuple[TargetDevice, ...]] = []
    for spec, plan in zip(specs, plans, strict=True):
        used = set(plan.device_of.values())
        idle = {d.name for d in spec.devices if d.backend == "cpu" and d.settings.cpu is not None} - used
        plain = tuple(
            replace(d, target={}, present=True, properties={}, flops=None) if d.name in idle else d
            for d in spec.devices
        )
        if not idle or plain not in seen:
            kept.append(spec)
            seen.append(plain)
    return tuple(kept)


def _labels(devices: Iterable[TargetDevice]) -> list[str]:
    return [d.name for d in devices]


def _is_cpu(devices: tuple[TargetDevice, ...]) -> bool:
    return [d.name for d in devices] == ["CPU"]


def _refuse_twice(lists: Sequence[tuple[TargetDevice, ...]]) -> None:
    seen: list[tuple[tuple[TargetDevice, ...], str]] = []
    for devices in lists:
        labels = ",".join(d.name for d in devices)
        # GPUs of this machine are compared without their names: GPU may be the same device as OPENCL.
        plain = tuple(replace(d, name="") if d.present and d.backend in GPU_BACKENDS else d for d in devices)
        other = next((labels for same, labels in seen if same == plain), None)
        if other is not None:
            what = f"'{labels}' is given twice" if other == labels else f"'{other}' and '{labels}' are the same variant"
            raise UsageError(
                what,
                where=Hint(f"variants=[{labels!r}]", f"--variant {labels}"),
                hint="list other devices, or the same in another order",
            )
        seen.append((plain, labels))


def _free_name(devices: tuple[TargetDevice, ...], taken: set[str]) -> str:
    targets = [d.settings.cpu for d in devices if d.settings.cpu is not None]
    base = "-".join((*(d.name.lower() for d in devices), *targets))[:MAX_NAME]
    name, number = base, 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    return name


def _own_pins(affinity: Affinity, foreign: Sequence[str], nodes: Sequence[Node]) -> tuple[Affinity, str]:
    """The affinity without rules for devices of other variants, and a description of what was removed."""
    away = frozenset(name.upper() for name in foreign)
    rules = tuple(rule for rule in affinity.rules if rule.device.upper() not in away)
    dropped = len(affinity.rules) - len(rules)
    metadata = sum(n.affinity is not None and n.affinity.upper() in away for n in nodes)
    if affinity.mode == "automatic" or not (dropped or metadata):
        return affinity, ""
    # Nodes that only removed rules cover are placed automatically.
    mode = "corrected" if affinity.mode == "manual" else affinity.mode
    removed = [f"{dropped} affinity rule{'s' * (dropped != 1)}"] if dropped else []
    removed += [f"the model's own affinity of {metadata} node{'s' * (metadata != 1)}"] if metadata else []
    return Affinity(mode, rules, away), " and ".join(removed)

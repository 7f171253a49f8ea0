"""The choice of `AUTO` among devices, by a table that looks at the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heterocc.compiler.devices.device import TargetDevice
from heterocc.runtime.machine.ranking import GPU_BACKENDS, Unit, kind_text, label_of

FLOAT32 = frozenset(["float32"])

SMALL_FLOPS = 2e7
"""Below this work of a run, a CPU is done before a GPU's launches and transfers, some tens of microseconds, are."""

_DEFAULT: tuple[Unit, ...] = ("discrete", "integrated", "cpu", "other")
_QUANTISED: tuple[Unit, ...] = ("discrete", "cpu", "integrated", "other")
_SMALL: tuple[Unit, ...] = ("cpu", "discrete", "integrated", "other")


@dataclass(frozen=True, slots=True)
class ModelTraits:
    """The traits of a model that `AUTO` considers; the defaults have no effect.

    `precisions` are the floating-point dtypes that it computes; `quantised`: it has operators on 8-bit data. `flops` is
    the estimated work of a run in FLOP, None if it depends on dimensions that are not known; `weights` is in bytes.
    """

    precisions: frozenset[str] = FLOAT32
    quantised: bool = False
    flops: float | None = None
    weights: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """Devices in the order of `AUTO`, and the reason in words if it is not the usual order of kinds."""

    ranked: tuple[TargetDevice, ...]
    reason: str | None

    def note(self) -> str:
        """The note on the chosen device."""
        best, *others = self.ranked
        before = f" before {', '.join(f'{d.name} ({_kind(d)})' for d in others)}" if others else ""
        because = f", because {self.reason}" if others and self.reason else ""
        return f"AUTO chose {best.name} ({best.description}, {_kind(best)}){before}{because}"


def choose(candidates: Sequence[TargetDevice], traits: ModelTraits) -> Choice:
    """Rank devices for a model; docs/devices.md has the table. Devices of equal rank keep their order."""
    order, reason = _order(traits)

    def key(device: TargetDevice) -> tuple[bool, bool, bool, int]:
        place = order.index("other" if device.software else device.unit)
        return not traits.precisions <= device.dtypes, not _holds(device, traits), not device.present, place

    ranked = tuple(sorted(candidates, key=key))
    left = [d for d in ranked if not _holds(d, traits)]
    if left and _holds(ranked[0], traits):
        reason = f"the weights, {traits.weights / 1e6:.0f} MB, exceed the memory of {left[0].name}"
    return Choice(ranked, reason)


def answers(device: TargetDevice, name: str) -> bool:
    """Return whether a device has a name: its own, its back end and number, or `GPU` if it is one."""
    wanted = name.upper().removesuffix(".0")
    names = {device.name.upper().removesuffix(".0"), label_of(device.backend, device.index)}
    return wanted in names or (wanted == "GPU" and device.backend in GPU_BACKENDS)


def _order(traits: ModelTraits) -> tuple[tuple[Unit, ...], str | None]:
    if traits.flops is not None and traits.flops < SMALL_FLOPS:
        return _SMALL, f"the model is small ({traits.flops / 1e6:.2g} MFLOP)"
    if traits.quantised:
        return _QUANTISED, "the model is quantised"
    return _DEFAULT, None


def _holds(device: TargetDevice, traits: ModelTraits) -> bool:
    return device.memory is None or traits.weights <= device.memory


def _kind(device: TargetDevice) -> str:
    """The kind of a device in words."""
    return kind_text(device.unit, software=device.software) + ("" if device.present else " that is missing here")

"""What timing kernels on their devices chose, as the report and the bundle tell it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line starts without what lowering and devices need
    from heterocc.compiler.devices.device import TargetDevice
    from heterocc.compiler.lower.backend import Tuned


@dataclass(frozen=True, slots=True)
class TunedPartition:
    """The kernels of one partition that were timed."""

    partition: str
    device: str
    kernels: tuple[Tuned, ...]

    def sentence(self) -> str:
        """What was gained, in one sentence without a full stop; the same whether timed now or by an earlier compile."""
        changed = sum(k.changed for k in self.kernels)
        before, after = (sum(times) * 1e3 for times in zip(*((k.before, k.after) for k in self.kernels), strict=True))
        return (
            f"{self.partition} on {self.device} is tuned: {changed} of {len(self.kernels)} kernels timed got another "
            f"schedule; one run of each takes {after:.3g} ms instead of {before:.3g} ms"
        )

    def to_json(self, variant: str) -> dict[str, object]:
        """As `heterocc compile --json` prints it; times are in seconds."""
        return {
            "variant": variant,
            "partition": self.partition,
            "device": self.device,
            "kernels": [
                {
                    "kernel": k.kernel,
                    "nodes": list(k.nodes),
                    "schedule": k.schedule,
                    "changed": k.changed,
                    "candidates": k.candidates,
                    "before": k.before,
                    "after": k.after,
                    "remembered": k.remembered,
                }
                for k in self.kernels
            ],
        }


def remembered(found: Sequence[TunedPartition]) -> str:
    """How much of it an earlier compile had timed, for the end of a note; empty for nothing."""
    kernels = [k for part in found for k in part.kernels]
    count = sum(k.remembered for k in kernels)
    return f" ({count} known from an earlier compile)" if count else ""


def left_out(devices: Iterable[TargetDevice]) -> list[str]:
    """Why a device is not tuned for though that was asked, in one sentence each."""
    return [
        f"{d.name}.tune=on is left out: kernels are timed on the device itself, which is not here"
        for d in devices
        if d.tunes and not d.present
    ]

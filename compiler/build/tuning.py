"""The results of timing kernels on their devices, for the report and the bundle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line starts without the libraries of lowering and devices
    from heterocc.compiler.devices.device import TargetDevice
    from heterocc.compiler.lower.backend import Tuned


@dataclass(frozen=True, slots=True)
class TunedPartition:
    """The kernels of one partition that were timed."""

    partition: str
    device: str
    kernels: tuple[Tuned, ...]

    @property
    def changed(self) -> int:
        """The number of kernels that got another schedule than that of the static models."""
        return sum(k.changed for k in self.kernels)

    def sentence(self) -> str:
        """The gain, in one sentence without a full stop, which does not depend on which compile timed the kernels."""
        before, after = (sum(times) * 1e3 for times in zip(*((k.before, k.after) for k in self.kernels), strict=True))
        return (
            f"{self.partition} on {self.device} is tuned: {self.changed} of {len(self.kernels)} kernels timed got "
            f"another schedule; one run of each takes {after:.3g} ms instead of {before:.3g} ms"
        )

    def to_json(self, variant: str) -> dict[str, object]:
        """The form of `heterocc compile --json`; times are in seconds."""
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
    """The number of kernels timed by an earlier compile, for the end of a note; empty if there are none."""
    kernels = [k for part in found for k in part.kernels]
    count = sum(k.remembered for k in kernels)
    return f" ({count} known from an earlier compile)" if count else ""


def left_out(devices: Iterable[TargetDevice]) -> list[str]:
    """One sentence for each device that requests tuning but is not present."""
    return [
        f"{d.name}.tune=on is ignored: kernels are timed on the device itself, which is not present"
        for d in devices
        if d.tunes and not d.present
    ]

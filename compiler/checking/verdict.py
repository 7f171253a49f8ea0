"""The verdict of the check on each partition: right, wrong, or not compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heterocc.compiler.checking.precision_cost import PrecisionCost
from heterocc.compiler.lower.backend import PartitionJob


@dataclass(frozen=True, slots=True)
class Fault:
    """A node that a device computes wrongly, or several that cannot be distinguished."""

    device: str
    nodes: tuple[str, ...]
    error: str


@dataclass(frozen=True, slots=True)
class Right:
    """A partition whose outputs equal the reference's.

    `unseen` are the reasons why the comparison of some outputs proves nothing. `cost` is the error of half precision,
    or None. `binaries` are the driver's binaries of the kernels, empty if the bundle does not keep them.
    """

    unseen: tuple[str, ...] = ()
    cost: PrecisionCost | None = None
    binaries: bytes = b""


@dataclass(frozen=True, slots=True)
class Wrong:
    """A partition with faults, at least one."""

    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class Unchecked:
    """A partition that could not be run, or whose outputs show nothing; `cost` and `binaries` as in Right."""

    reason: str
    cost: PrecisionCost | None = None
    binaries: bytes = b""


Verdict = Right | Wrong | Unchecked


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The verdict on each partition of a built plan, in run order.

    `costs` are the errors of half precision: of each partition, and of the model's outputs if all of it was compared.
    `remembered` are the names of partitions that an earlier compile compared.
    """

    jobs: tuple[PartitionJob, ...]
    verdicts: tuple[Verdict, ...]
    costs: tuple[PrecisionCost, ...] = ()
    remembered: tuple[str, ...] = ()

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The faults of all partitions."""
        return tuple(fault for v in self.verdicts if isinstance(v, Wrong) for fault in v.faults)

    @property
    def unchecked(self) -> tuple[str, ...]:
        """One line with the reason for each partition that was not compared, or only in part."""
        found = []
        for job, verdict in zip(self.jobs, self.verdicts, strict=True):
            reason = _reason(verdict)
            if reason:
                found.append(f"{job.name} on {job.device.name} ({len(job.nodes)} nodes): {reason}")
        return tuple(found)

    @property
    def checked(self) -> tuple[bool, ...]:
        """For each partition, whether it was compared and found correct."""
        return tuple(isinstance(v, Right) for v in self.verdicts)

    @property
    def binaries(self) -> tuple[bytes, ...]:
        """The driver's binaries of each partition."""
        return tuple(b"" if isinstance(v, Wrong) else v.binaries for v in self.verdicts)


def _reason(verdict: Verdict) -> str:
    """The reasons why a partition was not compared, or not completely; empty if it was."""
    if isinstance(verdict, Unchecked):
        return verdict.reason
    return joined(verdict.unseen) if isinstance(verdict, Right) else ""


def joined(reasons: Sequence[str]) -> str:
    """Several reasons in one text, each once."""
    return "; ".join(dict.fromkeys(reasons))

"""What a compile tells: progress while it runs, and the report it ends with."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from heterocc.compiler.build.tuning import TunedPartition
from heterocc.compiler.checking.precision_cost import PrecisionCost
from heterocc.passes.plan import Plan
from heterocc.passes.printer import count, human_bytes, summary


class Reporter:
    """Collects notes and warnings; a command line shows them and progress by overriding the methods.

    Notes say what was decided without being asked; warnings say what the user should look at. Nothing that changes a
    result may stay untold, so both end up in the report and in the bundle.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def note(self, text: str) -> None:
        """Say what was decided without being asked."""
        if text not in self.notes:
            self.notes.append(text)

    def warn(self, text: str) -> None:
        """Say what the user should look at."""
        if text not in self.warnings:
            self.warnings.append(text)

    @contextmanager
    def stage(self, title: str, total: int | None = None) -> Iterator[Progress]:
        """A stage of long work; `total` is its number of steps where known."""
        yield Progress()


class Progress:
    """Progress inside a stage; this base shows nothing."""

    def begin(self, text: str) -> None:
        """Work on an item begins."""

    def phase(self, text: str, total: int | None = None) -> None:
        """A phase of the work on the item begins: counting starts anew, to `total` where that is known."""

    def item(self, text: str) -> None:
        """Work on the next step of the phase begins; `text` names it."""

    def step(self, text: str = "", steps: int = 1) -> None:
        """Steps are done; `text` names the item, where `begin` has not."""


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add the wall time of the block to `seconds[name]`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass(frozen=True, slots=True)
class Moved:
    """A node that compiled to a wrong result and went to another device."""

    node: str
    op_type: str
    source: str
    target: str
    error: str


@dataclass(frozen=True, slots=True)
class VariantPlan:
    """A variant's name and how it is placed."""

    name: str
    plan: Plan

    def __repr__(self) -> str:
        return f"<VariantPlan {self.name}: {self.summary}>"

    @property
    def summary(self) -> str:
        """The placement in one line."""
        return summary(self.plan)

    def to_json(self) -> dict[str, object]:
        """As `heterocc compile --json` prints it."""
        plan = self.plan
        return {
            "name": self.name,
            "devices": [d.name for d in plan.machine.devices],
            "summary": self.summary,
            "partitions": [
                {"name": f"p{i}", "device": p.device, "nodes": len(p.nodes)} for i, p in enumerate(plan.partitions)
            ],
            "transfers": [
                {"value": t.value, "from": t.source, "to": t.target, "bytes": t.nbytes} for t in plan.transfers
            ],
        }


@dataclass(frozen=True)
class CompileReport:
    """What a compile did.

    `plan` and `summary` are the main variant's, `plans` has all variants in the bundle's order and `variants` the names
    of those that were packed. `unchecked` are partitions that could not be run here, with the reason. `costs` are the
    errors of what is computed in half precision, and `tuned` is what timing kernels chose, each with its variant.
    `seconds` is wall time by stage. `output` is None where the compile was stopped before packing.
    """

    plan: Plan
    summary: str
    output: Path | None = None
    size: int = 0
    variants: tuple[str, ...] = ()
    plans: tuple[VariantPlan, ...] = ()
    moved: tuple[Moved, ...] = ()
    unchecked: tuple[str, ...] = ()
    costs: tuple[tuple[str, PrecisionCost], ...] = ()
    tuned: tuple[tuple[str, TunedPartition], ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    pass_seconds: tuple[tuple[str, float], ...] = ()

    def __repr__(self) -> str:
        """One short line; the fields themselves hold the whole plan."""
        output = "no bundle" if self.output is None else f"{self.output}, {human_bytes(self.size)}"
        counts = [("note", self.notes), ("warning", self.warnings), ("moved node", self.moved)]
        told = "".join(f"; {count(len(found), noun)}" for noun, found in counts if found)
        return f"<CompileReport {self.summary}; {output}{told}>"

    def lines(self) -> tuple[str, ...]:
        """The summary; of several variants one line each, with its name."""
        if len(self.plans) < 2:
            return (self.summary,)
        return tuple(f"{variant.name}: {variant.summary}" for variant in self.plans)

    def to_json(self) -> dict[str, object]:
        """As `heterocc compile --json` prints it."""
        main = VariantPlan("main", self.plan).to_json()
        return {
            "output": None if self.output is None else str(self.output),
            "bytes": self.size,
            "summary": self.summary,
            "variants": list(self.variants),
            "partitions": main["partitions"],
            "transfers": main["transfers"],
            "plans": [variant.to_json() for variant in self.plans],
            "moved": [
                {"node": m.node, "op_type": m.op_type, "from": m.source, "to": m.target, "error": m.error}
                for m in self.moved
            ],
            "unchecked": list(self.unchecked),
            "precision": [{"variant": variant, **cost.to_json()} for variant, cost in self.costs],
            "tuned": [part.to_json(variant) for variant, part in self.tuned],
            "notes": list(self.notes),
            "warnings": list(self.warnings),
            "seconds": {k: round(v, 3) for k, v in self.seconds.items()},
            "passes": [{"pass": name, "seconds": round(s, 6)} for name, s in self.pass_seconds],
        }

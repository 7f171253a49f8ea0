"""The report of a compile."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from heterocc.compiler.build.tuning import TunedPartition
from heterocc.compiler.checking.precision_cost import PrecisionCost
from heterocc.passes.plan import Plan
from heterocc.passes.printer import count, human_bytes, summary


@dataclass(frozen=True, slots=True)
class Moved:
    """A node that failed to compile, or computed a wrong result, on one device and was moved to another."""

    node: str
    op_type: str
    source: str
    target: str
    error: str


@dataclass(frozen=True, slots=True)
class VariantPlan:
    """A variant's name and its plan."""

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
    """The results of a compile.

    `output` is the bundle's path and `size` its bytes; `output` is None if the compile stopped before packing. `plan`
    and `summary` belong to the main variant. `plans` has all variants in the bundle's order, `variants` the names of
    those that were packed. `moved` are nodes that were moved to another device by the check. `unchecked` are partitions
    and outputs that were not checked, with reasons. `costs` are the errors that half precision adds, and `tuned` the
    partitions with tuned kernels, each with its variant. `seconds` is wall time by stage, `pass_seconds` by pass.
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
        rest = "".join(f"; {count(len(found), noun)}" for noun, found in counts if found)
        return f"<CompileReport {self.summary}; {output}{rest}>"

    def lines(self) -> tuple[str, ...]:
        """The summary; with several variants, a line for each with its name."""
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

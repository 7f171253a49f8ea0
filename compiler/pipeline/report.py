"""The report of a compile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from heterocc.artifacts.records import Record
from heterocc.compiler.build.tuning import TunedPartition
from heterocc.compiler.checking.compressing import Compression
from heterocc.compiler.checking.precision_cost import PrecisionCost, cost_sentences
from heterocc.compiler.pipeline.variants import VariantSpec
from heterocc.passes.plan import Plan
from heterocc.passes.show.printer import count, human_bytes, human_seconds, summary


@dataclass(frozen=True, slots=True)
class Moved:
    """A node that failed to compile, or computed a wrong result, on one device and was moved to another.

    `error` is the reason.
    """

    node: str
    op_type: str
    source: str
    target: str
    error: str

    def sentence(self) -> str:
        """The move and its reason, in one sentence without a full stop."""
        return f"{self.op_type} '{self.node}' moved from {self.source} to {self.target}: {self.error}"


class TimedPlan(Record):
    """A plan that the policy `measured` considered: the seconds of an undisturbed run, or why it was not timed.

    `also` are the names of other plans that are the same. With several sizes `each` has the seconds at each, and
    `seconds` is their geometric mean; `where` says for which sizes a plan is kept, if not for all.
    """

    name: str
    seconds: float | None = None
    why_not: str | None = None
    kept: bool = False
    also: tuple[str, ...] = ()
    each: tuple[float, ...] = ()
    where: str = ""

    def text(self) -> str:
        """`merge 1.2 ms (kept)`, `merge 8 us, 1.2 ms (kept for n up to 32)`, or the reason."""
        if self.why_not is not None:
            return f"{self.name} not possible ({self.why_not})"
        times = self.each or (() if self.seconds is None else (self.seconds,))
        time = f" {' | '.join(map(human_seconds, times))}" if times else ""
        kept = f" (kept{' ' * bool(self.where)}{self.where})" if self.kept else ""
        return f"{' = '.join((self.name, *self.also))}{time}{kept}"

    def to_json(self, variant: str) -> dict[str, object]:
        """As `heterocc compile --json` prints it, in microseconds."""
        spent = None if self.seconds is None else round(self.seconds * 1e6, 3)
        return {
            "variant": variant,
            "plan": self.name,
            "also": list(self.also),
            "p10_us": spent,
            "each_us": [round(seconds * 1e6, 3) for seconds in self.each],
            "kept": self.kept,
            "where": self.where,
            "why_not": self.why_not,
        }


@dataclass(frozen=True, slots=True)
class PlacedVariant:
    """A variant and its plan; once it is built, also the results of its build and check, without the code.

    `moved` are nodes that were moved to another device by the build or the check. `unchecked` are partitions that were
    not compared, or only in part, with the reason. `costs` are the errors that half precision adds, `tuned` the
    partitions with tuned kernels, `timed` the plans that the policy `measured` considered. `remembered` are the names
    of partitions that an earlier compile compared.
    """

    spec: VariantSpec
    plan: Plan
    moved: tuple[Moved, ...] = ()
    unchecked: tuple[str, ...] = ()
    costs: tuple[PrecisionCost, ...] = ()
    tuned: tuple[TunedPartition, ...] = ()
    timed: tuple[TimedPlan, ...] = ()
    remembered: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<PlacedVariant {self.name}: {self.summary}>"

    @property
    def name(self) -> str:
        """The name in the bundle."""
        return self.spec.name

    @property
    def shapes(self) -> Mapping[str, tuple[int | str | None, ...]]:
        """The shapes of the model's inputs, by their names in the model."""
        return self.spec.shapes

    @property
    def summary(self) -> str:
        """The placement in one line."""
        return summary(self.plan)

    @property
    def check_notes(self) -> tuple[str, ...]:
        """One sentence for each limit of the check, and for the cost of half precision on each device."""
        return (*(f"not checked: {text}" for text in self.unchecked), *cost_sentences(self.costs))

    def to_json(self) -> dict[str, object]:
        """As `heterocc compile --json` prints it."""
        return {
            "name": self.name,
            "devices": [d.name for d in self.plan.machine.devices],
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "summary": self.summary,
            **_partitions_json(self.plan),
        }


@dataclass(frozen=True)
class CompileReport:
    """The results of a compile.

    `output` is the bundle's path and `size` its bytes; `output` is None if the compile stopped before packing. `plan`
    and `summary` belong to the main variant. `plans` has all variants in the bundle's order, `variants` the names of
    those that were packed. `unseen` are the outputs that the check compares in no variant, with reasons. `seconds` is
    wall time by stage, `pass_seconds` by pass. `weights` is what the compression of weights saves and costs.
    """

    plan: Plan
    summary: str
    output: Path | None = None
    size: int = 0
    variants: tuple[str, ...] = ()
    plans: tuple[PlacedVariant, ...] = ()
    unseen: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    pass_seconds: tuple[tuple[str, float], ...] = ()
    weights: Compression | None = None

    def __repr__(self) -> str:
        """One short line; the fields themselves hold the whole plan."""
        output = "no bundle" if self.output is None else f"{self.output}, {human_bytes(self.size)}"
        counts = [("note", self.notes), ("warning", self.warnings), ("moved node", self.moved)]
        rest = "".join(f"; {count(len(found), noun)}" for noun, found in counts if found)
        return f"<CompileReport {self.summary}; {output}{rest}>"

    @property
    def moved(self) -> tuple[Moved, ...]:
        """The nodes of all variants that computed a wrong result, or did not compile, on a device."""
        return tuple(m for variant in self.plans for m in variant.moved)

    @property
    def unchecked(self) -> tuple[str, ...]:
        """The outputs of the model, then the partitions by variant, that were not compared, with reasons."""
        return (*self.unseen, *(f"{variant.name}: {text}" for variant in self.plans for text in variant.unchecked))

    @property
    def costs(self) -> tuple[tuple[str, PrecisionCost], ...]:
        """The errors of half precision, each with its variant's name."""
        return tuple((variant.name, cost) for variant in self.plans for cost in variant.costs)

    @property
    def tuned(self) -> tuple[tuple[str, TunedPartition], ...]:
        """The partitions with tuned kernels, each with its variant's name."""
        return tuple((variant.name, part) for variant in self.plans for part in variant.tuned)

    @property
    def timed(self) -> tuple[tuple[str, TimedPlan], ...]:
        """The plans that the policy `measured` considered, each with its variant's name."""
        return tuple((variant.name, plan) for variant in self.plans for plan in variant.timed)

    @property
    def remembered(self) -> tuple[tuple[str, str], ...]:
        """The partitions that an earlier compile compared with ONNX Runtime, each with its variant's name."""
        return tuple((variant.name, name) for variant in self.plans for name in variant.remembered)

    def lines(self) -> tuple[str, ...]:
        """The summary; with several variants, a line for each with its name."""
        if len(self.plans) < 2:
            return (self.summary,)
        return tuple(f"{variant.name}: {variant.summary}" for variant in self.plans)

    def remembered_lines(self) -> tuple[str, ...]:
        """A line for each variant with partitions that an earlier compile compared with ONNX Runtime."""
        return tuple(
            f"{variant.name}: {count(len(variant.remembered), 'partition')} found right by an earlier compile of the "
            "same model (--recheck compares again)"
            for variant in self.plans
            if variant.remembered
        )

    def to_json(self) -> dict[str, object]:
        """As `heterocc compile --json` prints it."""
        return {
            "output": None if self.output is None else str(self.output),
            "bytes": self.size,
            "summary": self.summary,
            "variants": list(self.variants),
            **_partitions_json(self.plan),
            "plans": [variant.to_json() for variant in self.plans],
            "moved": [
                {"node": m.node, "op_type": m.op_type, "from": m.source, "to": m.target, "error": m.error}
                for m in self.moved
            ],
            "unchecked": list(self.unchecked),
            "remembered": [{"variant": variant, "partition": name} for variant, name in self.remembered],
            "precision": [{"variant": variant, **cost.to_json()} for variant, cost in self.costs],
            "tuned": [part.to_json(variant) for variant, part in self.tuned],
            "measured": [plan.to_json(variant) for variant, plan in self.timed],
            "weights": None if self.weights is None else self.weights.to_json(),
            "notes": list(self.notes),
            "warnings": list(self.warnings),
            "seconds": {k: round(v, 3) for k, v in self.seconds.items()},
            "passes": [{"pass": name, "seconds": round(s, 6)} for name, s in self.pass_seconds],
        }


def _partitions_json(plan: Plan) -> dict[str, object]:
    """The partitions and transfers of a plan."""
    return {
        "partitions": [
            {"name": f"p{i}", "device": p.device, "nodes": len(p.nodes)} for i, p in enumerate(plan.partitions)
        ],
        "transfers": [{"value": t.value, "from": t.source, "to": t.target, "bytes": t.nbytes} for t in plan.transfers],
    }

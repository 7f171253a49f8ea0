"""Placing, lowering and checking of one variant after another; nodes that fail are placed on other devices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from heterocc.artifacts.errors import UnsupportedOpError, WrongResultError
from heterocc.compiler.build.build import Builder, BuiltPlan, DoesNotLower
from heterocc.compiler.build.pack import Piece, VariantParts
from heterocc.compiler.checking.check import Checker, CheckResult, Wrong
from heterocc.compiler.checking.precision_cost import told
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.placement.machine import build_machine
from heterocc.compiler.placement.run_passes import Trace, run_pipeline
from heterocc.compiler.progress import Reporter, timed
from heterocc.compiler.report import Moved
from heterocc.compiler.support.query import QueryResult
from heterocc.compiler.support.remedy import add_device
from heterocc.compiler.variants import MAIN, VariantSpec
from heterocc.passes.base import Pass
from heterocc.passes.plan import Plan
from heterocc.passes.printer import print_plan, summary


@dataclass(frozen=True, slots=True)
class BuiltVariant:
    """A variant's code; `checks` is None if nothing was checked, `moved` are nodes that were moved to other devices."""

    spec: VariantSpec
    built: BuiltPlan
    checks: CheckResult | None
    moved: tuple[Moved, ...]

    @property
    def plan(self) -> Plan:
        """The final plan."""
        return self.built.plan

    def parts(self, model: ImportedModel) -> VariantParts:
        """The contents of the variant in the bundle."""
        built, checks = self.built, self.checks
        checked = checks.checked if checks is not None else (False,) * len(built.jobs)
        binaries = checks.binaries if checks is not None else (b"",) * len(built.jobs)
        pieces = tuple(Piece(*p) for p in zip(built.jobs, built.lowered, checked, binaries, strict=True))
        notes = tuple(f"not checked: {text}" for text in (checks.unchecked if checks else ()))
        if checks is None and pieces:
            notes = ("not checked: compiled without the check",)
        tuned = tuple(part.sentence() for part in built.tuned)
        moved = tuple(f"{m.op_type} '{m.node}' moved from {m.source} to {m.target}: {m.error}" for m in self.moved)
        return VariantParts(
            name=self.spec.name,
            devices=self.spec.devices,
            pieces=pieces,
            inputs=model.graph.inputs,
            outputs=model.graph.outputs,
            plan=print_plan(built.plan),
            summary=summary(built.plan),
            notes=notes + told(checks.costs if checks else ()) + tuned + moved,
        )


@dataclass
class Variants:
    """Places and builds the variants of one model.

    `wrong[device][node]` is the reason why a node failed on a device; placement avoids the pair in every variant.
    """

    model: ImportedModel
    query: QueryResult
    passes: tuple[Pass, ...]
    trace: Trace
    reporter: Reporter
    seconds: dict[str, float]
    wrong: dict[str, dict[str, str]] = field(default_factory=dict)

    def place(self, spec: VariantSpec) -> Plan:
        """Run the passes for a variant's devices. Errors of the passes name the variant."""
        with self.reporter.stage("placing"), timed(self.seconds, "partition"), _naming(spec):
            seen = build_machine(self.model, spec.devices, self.query.reasons())
            refusals = {d.name: {**seen.refusals.get(d.name, {}), **self.wrong.get(d.name, {})} for d in spec.devices}
            initial = Plan.initial(self.model.graph, replace(seen, refusals=refusals), spec.affinity)
            try:
                return run_pipeline(initial, self.passes, self.trace, variant=spec.prefix)
            except UnsupportedOpError as error:
                if type(error) is UnsupportedOpError:  # no device can run the node; subclasses concern one device
                    error.hint = add_device(self.model, spec.devices, refusals) or error.hint
                raise

    def build(self, spec: VariantSpec, plan: Plan, builder: Builder, checker: Checker | None) -> BuiltVariant:
        """Lower and check a placed variant. If a node fails, place the model again without that node on that device.

        Raises LoweringError (HC203) or WrongResultError (HC204) if no device is left for a node.
        """
        moved: list[Moved] = []
        while True:
            try:
                with timed(self.seconds, "lower"):
                    built = builder.build(plan)
            except DoesNotLower as failed:
                plan = self._without(failed, plan, spec, moved)
                continue
            if checker is None:
                return BuiltVariant(spec, built, None, tuple(moved))
            with timed(self.seconds, "check"):
                checks = checker.check(built)
            if not checks.wrong:
                return BuiltVariant(spec, built, checks, tuple(moved))
            for wrong in checks.wrong:
                for name in wrong.nodes:
                    self.wrong.setdefault(wrong.device, {})[name] = f"it computed a wrong result: {wrong.error}"
            before = plan
            try:
                plan = self.place(spec)
            except UnsupportedOpError as error:
                raise WrongResultError(error.message, where=error.where, hint=error.hint) from error
            moved += self._moved(checks.wrong, before, plan)

    def _without(self, failed: DoesNotLower, plan: Plan, spec: VariantSpec, moved: list[Moved]) -> Plan:
        """The plan with the nodes that do not lower on other devices. Raises LoweringError if no device is left."""
        for name in failed.nodes:
            self.wrong.setdefault(failed.device, {})[name] = f"it does not compile: {failed.told}"
        try:
            after = self.place(spec)
        except UnsupportedOpError as error:
            with _naming(spec):
                raise failed.error from error
        wrong = (Wrong(failed.device, failed.nodes, failed.told),)
        moved += self._moved(wrong, plan, after, "does not compile")
        return after

    def _moved(
        self, found: tuple[Wrong, ...], before: Plan, after: Plan, what: str = "computes a wrong result"
    ) -> list[Moved]:
        """The wrong nodes with their old and new devices; warns of each group."""
        moved = []
        for wrong in found:
            for name in wrong.nodes:
                node = self.model.graph.node_by_name[name]
                source, target = before.device_of[name], after.device_of[name]
                moved.append(Moved(node.label, node.op_type, source, target, wrong.error))
            first = self.model.graph.node_by_name[wrong.nodes[0]]
            others = f" (with {len(wrong.nodes) - 1} other nodes)" if len(wrong.nodes) > 1 else ""
            path = f"on {wrong.device} and moves to {after.device_of[wrong.nodes[0]]}"
            self.reporter.warn(f"{first.op_type} '{first.label}'{others} {what} {path}: {wrong.error}")
        return moved


@contextmanager
def _naming(spec: VariantSpec) -> Iterator[None]:
    """Make errors of requested variants other than the main one name their variant."""
    try:
        yield
    except UnsupportedOpError as error:
        if spec.name != MAIN and not spec.automatic:
            error.message = f"variant {spec.name}: {error.message}"
        raise

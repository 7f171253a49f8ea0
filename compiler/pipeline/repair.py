"""Lowering and checking of one variant after another; nodes that fail are placed on other devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heterocc.artifacts.errors import UnsupportedOpError, WrongResultError
from heterocc.artifacts.text.one_line import one_line
from heterocc.compiler.api.progress import timed
from heterocc.compiler.build.build import Builder, BuiltPlan, DoesNotLower
from heterocc.compiler.build.pack import Piece, VariantParts
from heterocc.compiler.checking.check import Checker
from heterocc.compiler.checking.verdict import CheckResult, Fault
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.pipeline.queried import Queried, naming
from heterocc.compiler.pipeline.report import Moved, PlacedVariant, TimedPlan
from heterocc.compiler.pipeline.variants import VariantSpec
from heterocc.passes.base import Pass
from heterocc.passes.plan import Plan
from heterocc.passes.show.printer import print_plan
from heterocc.runtime.machine.ranking import GPU_BACKENDS


@dataclass(frozen=True, slots=True)
class BuiltVariant:
    """A variant's code; `checks` is None if nothing was checked, `moved` are nodes that were moved to other devices.

    `timed` are the plans that were considered if they were timed, `passes` those of the plan that was chosen by time,
    and `timing` what was timed, in a sentence. `is_split` says that it is for some of the requested sizes only.
    """

    spec: VariantSpec
    built: BuiltPlan
    checks: CheckResult | None
    moved: tuple[Moved, ...]
    timed: tuple[TimedPlan, ...] = ()
    passes: tuple[Pass, ...] | None = None
    timing: str = ""
    is_split: bool = False

    @property
    def report(self) -> PlacedVariant:
        """The final plan, and the results of the build and the check."""
        unchecked, costs = (self.checks.unchecked, self.checks.costs) if self.checks is not None else ((), ())
        remembered = self.checks.remembered if self.checks is not None else ()
        tuned = self.built.tuned
        return PlacedVariant(self.spec, self.built.plan, self.moved, unchecked, costs, tuned, self.timed, remembered)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """Its partitions in run order, ready to pack."""
        pairs = tuple(zip(self.built.jobs, self.built.lowered, strict=True))
        if self.checks is None:
            return tuple(Piece(job, lowered) for job, lowered in pairs)
        found = zip(pairs, self.checks.checked, self.checks.binaries, strict=True)
        return tuple(Piece(job, lowered, checked, binaries) for (job, lowered), checked, binaries in found)

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU runs some of its nodes."""
        return any(job.device.backend in GPU_BACKENDS for job in self.built.jobs)

    def parts(self, model: ImportedModel, notes: Sequence[str] = (), unchecked: Sequence[str] = ()) -> VariantParts:
        """The contents of the variant in the bundle; `notes` come before its own.

        `unchecked` are the reasons why nothing is checked, if that is so.
        """
        report, pieces = self.report, self.pieces
        reasons = unchecked or ("compiled without the check",)
        unseen = tuple(f"not checked: {reason}" for reason in reasons) if self.checks is None and pieces else ()
        tuned = tuple(part.sentence() for part in report.tuned)
        moved = tuple(m.sentence() for m in report.moved)
        return VariantParts(
            name=report.name,
            devices=self.spec.devices,
            pieces=pieces,
            inputs=model.graph.inputs,
            outputs=model.graph.outputs,
            plan=print_plan(report.plan),
            summary=report.summary,
            model=model,
            choice=self.spec.choice,
            bounds={**self.spec.bounds, **model.planned} if self.uses_gpu else self.spec.bounds,
            notes=tuple(map(one_line, (*notes, *unseen, *report.check_notes, *tuned, *moved))),
        )


@dataclass(frozen=True, slots=True)
class VariantBuilder:
    """Builds the variants of a model at one set of sizes; without a checker nothing is compared."""

    queried: Queried
    builder: Builder
    checker: Checker | None = None

    def build(self, spec: VariantSpec, plan: Plan, passes: Sequence[Pass] | None = None) -> BuiltVariant:
        """Lower and check a placed variant. If a node fails, place the model again without that node on that device.

        `passes` are those that placed it, if they are not the command's.
        Raises LoweringError (HC203) or WrongResultError (HC204) if no device is left for a node.
        """
        moved: list[Moved] = []
        while True:
            try:
                with timed(self.queried.request.seconds, "lower"):
                    built = self.builder.build(plan, spec.devices)
            except DoesNotLower as failed:
                plan = self._without(failed, plan, spec, moved, passes)
                continue
            if self.checker is None:
                return BuiltVariant(spec, built, None, tuple(moved))
            with timed(self.queried.request.seconds, "check"):
                checks = self.checker.check(built)
            faults = checks.faults
            if not faults:
                return BuiltVariant(spec, built, checks, tuple(moved))
            for fault in faults:
                for name in fault.nodes:
                    self.queried.wrong.setdefault(fault.device, {})[name] = f"it computed a wrong result: {fault.error}"
            before = plan
            try:
                plan = self.queried.place(spec, passes)
            except UnsupportedOpError as error:
                raise WrongResultError(error.message, where=error.where, hint=error.hint) from error
            moved += self._moved(faults, before, plan)

    def _without(
        self,
        failed: DoesNotLower,
        plan: Plan,
        spec: VariantSpec,
        moved: list[Moved],
        passes: Sequence[Pass] | None = None,
    ) -> Plan:
        """The plan with the nodes that do not lower on other devices. Raises LoweringError if no device is left."""
        for name in failed.nodes:
            self.queried.wrong.setdefault(failed.device, {})[name] = f"it does not compile: {failed.message}"
        try:
            after = self.queried.place(spec, passes)
        except UnsupportedOpError as error:
            with naming(spec):
                raise failed.error from (failed.error.__cause__ or error)  # the first cause tells more
        faults = (Fault(failed.device, failed.nodes, failed.message),)
        moved += self._moved(faults, plan, after, "does not compile")
        return after

    def _moved(
        self, faults: tuple[Fault, ...], before: Plan, after: Plan, what: str = "computes a wrong result"
    ) -> list[Moved]:
        """The wrong nodes with their old and new devices; warns of each group."""
        moved = []
        for fault in faults:
            for name in fault.nodes:
                node = self.queried.model.graph.node_by_name[name]
                source, target = before.device_of[name], after.device_of[name]
                moved.append(Moved(node.label, node.op_type, source, target, fault.error))
            first = self.queried.model.graph.node_by_name[fault.nodes[0]]
            others = f" (with {len(fault.nodes) - 1} other nodes)" if len(fault.nodes) > 1 else ""
            path = f"on {fault.device} and moves to {after.device_of[fault.nodes[0]]}"
            self.queried.reporter.warn(f"{first.op_type} '{first.label}'{others} {what} {path}: {fault.error}")
        return moved

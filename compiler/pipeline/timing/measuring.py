"""Plans of a variant that are compiled and timed on their devices, of which the fastest is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.host import is_this_cpu
from heterocc.compiler.files.records import open_records
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.pipeline.queried import Queried
from heterocc.compiler.pipeline.repair import BuiltVariant, VariantBuilder
from heterocc.compiler.pipeline.report import TimedPlan
from heterocc.compiler.pipeline.timing.choice import best, bounds_of, fastest, mean
from heterocc.compiler.pipeline.timing.remembered import Timing, key_of, read, write
from heterocc.compiler.pipeline.timing.sizes import at_sizes, sizes_of
from heterocc.compiler.pipeline.timing.timed_runs import TimedRuns
from heterocc.compiler.pipeline.variants import VariantSpec
from heterocc.compiler.placement.side_by_side import COMPARED
from heterocc.compiler.support.calibration import open_calibration
from heterocc.passes.alone import alone
from heterocc.passes.base import Pass, policy_pipeline
from heterocc.passes.plan import Plan

MOST_BYTES = 1 << 29
"""The most bytes of weights of a model whose plans a default compile times: each plan is loaded with its own."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest of a variant's plans, the passes that made it, and the times of all; `remembered` from a compile."""

    variant: BuiltVariant
    passes: tuple[Pass, ...]
    timing: Timing
    remembered: bool = False


def chosen_by_time(model: ImportedModel, devices: Sequence[TargetDevice]) -> bool:
    """Whether a default compile times plans for these devices: this CPU, with ONNX Runtime beside it.

    Times are not taken without a cache, which keeps the choice, nor where the environment says to ignore them, as for
    `heterocc calibrate`.
    """
    plain = [d for d in devices if not d.last_resort]
    return (
        len(plain) == 1 < len(devices)
        and is_this_cpu(plain[0])
        and bool(model.graph.nodes)
        and sum(array.nbytes for array in model.weights.values()) <= MOST_BYTES
        and open_calibration() is not None
    )


@dataclass
class Measurer:
    """Chooses between the plans of a variant by the times of their runs.

    Those of `policies` are compared with each device alone. With `splits` a plan may be kept for some of the sizes, if
    ONNX Runtime alone is faster at the others.
    """

    variants: VariantBuilder
    runs: TimedRuns
    policies: tuple[str, ...] = tuple(reversed(COMPARED))
    splits: bool = False
    _also: dict[str, list[str]] = field(default_factory=dict)

    def choose(self, spec: VariantSpec) -> Choice:
        """Build the plans of the policies and of each device alone, time them, and keep the fastest.

        Every plan is built and checked like that of another policy; one that cannot be built or run is left out.
        The choice of a brief timing is kept in the cache, and a later compile builds only the plan that was kept.
        Raises the error of the first policy if no plan can be built.
        """
        records = open_records("choice") if self.runs.brief else None
        if records is None:
            return self._timed(spec)
        key = key_of(self._queried, spec, (self.policies, self.splits), self.runs.feed)
        known = read(records, key)
        choice = None if known is None else self._remembered(spec, known)
        if choice is None:
            choice = self._timed(spec)
            if self.runs.barred is None and any(plan.seconds is not None for plan in choice.timing.plans):
                write(records, key, choice.timing)
        return choice

    @property
    def _queried(self) -> Queried:
        return self.variants.queried

    def _timed(self, spec: VariantSpec) -> Choice:
        """The fastest plan; one that is the only one is not timed."""
        built = {name: (variant, passes) for name, variant, passes in self._built(spec)}
        first = next(iter(built))
        if len(built) == 1:
            only = TimedPlan(name=first, kept=True, also=tuple(self._also[first]))
            return Choice(*built[first], Timing(plans=(only, *self._left_out()), at="", bounds={}))
        with self._queried.reporter.stage("timing plans", len(built)):
            times = self.runs.times({name: variant for name, (variant, _) in built.items()})
        ends = (name for name, (variant, _) in built.items() if _is_last_resort(variant))
        rest = next(ends, None) if self.splits else None
        kept = best(times, first, rest) if self.runs.brief else fastest(times, first)
        feeds = self.runs.feeds or [self.runs.feed]
        model = self._queried.model
        bounds, where = bounds_of(kept, [sizes_of(model, feed) for feed in feeds if feed is not None])
        also = {kept.name: where, **({rest: "for other sizes"} if rest is not None and bounds else {})}
        plans = [
            TimedPlan(
                name=name,
                seconds=mean(times[name]),
                kept=name in also,
                also=tuple(self._also[name]),
                each=times[name],
                where=also.get(name, ""),
            )
            for name in built
            if name in times
        ]
        at = " and".join(at_sizes(model, feed) for feed in feeds if feed is not None)
        at += " on one thread, as other processes keep the cores busy" if self.runs.busy else ""
        return Choice(*built[kept.name], Timing(plans=(*plans, *self._left_out()), at=at, bounds=bounds))

    def _left_out(self) -> list[TimedPlan]:
        return [TimedPlan(name=name, why_not=reason) for name, reason in self.runs.why_not.items()]

    def _remembered(self, spec: VariantSpec, timing: Timing) -> Choice | None:
        """The plan that an earlier compile kept, built; None if it can no longer be built."""
        kept = next((plan.name for plan in timing.plans if plan.kept), None)
        if kept is None:
            return None
        passes = policy_pipeline(kept if kept in COMPARED else "merge")
        try:
            plan = self._placed(spec, kept, passes)
            variant = None if plan is None else self.variants.build(spec, plan, passes)
        except HeteroccError:  # it is placed and timed anew, which reports what is wrong
            return None
        return None if variant is None else Choice(variant, passes, timing, remembered=True)

    def _names(self, spec: VariantSpec) -> Iterator[str]:
        yield from self.policies
        for device in spec.devices:
            yield f"{device.name} alone"

    def _built(self, spec: VariantSpec) -> Iterator[tuple[str, BuiltVariant, tuple[Pass, ...]]]:
        """The variant for each plan that differs from those before, best known first, with the passes that made it."""
        seen: dict[str, Plan] = {}
        merged = policy_pipeline("merge")
        found = False
        failure: HeteroccError | None = None
        for name in self._names(spec):
            passes = policy_pipeline(name) if name in COMPARED else merged
            try:
                plan = self._placed(spec, name, passes)
                if plan is None or self._is_known(name, plan, seen):
                    continue
                variant = self.variants.build(spec, plan, passes)
            except HeteroccError as error:
                self.runs.leave_out(name, error)
                failure = failure or error
                continue
            after = variant.report.plan
            if name not in COMPARED and len(set(after.device_of.values())) > 1:
                self.runs.why_not[name] = "; ".join(m.sentence() for m in variant.moved)
                continue
            if self._is_known(name, after, seen):
                continue
            seen[name], self._also[name] = after, []
            found = True
            yield name, variant, passes
        if not found and failure is not None:
            raise failure

    def _is_known(self, name: str, plan: Plan, seen: Mapping[str, Plan]) -> bool:
        """Return whether an earlier plan has the same partitions; it gets the name too."""
        first = next((other for other, known in seen.items() if known.partitions == plan.partitions), None)
        if first is not None:
            self._also[first].append(name)
        return first is not None

    def _placed(self, spec: VariantSpec, name: str, passes: tuple[Pass, ...]) -> Plan | None:
        if name in COMPARED:
            return self._queried.place(spec, passes)
        # The rules, pins and refusals of the variant hold for a single device too.
        made = alone(self._queried.place(spec, policy_pipeline("merge")), name.removesuffix(" alone"))
        if isinstance(made, Plan):
            return made
        self.runs.why_not[name] = made
        return None


def _is_last_resort(variant: BuiltVariant) -> bool:
    """Whether ONNX Runtime runs all of a variant."""
    last = {device.name for device in variant.spec.devices if device.last_resort}
    return set(variant.built.plan.device_of.values()) <= last

"""The fifth step of a compile: lower and check the variants, and choose among plans by time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from heterocc.artifacts.errors import InputError, UnsupportedOpError
from heterocc.artifacts.manifest import within_both
from heterocc.compiler.api.progress import Reporter, timed
from heterocc.compiler.build.build import Builder
from heterocc.compiler.build.tuning import remembered
from heterocc.compiler.checking.check import Checker
from heterocc.compiler.checking.feed import feed_for
from heterocc.compiler.pipeline.expected import Expected
from heterocc.compiler.pipeline.repair import BuiltVariant, VariantBuilder
from heterocc.compiler.pipeline.report import PlacedVariant
from heterocc.compiler.pipeline.timing.measuring import Measurer, chosen_by_time
from heterocc.compiler.pipeline.timing.sizes import feeds_between, larger_feeds, smaller_feeds
from heterocc.compiler.pipeline.timing.timed_runs import TimedRuns
from heterocc.compiler.pipeline.variants import MAIN, VariantSpec, all_devices
from heterocc.passes.base import MEASURED, policy_pipeline


@dataclass(frozen=True, kw_only=True, eq=False)
class Checked(Expected):
    """The code of the variants, each compared with ONNX Runtime if possible. `builder` builds further ones."""

    builder: VariantBuilder
    variants: tuple[BuiltVariant, ...]

    @property
    def reports(self) -> Sequence[PlacedVariant]:
        """The variants as they are known so far."""
        return [variant.report for variant in self.variants]

    @property
    def is_split(self) -> bool:
        """Whether a variant is for some of the sizes only, because ONNX Runtime is faster at others."""
        return any(variant.is_split for variant in self.variants)

    @property
    def runs_in_last_resort(self) -> bool:
        """Whether ONNX Runtime runs all of every variant."""
        last = {device.name for variant in self.placed for device in variant.spec.devices if device.last_resort}
        return all(set(variant.built.plan.device_of.values()) <= last for variant in self.variants)

    def for_all_sizes(self) -> Checked:
        """The same for the sizes at which ONNX Runtime was faster, too: it is not there."""
        bounds = self.placed[0].spec.bounds
        variants = tuple(replace(v, spec=replace(v.spec, bounds=bounds), is_split=False) for v in self.variants)
        return replace(self, variants=variants)

    def in_place_of(self, other: Checked) -> Checked:
        """The same with the names and the times of variants for the same choices of devices."""
        variants = tuple(
            replace(
                own,
                spec=replace(own.spec, name=old.spec.name, choice=old.spec.choice),
                timed=old.timed,
                passes=old.passes,
                timing=old.timing,
            )
            for own, old in zip(self.variants, other.variants, strict=True)
        )
        return replace(self, variants=variants)

    def with_cpu(self, placed: Sequence[PlacedVariant]) -> Checked:
        """With CPU-only variants; one that cannot be built is left out, with a note."""
        found = list(self.variants)
        for variant in placed:
            try:
                found.append(self.builder.build(variant.spec, variant.plan))
            except UnsupportedOpError as error:
                self.reporter.note(f"no CPU variant{self.shapes.at}: {error.message}")
            else:
                _note(found[-1], self.reporter)
        return replace(self, variants=tuple(found))

    def with_larger(self) -> Checked:
        """With a CPU-only variant, if there is one, beside each with default bounds, for sizes beyond these."""
        bounded = [v for v in self.variants if v.uses_gpu] if set(self.model.planned) - set(self.shapes.bounds) else []
        cpu = next((variant for variant in self.variants if not variant.uses_gpu), None)
        found = list(self.variants)
        for spec in [variant.spec for variant in bounded]:
            if cpu is None:
                self.reporter.note(
                    f"sizes beyond these bounds are errors in variant {spec.name}, without a CPU variant"
                )
                continue
            larger = replace(cpu.spec, name=f"{spec.name}@cpu", choice=spec.choice or spec.name, automatic=True)
            found.append(replace(cpu, spec=larger))
            self.reporter.note(f"sizes beyond these bounds run on the CPU in variant {spec.name}")
        return replace(self, variants=tuple(found))


def check(expected: Expected) -> Checked:
    """Lower and check the placed variants; those that are likely to follow are lowered beside a check."""
    request, shapes, vectors = expected.request, expected.shapes, expected.vectors
    devices = all_devices(variant.spec.devices for variant in expected.placed)
    lowering = Builder(expected.model, devices, expected.reporter, ahead=request.lowering)
    likely = () if expected.likely is None else expected.likely.placed
    lowering.expect((variant.plan, variant.spec.devices) for variant in likely)
    checker = None
    if vectors is not None and request.options.check:
        checker = Checker(
            expected.model,
            vectors.inputs,
            expected.reporter,
            known=vectors.outputs,
            memory=expected.memory,
            draft=None if shapes.is_further else request.draft,
            before_running=lowering.begin_expected,
            before_lowering=lowering.finish,
        )
    builder = VariantBuilder(expected, lowering, checker)
    built: list[BuiltVariant] = []
    for variant in expected.placed:
        with shapes.naming():
            built.append(_built(expected, builder, variant))
        _note(built[-1], expected.reporter)
    return expected.then(Checked, builder=builder, variants=tuple(built))


def _built(expected: Expected, builder: VariantBuilder, variant: PlacedVariant) -> BuiltVariant:
    """The variant with its plan, or with the fastest of several that are timed."""
    spec, options, policy = variant.spec, expected.request.options, expected.request.policy
    if policy == MEASURED:
        absent = [d.name for d in spec.devices if not d.present]
        feed, reason = (None, f"{', '.join(absent)} is not on this machine") if absent else _timing_feed(expected)
        if not reason:
            runs = TimedRuns(expected.model, feed)
            return _fastest(expected, Measurer(builder, runs), spec, f"policy {MEASURED}")
        expected.reporter.note(f"variant {spec.name} is not measured: {reason}; its plan is that of policy optimal")
        passes = policy_pipeline("optimal")
        return builder.build(spec, expected.place(spec, passes), passes)
    plain = policy == "merge" and options.passes is None and options.pass_limit is None
    if not (plain and options.measure and chosen_by_time(expected.model, spec.devices)):
        return builder.build(spec, variant.plan)
    feed, reason = _timing_feed(expected)
    if reason or expected.vectors is None:  # what ONNX Runtime cannot run has nothing to be compared with
        return builder.build(spec, expected.place(spec))
    runs = TimedRuns(expected.model, feed, brief=True)
    splits = False
    if expected.inputs is None and feed is not None:
        given = expected.model, feed, expected.shapes.bounds, options.seed
        runs.smaller, runs.larger = partial(smaller_feeds, *given), partial(larger_feeds, *given)
        runs.between = partial(feeds_between, expected.model, feed, options.seed)
        splits = expected.shapes.is_general and len(expected.placed) == 1
    return _fastest(expected, Measurer(builder, runs, ("merge",), splits), spec, "timed")


def _timing_feed(expected: Expected) -> tuple[Mapping[str, Any] | None, str]:
    """Inputs with which plans are timed, None for seeded ones of fixed shapes; or the reason why there are none."""
    if expected.vectors is not None:
        return expected.vectors.inputs, ""
    if not expected.model.dynamic_inputs:
        return None, ""
    try:
        return feed_for(expected.model, None, expected.request.options.seed), ""
    except InputError as error:
        return None, error.message


def _fastest(expected: Expected, measurer: Measurer, spec: VariantSpec, what: str) -> BuiltVariant:
    """The fastest of the plans that are timed, with a note of `what` was done."""
    with timed(expected.request.seconds, "measure"):
        choice = measurer.choose(spec)
    timing, barred = choice.timing, measurer.runs.barred
    if barred is not None:
        what = "this machine loads no compiled code, so the plans with such code were neither checked nor timed"
        expected.reporter.warn(f"{what}: {barred.message}; {barred.hint}")
    spec_kept = replace(choice.variant.spec, bounds=within_both(spec.bounds, timing.bounds))
    variant = replace(choice.variant, spec=spec_kept, timed=timing.plans, is_split=bool(timing.bounds))
    some = any(plan.seconds is not None for plan in timing.plans)
    if not some and expected.request.policy != MEASURED:
        return variant
    name = "" if spec.name == MAIN else f" for variant {spec.name}"
    at = timing.at if some else ""
    by = " by an earlier compile" if choice.remembered else ""
    plans = ", ".join(plan.text() for plan in timing.plans)
    expected.reporter.note(f"{what}{name}{at}{by}: {plans}")
    return replace(variant, passes=choice.passes, timing=f"{what}{at}: {plans}")


def _note(variant: BuiltVariant, reporter: Reporter) -> None:
    """Note a variant's unchecked partitions, costs of half precision, missing binaries and tuned kernels."""
    report = variant.report
    for text in report.check_notes:
        reporter.note(text)
    for piece in variant.pieces:
        device = piece.job.device
        if device.keeps_binaries and not piece.binaries:
            reporter.note(
                f"{device.name}.binaries=on has no effect on {piece.job.name}: its kernels did not run here, so "
                "the driver compiles them when the bundle is first loaded"
            )
    for part in report.tuned:
        reporter.note(part.sentence() + remembered([part]))

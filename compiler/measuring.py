"""The policy `measured`: plans of a variant are compiled and timed on their devices, and the fastest is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler.build.build import Builder
from heterocc.compiler.build.pack import pack
from heterocc.compiler.checking.check import Checker
from heterocc.compiler.files.scratch import scratch_folder
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.placement.side_by_side import COMPARED
from heterocc.compiler.report import TimedPlan
from heterocc.compiler.variant_build import BuiltVariant, VariantBuilder
from heterocc.compiler.variants import VariantSpec
from heterocc.passes.alone import alone
from heterocc.passes.base import Pass, policy_pipeline
from heterocc.passes.plan import Plan
from heterocc.runtime import load
from heterocc.runtime.files.inputs import read_inputs

BUDGET = 0.5
"""Seconds of timed runs for each plan, unless a run takes longer."""

LEAST, MOST = 5, 40
"""Turns of each plan, after WARM runs that are not counted."""

WARM = 2

SETTLE, TURN = 0.002, 0.01
"""Seconds of a turn that are not counted, and that are, one run each at least."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest of a variant's plans, the passes that made it, and all plans with their times or reasons."""

    variant: BuiltVariant
    passes: tuple[Pass, ...]
    timed: tuple[TimedPlan, ...]


@dataclass
class Measurer:
    """Times the plans of variants; `feed` are the model's inputs by internal name, None for seeded ones.

    A model with dynamic dimensions needs `feed`: its plans are timed at the sizes of these inputs alone.
    """

    variants: VariantBuilder
    builder: Builder
    checker: Checker | None
    feed: Mapping[str, Any] | None
    clock: Callable[[], float] = time.perf_counter
    _why_not: dict[str, str] = field(default_factory=dict)
    _also: dict[str, list[str]] = field(default_factory=dict)

    def choose(self, spec: VariantSpec) -> Choice:
        """Build the plans of the policies and of each device alone, time them, and keep the fastest.

        A last resort such as ONNX Runtime, which gets only what no other device can run, is not tried alone.

        Every plan is built and checked like that of another policy; one that cannot be built or run is left out.
        Raises the error of the policy `merge` if no plan can be built.
        """
        self._why_not, self._also = {}, {}
        built = list(self._built(spec))
        reporter = self.variants.reporter
        if len(built) == 1:
            name, variant, passes = built[0]
            only = TimedPlan(name, None, None, kept=True, also=tuple(self._also[name]))
            return Choice(variant, passes, (only, *self._left_out()))
        with reporter.stage("timing plans", len(built)):
            times = self._times([variant for _, variant, _ in built], [name for name, _, _ in built])
        best = min(times, key=times.__getitem__, default=built[0][0])
        timed = [
            TimedPlan(n, times[n], None, kept=n == best, also=tuple(self._also[n])) for n, _, _ in built if n in times
        ]
        _, variant, passes = next(entry for entry in built if entry[0] == best)
        return Choice(variant, passes, (*timed, *self._left_out()))

    def _left_out(self) -> list[TimedPlan]:
        return [TimedPlan(name, None, reason) for name, reason in self._why_not.items()]

    def _built(self, spec: VariantSpec) -> Iterator[tuple[str, BuiltVariant, tuple[Pass, ...]]]:
        """The variant for each plan that differs from those before, best known first, with the passes that made it."""
        seen: dict[str, Plan] = {}
        merged = policy_pipeline("merge")
        found = False
        failure: HeteroccError | None = None
        single = [d for d in spec.devices if not d.last_resort]
        for name in (*reversed(COMPARED), *(f"{d.name} alone" for d in single)):
            passes = policy_pipeline(name) if name in COMPARED else merged
            try:
                plan = self._placed(spec, name, passes)
                if plan is None or self._is_known(name, plan, seen):
                    continue
                variant = self.variants.build(spec, plan, self.builder, self.checker, passes)
            except HeteroccError as error:
                self._why_not[name] = error.message
                failure = failure or error
                continue
            after = variant.report.plan
            if name not in COMPARED and len(set(after.device_of.values())) > 1:
                self._why_not[name] = "; ".join(m.sentence() for m in variant.moved)
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
            return self.variants.place(spec, passes)
        # The rules, pins and refusals of the variant hold for a single device too.
        made = alone(self.variants.place(spec, policy_pipeline("merge")), name.removesuffix(" alone"))
        if isinstance(made, Plan):
            return made
        self._why_not[name] = made
        return None

    def _times(self, variants: Sequence[BuiltVariant], names: Sequence[str]) -> dict[str, float]:
        """The seconds of an undisturbed run of each variant."""
        model = self.variants.model
        with scratch_folder("timing") as folder, ExitStack() as stack:
            runs: dict[str, Callable[[], object]] = {}
            for number, (name, variant) in enumerate(zip(names, variants, strict=True)):
                path = folder / f"{number}.hcb"
                pack(path, model, [replace(variant.parts(model), name="main", choice=None)], durable=False)
                try:
                    session = stack.enter_context(load(path))
                    feed = self._feed(path, session)
                    runs[name] = lambda session=session, feed=feed: session.run(feed)  # type: ignore[misc]
                    for _ in range(WARM):
                        runs[name]()
                except HeteroccError as error:
                    runs.pop(name, None)
                    self._why_not[name] = error.message
            return {name: undisturbed(times) for name, times in runs_in_turns(runs, BUDGET, self.clock).items()}

    def _feed(self, path: Any, session: Any) -> Mapping[str, Any]:
        if self.feed is None:
            return read_inputs(path, session, (), 0)
        sources = self.variants.model.sources
        return {sources.get(name, name): value for name, value in self.feed.items()}


def at_sizes(model: ImportedModel, feed: Mapping[str, Any] | None) -> str:
    """` at batch=2, seq=12`: the sizes of the model's dynamic dimensions in these inputs; empty if it has none."""
    if feed is None:
        return ""
    found: dict[str, int] = {}
    for name in model.dynamic_inputs:
        shapes = zip(model.input_shape(name) or (), np.shape(feed[name]), strict=False)
        found.update((dim, size) for dim, size in shapes if isinstance(dim, str))
    return f" at {', '.join(f'{dim}={size}' for dim, size in found.items())}" if found else ""


def undisturbed(times: Sequence[float]) -> float:
    """The time that a tenth of the runs do not exceed: other processes only add time, and may disturb most runs."""
    return sorted(times)[len(times) // 10]


def runs_in_turns(
    runs: Mapping[str, Callable[[], object]], budget: float, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """The seconds of runs of each; all take turns, so that slow moments affect all of them.

    Each gets LEAST turns, and more until it has `budget` seconds of counted runs or MOST turns. A turn is a few runs in
    a row, because threads of the one before are still awake, and its data is in the caches: the first are not counted.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(MOST):
        left = [name for name, found in times.items() if turn < LEAST or sum(found) < budget]
        for name in left:
            _during(runs[name], SETTLE, clock)
            times[name] += _during(runs[name], TURN, clock)
    return times


def _during(run: Callable[[], object], seconds: float, clock: Callable[[], float]) -> list[float]:
    """The times of as many runs as fit into so many seconds, at least one."""
    found: list[float] = []
    start = before = clock()
    while not found or before - start < seconds:
        run()
        after = clock()
        found.append(after - before)
        before = after
    return found

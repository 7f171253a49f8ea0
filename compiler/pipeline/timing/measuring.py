"""Plans of a variant that are compiled and timed on their devices, of which the fastest is kept."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from heterocc.artifacts.errors import HeteroccError
from heterocc.artifacts.manifest import Range
from heterocc.compiler.build.pack import pack
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.host import host_cpu, is_this_cpu
from heterocc.compiler.files.records import DiskRecords, open_records, toolchain_digest
from heterocc.compiler.files.scratch import scratch_folder
from heterocc.compiler.importer.identity import model_digest
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.pipeline.repair import BuiltVariant, VariantBuilder
from heterocc.compiler.pipeline.report import TimedPlan
from heterocc.compiler.pipeline.timing.choice import Times, best, bounds_of, fastest, mean
from heterocc.compiler.pipeline.timing.sizes import at_sizes, sizes_of
from heterocc.compiler.pipeline.timing.turns import BUDGET, runs_in_turns, undisturbed
from heterocc.compiler.pipeline.variants import VariantSpec
from heterocc.compiler.placement.side_by_side import COMPARED
from heterocc.compiler.support.calibration import open_calibration
from heterocc.passes.alone import alone
from heterocc.passes.base import Pass, policy_pipeline
from heterocc.passes.plan import Plan
from heterocc.runtime import load
from heterocc.runtime.cli.bench import wait_until_idle
from heterocc.runtime.execute.tvm_api import available_cores
from heterocc.runtime.files.inputs import read_inputs
from heterocc.runtime.session import Session

LIMIT = 1.0
"""Seconds in which the plans of a default compile are timed, for each number of threads, after the first turns."""

MOST_BYTES = 1 << 29
"""The most bytes of weights of a model whose plans a default compile times: each plan is loaded with its own."""

WARM = 2

LARGER = 0.15
"""The most seconds of one run of each plan at larger sizes, by an estimate from the drawn ones."""

SOURCES = (
    "compiler/build",
    "compiler/checking",
    "compiler/pipeline/timing",
)
"""What a choice depends on beside the sources of the toolchain."""


Run = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Choice:
    """The fastest of a variant's plans, the passes that made it, and all plans with their times or reasons.

    `remembered` says that an earlier compile timed them, and `at` at which sizes of dynamic dimensions. `bounds` are
    those sizes of dimensions for which it is kept; ONNX Runtime is faster at others.
    """

    variant: BuiltVariant
    passes: tuple[Pass, ...]
    timed: tuple[TimedPlan, ...]
    at: str = ""
    remembered: bool = False
    bounds: Mapping[str, Range] = field(default_factory=dict)


def _none(_: object) -> Iterable[Mapping[str, Any]]:
    """No inputs."""
    return ()


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
    """Times the plans of variants; `feed` are the model's inputs by internal name, None for seeded ones.

    A model with dynamic dimensions needs `feed`: its plans are timed at the sizes of these inputs, and at those of the
    first of `smaller`, of `larger`, and of those `between` the larger and this one with which all plans run. `larger`
    is called with how many times as long a run may take.
    Those of `policies` are compared with each device alone. `brief` ends the timing of hopeless plans, and within
    LIMIT; plans are then timed on one thread and on all. With `splits` a plan may be kept for some of the sizes, if
    ONNX Runtime alone is faster at the others.
    """

    variants: VariantBuilder
    feed: Mapping[str, Any] | None
    policies: tuple[str, ...] = tuple(reversed(COMPARED))
    brief: bool = False
    splits: bool = False
    smaller: Callable[[], Iterable[Mapping[str, Any]]] = tuple
    larger: Callable[[float], Iterable[Mapping[str, Any]]] = _none
    between: Callable[[Mapping[str, Any]], Iterable[Mapping[str, Any]]] = _none
    _feeds: list[Mapping[str, Any] | None] = field(default_factory=list)
    _why_not: dict[str, str] = field(default_factory=dict)
    _also: dict[str, list[str]] = field(default_factory=dict)

    def choose(self, spec: VariantSpec) -> Choice:
        """Build the plans of the policies and of each device alone, time them, and keep the fastest.

        Every plan is built and checked like that of another policy; one that cannot be built or run is left out.
        With `brief` the choice is kept in the cache, and a later compile builds only the plan that was kept.
        Raises the error of the first policy if no plan can be built.
        """
        records = open_records("choice") if self.brief else None
        key = self._key(spec) if records is not None else ""
        if records is not None:
            known = self._remembered(spec, records, key)
            if known is not None:
                return known
        self._why_not, self._also, self._feeds = {}, {}, []
        built = list(self._built(spec))
        reporter = self.variants.queried.reporter
        if len(built) == 1:
            name, variant, passes = built[0]
            only = TimedPlan(name, None, None, kept=True, also=tuple(self._also[name]))
            return Choice(variant, passes, (only, *self._left_out()))
        with reporter.stage("timing plans", len(built)):
            times = self._times([variant for _, variant, _ in built], [name for name, _, _ in built])
        rest = next((name for name, variant, _ in built if _is_last_resort(variant)), None) if self.splits else None
        kept = best(times, built[0][0], rest) if self.brief else fastest(times, built[0][0])
        feeds = [feed for feed in self._feeds or [self.feed] if feed is not None]
        bounds, where = bounds_of(kept, [sizes_of(self.variants.queried.model, feed) for feed in feeds])
        also = {kept.name: where, **({rest: "for other sizes"} if rest is not None and bounds else {})}
        timed = [
            TimedPlan(
                n, mean(times[n]), None, kept=n in also, also=tuple(self._also[n]), each=times[n], where=also.get(n, "")
            )
            for n, _, _ in built
            if n in times
        ]
        _, variant, passes = next(entry for entry in built if entry[0] == kept.name)
        at = " and".join(at_sizes(self.variants.queried.model, feed) for feed in feeds)
        choice = Choice(variant, passes, (*timed, *self._left_out()), at, bounds=bounds)
        if records is not None:
            records.write(key, _record(choice))
        return choice

    def _left_out(self) -> list[TimedPlan]:
        return [TimedPlan(name, None, reason) for name, reason in self._why_not.items()]

    def _key(self, spec: VariantSpec) -> str:
        """What a choice depends on: the model, the devices with their properties, pins, sizes, machine and versions."""
        cpu = host_cpu()
        model = self.variants.queried.model
        facts = (
            [(d.name, d.backend, d.target_json(), sorted(d.properties.items())) for d in spec.devices],
            repr(spec.affinity),
            [(name, sorted(found.items())) for name, found in sorted(self.variants.queried.wrong.items())],
            self.policies,
            self.splits,
            sorted((name, np.shape(value)) for name, value in (self.feed or {}).items()),
            sorted((name, found.min, found.max) for name, found in spec.bounds.items()),
            (cpu.name, sorted(cpu.features), available_cores()),
        )
        text = f"plans\n{toolchain_digest(*SOURCES)}\n{model_digest(model)}\n{json.dumps(facts)}"
        return hashlib.sha256(text.encode()).hexdigest()

    def _remembered(self, spec: VariantSpec, records: DiskRecords, key: str) -> Choice | None:
        """The plan that an earlier compile kept, built; None if there is none, or it can no longer be built."""
        timed, at, bounds = _timed(records.read(key))
        kept = next((plan.name for plan in timed if plan.kept), None)
        if kept is None:
            return None
        passes = policy_pipeline(kept) if kept in COMPARED else policy_pipeline("merge")
        try:
            plan = self._placed(spec, kept, passes)
            if plan is None:
                return None
            variant = self.variants.build(spec, plan, passes)
        except HeteroccError:  # it is placed and timed anew, which reports what is wrong
            return None
        return Choice(variant, passes, timed, at, remembered=True, bounds=bounds)

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
            return self.variants.queried.place(spec, passes)
        # The rules, pins and refusals of the variant hold for a single device too.
        made = alone(self.variants.queried.place(spec, policy_pipeline("merge")), name.removesuffix(" alone"))
        if isinstance(made, Plan):
            return made
        self._why_not[name] = made
        return None

    def _times(self, variants: Sequence[BuiltVariant], names: Sequence[str]) -> Times:
        """The seconds of an undisturbed run of each variant at each size; geometric means over numbers of threads."""
        model = self.variants.queried.model
        found: dict[str, list[tuple[float, ...]]] = {name: [] for name in names}
        with scratch_folder("timing") as folder:
            paths = {name: folder / f"{number}.hcb" for number, name in enumerate(names)}
            for path, variant in zip(paths.values(), variants, strict=True):
                pack(path, model, [replace(variant.parts(model), name="main", choice=None)], durable=False)
            for threads in self._thread_counts(variants[0].spec):
                left = {name: path for name, path in paths.items() if name in found}
                times = self._on_threads(left, threads) if len(left) > 1 or not all(found.values()) else {}
                for name in left:
                    if name in times:
                        found[name].append(times[name])
                    elif times:
                        del found[name]
        counts = max(map(len, found.values()), default=0)
        return {n: tuple(map(mean, zip(*t, strict=True))) for n, t in found.items() if t and len(t) == counts}

    def _thread_counts(self, spec: VariantSpec) -> list[int | None]:
        """The numbers of threads of timed runs; None for the default of a bundle."""
        fixed = any(device.settings.threads is not None for device in spec.devices)
        return [None] if fixed or not self.brief else [*sorted({1, available_cores()})]

    def _on_threads(self, paths: Mapping[str, Any], threads: int | None) -> Times:
        """The seconds of a run of each bundle, at each size."""
        with ExitStack() as stack:
            sessions: dict[str, Session] = {}
            runs: dict[str, Run] = {}
            for name, path in paths.items():
                try:
                    sessions[name] = stack.enter_context(load(path, threads=threads))
                    feed = read_inputs(path, sessions[name], (), 0) if self.feed is None else self._sources(self.feed)
                    runs |= _warmed({name: sessions[name]}, feed)
                except HeteroccError as error:
                    sessions.pop(name, None)
                    self._why_not[name] = error.message
            if not sessions:
                return {}
            try:
                sets = self._at_all_sizes(sessions, runs)
            except HeteroccError:  # with another number of threads there may not be enough memory
                return {}
            limit = LIMIT / len(sets) if self.brief else math.inf
            wait = wait_until_idle if self.brief and threads != 1 else _go_on
            every = [runs_in_turns(one, BUDGET, limit=limit, between=wait) for one in sets]
        return {name: tuple(undisturbed(times[name]) for times in every) for name in sessions}

    def _at_all_sizes(self, sessions: Mapping[str, Session], runs: dict[str, Run]) -> list[dict[str, Run]]:
        """The runs at each size, beside those at the drawn one, which are the same for all numbers of threads.

        Raises HeteroccError for a run that fails at sizes that were chosen before.
        """
        if self._feeds:
            return [runs if feed is self.feed else _warmed(sessions, self._sources(feed or {})) for feed in self._feeds]
        if len(sessions) == 1:
            self._feeds = [self.feed]
            return [runs]
        smaller = self._first(sessions, self.smaller())
        larger = self._first(sessions, self.larger(LARGER / _seconds(runs.values())))
        middle = [found for feed, _ in larger for found in self._first(sessions, self.between(feed or {}))]
        sets = [*smaller, (self.feed, runs), *middle, *larger]
        self._feeds = [feed for feed, _ in sets]
        return [one for _, one in sets]

    def _first(
        self, sessions: Mapping[str, Session], feeds: Iterable[Mapping[str, Any]]
    ) -> tuple[tuple[Mapping[str, Any] | None, dict[str, Run]], ...]:
        """The first inputs with which all sessions run, and these runs; nothing if there are none."""
        for feed in feeds:
            try:
                return ((feed, _warmed(sessions, self._sources(feed))),)
            except HeteroccError:  # the model does not take them: more positions than it knows
                continue
        return ()

    def _sources(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """A feed by the model's own names."""
        sources = self.variants.queried.model.sources
        return {sources.get(name, name): value for name, value in feed.items()}


def _warmed(sessions: Mapping[str, Session], feed: Mapping[str, Any]) -> dict[str, Run]:
    """Functions that run sessions on a feed, after the first runs. Raises HeteroccError for one that fails."""
    runs: dict[str, Run] = {name: partial(session.run, feed) for name, session in sessions.items()}
    for run in runs.values():
        for _ in range(WARM):
            run()
    return runs


def _seconds(runs: Iterable[Run]) -> float:
    """The seconds of one run of each."""
    start = time.perf_counter()
    for run in runs:
        run()
    return max(time.perf_counter() - start, 1e-9)


def _go_on() -> None:
    """Do not wait between turns."""


def _is_last_resort(variant: BuiltVariant) -> bool:
    """Whether ONNX Runtime runs all of a variant."""
    last = {device.name for device in variant.spec.devices if device.last_resort}
    return set(variant.built.plan.device_of.values()) <= last


def _record(choice: Choice) -> dict[str, object]:
    """A choice for the cache."""
    return {
        "at": choice.at,
        "bounds": [[name, found.min, found.max] for name, found in choice.bounds.items()],
        "plans": [
            {
                "name": p.name,
                "seconds": p.seconds,
                "why_not": (p.why_not or "")[:300],
                "kept": p.kept,
                "also": p.also,
                "each": p.each,
                "where": p.where,
            }
            for p in choice.timed
        ],
    }


def _timed(record: Mapping[str, object] | None) -> tuple[tuple[TimedPlan, ...], str, dict[str, Range]]:
    """The plans of a choice in the cache, at which sizes they were timed, and for which the first one that was kept is.

    A damaged record has no plans.
    """
    found = []
    bounds: dict[str, Range] = {}
    where = ""
    match record:
        case {"at": str(where), "bounds": list(limits), "plans": list(plans)}:
            for limit in limits:
                match limit:
                    case [str(dim), int(low), int() | None as high]:
                        bounds[dim] = Range(min=low, max=high)
            for plan in plans:
                match plan:
                    case {
                        "name": str(name),
                        "seconds": float() | None as seconds,
                        "why_not": str(why),
                        "kept": bool(kept),
                        "also": list(also),
                        "each": list(each),
                        "where": str(sizes),
                    }:
                        times = tuple(float(time) for time in each if isinstance(time, float))
                        names = tuple(map(str, also))
                        found.append(TimedPlan(name, seconds, why or None, kept, names, times, sizes))
    return tuple(found), where, bounds

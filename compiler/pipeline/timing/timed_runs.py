"""Times of the plans of a variant: each is packed, loaded and run in turns with the others, at several sizes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from heterocc.artifacts.errors import BundleError, HeteroccError
from heterocc.compiler.build.pack import pack
from heterocc.compiler.files.scratch import scratch_folder
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.pipeline.repair import BuiltVariant
from heterocc.compiler.pipeline.timing.choice import Times, mean
from heterocc.compiler.pipeline.timing.turns import BUDGET, runs_in_turns, undisturbed
from heterocc.compiler.pipeline.variants import VariantSpec
from heterocc.runtime import load
from heterocc.runtime.cli.bench import wait_until_idle
from heterocc.runtime.execute.tvm_api import available_cores
from heterocc.runtime.files.inputs import read_inputs
from heterocc.runtime.session import Session

LIMIT = 0.5
"""Seconds in which the plans of a default compile are timed, for each number of threads, after the first turns."""

WARM = 2

ALONE = 0.8
"""The least share of a core that runs on one thread have if no other process keeps all cores busy."""

LARGER = 0.15
"""The most seconds of one run of each plan at larger sizes, by an estimate from the drawn ones."""

Run = Callable[[], object]
Feed = Mapping[str, Any]


def _none(_: object) -> Iterable[Feed]:
    """No inputs."""
    return ()


@dataclass
class TimedRuns:
    """Times plans; `feed` are the model's inputs by internal name, None for seeded ones.

    A model with dynamic dimensions needs `feed`: its plans are timed at the sizes of these inputs, and at those of the
    first of `smaller`, of `larger`, and of those `between` the larger and this one with which all plans run. `larger`
    is called with how many times as long a run may take.
    `brief` ends the timing of hopeless plans, and within LIMIT. Plans are then timed on one thread, by processor time,
    which other processes do not add to, and on all, unless other processes keep the cores `busy`.

    `feeds` are the inputs at the sizes at which plans were timed, and `why_not` the reasons why some were not. `barred`
    is the error of a machine that loads no code.
    """

    model: ImportedModel
    feed: Feed | None
    brief: bool = False
    smaller: Callable[[], Iterable[Feed]] = tuple
    larger: Callable[[float], Iterable[Feed]] = _none
    between: Callable[[Feed], Iterable[Feed]] = _none
    feeds: list[Feed | None] = field(default_factory=list)
    why_not: dict[str, str] = field(default_factory=dict)
    barred: BundleError | None = None
    busy: bool = False

    def leave_out(self, name: str, error: HeteroccError) -> None:
        """Note why a plan is not timed."""
        self.why_not[name] = error.message
        if isinstance(error, BundleError):  # no memory files, no /proc
            self.barred = error

    def times(self, variants: Mapping[str, BuiltVariant]) -> Times:
        """The seconds of an undisturbed run of each variant at each size; geometric means over numbers of threads."""
        found: dict[str, list[tuple[float, ...]]] = {name: [] for name in variants}
        with scratch_folder("timing") as folder:
            paths = {name: folder / f"{number}.hcb" for number, name in enumerate(variants)}
            for path, variant in zip(paths.values(), variants.values(), strict=True):
                pack(path, self.model, [replace(variant.parts(self.model), name="main", choice=None)], durable=False)
            for threads in self._thread_counts(next(iter(variants.values())).spec):
                if self.busy:
                    break
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
                    self.leave_out(name, error)
            if not sessions:
                return {}
            try:
                sets = self._at_all_sizes(sessions, runs)
            except HeteroccError:  # with another number of threads there may not be enough memory
                return {}
            limit = LIMIT / len(sets) if self.brief else math.inf
            if not self.brief or threads != 1:
                wait = wait_until_idle if self.brief else _go_on
                every = [runs_in_turns(one, BUDGET, limit=limit, between=wait) for one in sets]
            else:
                start, used = time.perf_counter(), time.process_time()
                every = [runs_in_turns(one, BUDGET, time.process_time, limit=limit) for one in sets]
                self.busy = time.process_time() - used < ALONE * (time.perf_counter() - start)
        return {name: tuple(undisturbed(times[name]) for times in every) for name in sessions}

    def _at_all_sizes(self, sessions: Mapping[str, Session], runs: dict[str, Run]) -> list[dict[str, Run]]:
        """The runs at each size, beside those at the drawn one, which are the same for all numbers of threads.

        Raises HeteroccError for a run that fails at sizes that were chosen before.
        """
        if self.feeds:
            return [runs if feed is self.feed else _warmed(sessions, self._sources(feed or {})) for feed in self.feeds]
        if len(sessions) == 1:
            self.feeds = [self.feed]
            return [runs]
        smaller = self._first(sessions, self.smaller())
        larger = self._first(sessions, self.larger(LARGER / _seconds(runs.values())))
        middle = [found for feed, _ in larger for found in self._first(sessions, self.between(feed or {}))]
        sets = [*smaller, (self.feed, runs), *middle, *larger]
        self.feeds = [feed for feed, _ in sets]
        return [one for _, one in sets]

    def _first(
        self, sessions: Mapping[str, Session], feeds: Iterable[Feed]
    ) -> tuple[tuple[Feed | None, dict[str, Run]], ...]:
        """The first inputs with which all sessions run, and these runs; nothing if there are none."""
        for feed in feeds:
            try:
                return ((feed, _warmed(sessions, self._sources(feed))),)
            except HeteroccError:  # the model does not take them: more positions than it knows
                continue
        return ()

    def _sources(self, feed: Feed) -> dict[str, Any]:
        """A feed by the model's own names."""
        sources = self.model.sources
        return {sources.get(name, name): value for name, value in feed.items()}


def _warmed(sessions: Mapping[str, Session], feed: Feed) -> dict[str, Run]:
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

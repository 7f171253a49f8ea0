"""The choice of kernels' schedules by timing candidates on the target device.

The first candidates are the schedules by all rules that apply, with the options that the models rank first. Then the
search moves from the fastest so far to those that differ from it in one choice, until none is faster. Results are kept
on disk, so a kernel gets the same schedule again, without timing, for the same device, driver and compiler.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.lower.backend import Candidate, PartitionJob, Run, Tuned, Tuning
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.gpu.packed import Packed
from heterocc.compiler.lower.gpu.rules import RULES, Rule, scheduled_by
from heterocc.compiler.lower.gpu.tuning.key import identity, key_of
from heterocc.compiler.lower.gpu.tuning.run import Bench, Build
from heterocc.compiler.lower.kernels.choices import Trail
from heterocc.compiler.lower.progress import unwatched
from heterocc.compiler.lower.tuning.tensors import Tensor, tensors_of
from heterocc.compiler.lower.tuning.timing import MARGIN
from heterocc.compiler.lower.tuning.work import work_of
from heterocc.runtime.plan.schedule import Space

if TYPE_CHECKING:
    from tvm import tirx


WORTH = 1 << 18
"""The least work, as counted by `work_of`, of a kernel that is timed. A smaller one takes about as long as a launch."""

MOST_CANDIDATES = 20
ROUND = 6
"""The most candidates that are compiled and timed together."""

SECONDS = 30.0
"""The time in seconds after which no further round begins for a kernel. Most of it is compilation."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel to be timed: its symbol, the nodes it computes, and the number of tensors it writes (its last ones)."""

    symbol: str
    nodes: tuple[str, ...]
    function: tirx.PrimFunc
    packable: Collection[int]
    outputs: int


@dataclass(frozen=True, slots=True)
class Way:
    """A kernel scheduled by a rule with the choices `path`; `neighbours` are the paths that differ in one choice."""

    rule: Rule
    path: tuple[int, ...]
    packed: Packed
    label: str
    neighbours: tuple[tuple[int, ...], ...]

    @property
    def text(self) -> str:
        """The code and layouts as text, which are equal for equal candidates."""
        return f"{self.packed.layouts}{self.packed.function.script(show_meta=False)}"


def way_by(rule: Rule, trail: Trail, kernel: Kernel, limits: Limits) -> Way | None:
    """The kernel scheduled by a rule with the choices of a trail; None if that fails."""
    try:
        packed = scheduled_by(rule, kernel.function, replace(limits, choose=trail), kernel.packable)
    except Exception as error:  # incompatible choices; TVM raises various classes
        pass_foreign(error)
        return None
    if packed is None:
        return None
    label = ", ".join([rule.name, *trail.names])
    return Way(rule, tuple(trail.taken), packed, label, tuple(trail.neighbours()))


def first_ways(kernel: Kernel, limits: Limits) -> list[Way]:
    """The kernel scheduled by each rule that applies; the first is the choice without timing.

    These are followed by schedules of the rules whose models refuse the kernel, with another choice.
    """
    found, others = [], []
    for rule in RULES:
        trail = Trail()
        first = way_by(rule, trail, kernel, limits)
        if first is not None:
            found.append(first)
        else:
            others += [way_by(rule, Trail(path), kernel, limits) for path in trail.neighbours()]
    return found + [way for way in others if way is not None]


@dataclass
class Tuner:
    """Chooses schedules for the kernels of one partition, and records the choices in `found`."""

    tuning: Tuning
    device: TargetDevice
    build: Build
    clock: Callable[[], float] = time.monotonic
    found: list[Tuned] = field(default_factory=list)

    @property
    def chosen(self) -> tuple[Tuned, ...]:
        """The choices made so far."""
        return tuple(self.found)

    def choose(self, kernel: Kernel, limits: Limits) -> Packed | None:
        """The fastest schedule; None if the kernel is too small to be timed, has only one schedule, or does not run."""
        if work_of(kernel.function) < WORTH:
            return None
        key = key_of(kernel.function, limits, kernel.packable, identity(self.device))
        chosen = self._remembered(key, kernel, limits)
        if chosen is None:
            chosen = self._searched(key, kernel, limits)
        return chosen

    def _remembered(self, key: str, kernel: Kernel, limits: Limits) -> Packed | None:
        record = self.tuning.records.read(key) if self.tuning.records is not None else None
        match record:
            case {
                "rule": str(name),
                "path": list(path),
                "changed": bool(changed),
                "candidates": int(count),
                "before": float(before),
                "after": float(after),
            }:
                rule = next((r for r in RULES if r.name == name), None)
                if rule is None or not all(isinstance(i, int) and i >= 0 for i in path):
                    return None
                known = way_by(rule, Trail(tuple(path)), kernel, limits)
                if known is None:
                    return None
                tuned = Tuned(kernel.symbol, kernel.nodes, known.label, changed, count, before, after, remembered=True)
                self.found.append(tuned)
                return known.packed
        return None

    def _searched(self, key: str, kernel: Kernel, limits: Limits) -> Packed | None:
        try:
            tensors = tensors_of(kernel.function)
        except (TypeError, ValueError, AttributeError):  # a size that is known only at run time
            return None
        start = first_ways(kernel, limits)
        if not start or (len(start) == 1 and not start[0].neighbours):
            return None
        self.tuning.progress(f"timing {', '.join(kernel.nodes) or kernel.symbol}")
        search = _Search(self, kernel, limits, tensors)
        best = search.run(start)
        if best is None:
            return None
        before, after = search.gain(start[0], best)
        if after > before * MARGIN:
            best, after = start[0], before
        changed, count = best is not start[0], len(search.correct)
        tuned = Tuned(kernel.symbol, kernel.nodes, best.label, changed, count, before, after, remembered=False)
        self.found.append(tuned)
        if self.tuning.records is not None:
            record = {"rule": best.rule.name, "path": list(best.path), "changed": changed, "candidates": count}
            self.tuning.records.write(key, {**record, "before": before, "after": after})
        return best.packed


def tuner_for(job: PartitionJob, build: Build) -> Tuner | None:
    """The tuner for a partition's kernels; None if tuning was not requested."""
    return None if job.tuning is None else Tuner(job.tuning, job.device, unwatched(build))


class _Search:
    """The search for one kernel; `correct` are the candidates with correct results, by their text."""

    def __init__(self, tuner: Tuner, kernel: Kernel, limits: Limits, tensors: Sequence[Tensor]) -> None:
        space = Space(tuner.device.backend, tuner.device.index)
        self._tuner, self._kernel, self._limits = tuner, kernel, limits
        self._bench = Bench(space, tuner.build, tensors, kernel.outputs)
        self._seen: set[str] = set()
        self.correct: dict[str, Run] = {}

    def run(self, start: Sequence[Way]) -> Way | None:
        """The fastest candidate; None if the first, whose results are the reference, does not run."""
        begun = self._tuner.clock()
        best = self._fastest(None, self._unseen(start[:1]))
        batch = self._unseen(start[1:])
        while best is not None and (batch or (batch := self._around(best))):
            for first in range(0, len(batch), ROUND):
                best = self._fastest(best, batch[first : first + ROUND])
                if self._tuner.clock() - begun > SECONDS:
                    return best
            batch = []
        return best

    def gain(self, before: Way, after: Way) -> tuple[float, float]:
        """The times of two candidates in seconds, measured in turns."""
        if before is after:
            seconds = self._timed([before])
            return seconds[0], seconds[0]
        first, second = self._timed([before, after])
        return first, second

    def _around(self, best: Way) -> list[Way]:
        found = (way_by(best.rule, Trail(path), self._kernel, self._limits) for path in best.neighbours)
        return self._unseen(c for c in found if c is not None)

    def _unseen(self, candidates: Iterable[Way]) -> list[Way]:
        new = {c.text: c for c in candidates if c.text not in self._seen}
        taken = list(new.items())[: MOST_CANDIDATES - len(self._seen)]
        self._seen.update(text for text, _ in taken)
        return [c for _, c in taken]

    def _fastest(self, best: Way | None, others: Sequence[Way]) -> Way | None:
        """The fastest of the best so far and others, without those that fail or whose results are wrong."""
        runs = self._bench.runs([c.packed for c in others])
        self.correct.update({c.text: run for c, run in zip(others, runs, strict=True) if not isinstance(run, str)})
        racing = [c for c in ([best] if best is not None else []) + list(others) if c.text in self.correct]
        if len(racing) < 2:
            return racing[0] if racing else None
        times = self._timed(racing)
        return racing[min(range(len(racing)), key=times.__getitem__)]

    def _timed(self, candidates: Sequence[Way]) -> Sequence[float]:
        racing = [Candidate(c.label, self.correct[c.text]) for c in candidates]
        return self._tuner.tuning.timer(racing, self._bench.wait)

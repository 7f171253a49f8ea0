"""Counts and times of a model version's requests, as Triton's clients ask for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import time


@dataclass(slots=True)
class Timing:
    """The steps of a run in nanoseconds, and whether this request counts it: one of those that ran together."""

    decode: int = 0
    run: int = 0
    encode: int = 0
    counts: bool = True


@dataclass(slots=True)
class _Duration:
    count: int = 0
    ns: int = 0

    def add(self, ns: int, count: int = 1) -> None:
        self.count += count
        self.ns += ns

    def to_json(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


_STEPS = ("compute_input", "compute_infer", "compute_output")


def _durations(*names: str) -> dict[str, _Duration]:
    return {name: _Duration() for name in names}


@dataclass(slots=True)
class Statistics:
    """Counters since a version was loaded. Memory is bounded: batches are counted by their number of requests."""

    last: int = 0
    inferences: int = 0
    executions: int = 0
    durations: dict[str, _Duration] = field(default_factory=lambda: _durations("success", "fail", "queue", *_STEPS))
    batches: dict[int, dict[str, _Duration]] = field(default_factory=dict)

    def fail(self, total: int) -> None:
        """Count a request without a result, by its time in nanoseconds."""
        self.durations["fail"].add(total)

    def succeed(self, total: int, queue: int, timing: Timing, together: int, rows: int) -> None:
        """Count a request of some rows that ran together with others, itself included. Times are in nanoseconds."""
        self.last = int(time() * 1e3)
        self.inferences += rows
        steps = dict(zip(_STEPS, (timing.decode, timing.run, timing.encode), strict=True))
        for name, ns in {"success": total, "queue": queue, **steps}.items():
            self.durations[name].add(ns)
        if timing.counts:
            self.executions += 1
            batch = self.batches.setdefault(together, _durations(*_STEPS))
            for name, ns in steps.items():
                batch[name].add(ns)

    def to_json(self, name: str, version: str) -> Mapping[str, object]:
        """As the protocol has them."""
        return {
            "name": name,
            "version": version,
            "last_inference": self.last,
            "inference_count": self.inferences,
            "execution_count": self.executions,
            "inference_stats": {
                **{step: duration.to_json() for step, duration in self.durations.items()},
                "cache_hit": _Duration().to_json(),
                "cache_miss": _Duration().to_json(),
            },
            "batch_stats": [
                {"batch_size": size, **{step: duration.to_json() for step, duration in steps.items()}}
                for size, steps in sorted(self.batches.items())
            ],
        }

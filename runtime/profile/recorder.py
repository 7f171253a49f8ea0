"""Timing of one context's runs: steps by the host's clock, kernels by the device's clock if it has one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from threading import get_ident
from time import perf_counter_ns
from typing import Any, NamedTuple

from heterocc.runtime.execute.executable import Instrument, synchronizer
from heterocc.runtime.native.cpu_api import KernelTimes, kernel_times, kernels_only
from heterocc.runtime.native.kernel_clock import KernelClock
from heterocc.runtime.plan.schedule import HOST, Call, Schedule, Step
from heterocc.runtime.profile.timestamps import Timestamps

_OWNERS = count(1)


@dataclass(slots=True)
class Cell:
    """Nanoseconds of `calls` calls: `real` until the work was done, `cpu` until the call returned."""

    real: int = 0
    cpu: int = 0
    calls: int = 0


class Interval(NamedTuple):
    """A step or kernel of one run: what it was, and nanoseconds of the host's clock; `thread` made the call."""

    what: Step | tuple[int, str]
    begin: int
    end: int
    thread: int


MOST_INTERVALS = 50_000
"""The intervals that one context keeps: those of its first runs."""


@dataclass(slots=True)
class Recorder:
    """Observes one context: kernels by partition and symbol, steps by step.

    `untimed` counts kernel runs for which the device reported no time. `intervals` has the runs one by one, as many as
    there is room for. The kernels of a device with a clock of its own follow one another there, each not before its
    launch: the clock tells how long they take, and not when they begin.
    """

    plan: Schedule
    timestamps: Timestamps
    runs: int = 0
    untimed: int = 0
    kernels: dict[tuple[int, str], Cell] = field(default_factory=dict)
    steps: dict[Step, Cell] = field(default_factory=dict)
    intervals: list[Interval] = field(default_factory=list)
    _owner: int = field(default_factory=lambda: next(_OWNERS))
    _labels: list[Cell] = field(default_factory=list)
    _kernels: list[tuple[int, str]] = field(default_factory=list)
    _launches: list[tuple[int, int]] = field(default_factory=list)
    _free: int = 0
    _takers: dict[int, Callable[[], KernelTimes]] = field(default_factory=dict)

    def clear(self) -> None:
        """Discard the times of all runs so far. No run may be in progress."""
        self.runs = self.untimed = 0
        for cell in (*self.kernels.values(), *self.steps.values()):
            cell.real = cell.cpu = cell.calls = 0
        self.intervals.clear()

    def instrument(self, partition: int) -> Instrument:
        """The hook that times the partition's kernels."""
        space = self.plan.spaces[partition]
        clock = self.timestamps.clock(space)
        if clock is not None:
            return kernels_only(self._stamping(partition, clock))
        native = kernel_times(MOST_INTERVALS) if space == HOST else None
        if native is not None:
            observe, self._takers[partition] = native
            return observe
        return kernels_only(self._waiting(partition, synchronizer(space)))

    def _waiting(self, partition: int, wait: Callable[[], None] | None) -> Instrument:
        """A hook that waits for every kernel."""
        started: list[int] = []

        def hook(_function: Any, symbol: str, before: bool, _result: Any, *_arguments: Any) -> int:
            if symbol.startswith("vm.builtin."):
                return 0
            if before:
                started.append(perf_counter_ns())
                return 0
            launched = perf_counter_ns()
            if wait is not None:
                wait()
            begin, end = started.pop(), perf_counter_ns()
            cell = self.kernels.setdefault((partition, symbol), Cell())
            self._keep((partition, symbol), begin, end)
            cell.real += end - begin
            cell.cpu += launched - begin
            cell.calls += 1
            return 0

        return hook

    def _stamping(self, partition: int, clock: KernelClock) -> Instrument:
        """A hook that passes the running kernel to the device's clock; `wrap` collects the times."""
        labels: dict[str, int] = {}
        time_for, owner = clock.time_for, self._owner
        begin = 0

        def hook(_function: Any, symbol: str, before: bool, _result: Any, *_arguments: Any) -> int:
            nonlocal begin
            if symbol.startswith("vm.builtin."):
                return 0
            label = labels.get(symbol)
            if label is None:
                label = labels[symbol] = len(self._labels)
                self._labels.append(self.kernels.setdefault((partition, symbol), Cell()))
                self._kernels.append((partition, symbol))
            if before:
                time_for(owner, label)
                begin = perf_counter_ns()
                self._launches.append((label, begin))
                return 0
            cell = self._labels[label]
            cell.cpu += perf_counter_ns() - begin
            cell.calls += 1
            time_for(0, 0)
            return 0

        return hook

    def wrap(self, step: Step, action: Callable[[], Any], wait: Callable[[], Any] | None) -> Callable[[], Any]:
        """The action, timed."""
        cell = self.steps.setdefault(step, Cell())
        clock = self.timestamps.clock(self.plan.spaces[step.partition]) if isinstance(step, Call) else None

        def timed() -> None:
            begin = perf_counter_ns()
            try:
                action()
            finally:
                if clock is not None:
                    clock.time_for(0, 0)  # a kernel that failed did not stop its timing
            returned = perf_counter_ns()
            if wait is not None:
                wait()
            end = perf_counter_ns()
            self._keep(step, begin, end)
            cell.real += end - begin
            cell.cpu += returned - begin
            cell.calls += 1
            if clock is not None:
                self._collect(clock)
            if isinstance(step, Call) and step.partition in self._takers:
                self._take(step.partition)

        return timed

    def _take(self, partition: int) -> None:
        """Enter the times of a partition's kernels that were timed in native code."""
        symbols, sums, calls = self._takers[partition]()
        for symbol, (spent, times) in zip(symbols, sums, strict=True):
            cell = self.kernels.setdefault((partition, symbol), Cell())
            cell.real += spent
            cell.cpu += spent
            cell.calls += times
        for number, begin, end in calls:
            self._keep((partition, symbols[number]), begin, end)

    def _collect(self, clock: KernelClock) -> None:
        taken: defaultdict[int, list[int]] = defaultdict(list)
        for label, nanoseconds in clock.take(self._owner):
            if nanoseconds < 0:
                self.untimed += 1
            else:
                self._labels[label].real += nanoseconds
                taken[label].append(nanoseconds)
        launches, self._launches = self._launches, []
        calls: defaultdict[int, int] = defaultdict(int)
        for label, _ in launches:
            calls[label] += 1
        for label, begin in launches:
            # A function may launch several kernels of the device, the same number in each call.
            each = len(taken[label]) // calls[label]
            spent, taken[label] = sum(taken[label][:each]), taken[label][each:]
            calls[label] -= 1
            start = max(begin, self._free)
            self._free = start + spent
            if spent:
                self._keep(self._kernels[label], start, self._free)

    def _keep(self, what: Step | tuple[int, str], begin: int, end: int) -> None:
        if len(self.intervals) < MOST_INTERVALS:
            self.intervals.append(Interval(what, begin, end, get_ident()))

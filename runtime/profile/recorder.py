"""Timing of one context's runs: steps by the host's clock, kernels by the device's clock if it has one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter_ns
from typing import Any

from heterocc.runtime.execute.executable import Instrument, synchronizer
from heterocc.runtime.native.kernel_clock import KernelClock
from heterocc.runtime.plan.schedule import Call, Schedule, Step
from heterocc.runtime.profile.timestamps import Timestamps

_OWNERS = count(1)


@dataclass(slots=True)
class Cell:
    """Nanoseconds of `calls` calls: `real` until the work was done, `cpu` until the call returned."""

    real: int = 0
    cpu: int = 0
    calls: int = 0


@dataclass(slots=True)
class Recorder:
    """Observes one context: kernels by partition and symbol, steps by step.

    `untimed` counts kernel runs for which the device reported no time.
    """

    plan: Schedule
    timestamps: Timestamps
    runs: int = 0
    untimed: int = 0
    kernels: dict[tuple[int, str], Cell] = field(default_factory=dict)
    steps: dict[Step, Cell] = field(default_factory=dict)
    _owner: int = field(default_factory=lambda: next(_OWNERS))
    _labels: list[Cell] = field(default_factory=list)

    def clear(self) -> None:
        """Discard the times of all runs so far. No run may be in progress."""
        self.runs = self.untimed = 0
        for cell in (*self.kernels.values(), *self.steps.values()):
            cell.real = cell.cpu = cell.calls = 0

    def instrument(self, partition: int) -> Instrument:
        """The hook that times the partition's kernels."""
        space = self.plan.spaces[partition]
        clock = self.timestamps.clock(space)
        if clock is not None:
            return self._stamping(partition, clock)
        return self._waiting(partition, synchronizer(space))

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
            begin = started.pop()
            cell = self.kernels.setdefault((partition, symbol), Cell())
            cell.real += perf_counter_ns() - begin
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
            if before:
                time_for(owner, label)
                begin = perf_counter_ns()
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
            cell.real += perf_counter_ns() - begin
            cell.cpu += returned - begin
            cell.calls += 1
            if clock is not None:
                self._collect(clock)

        return timed

    def _collect(self, clock: KernelClock) -> None:
        for label, nanoseconds in clock.take(self._owner):
            if nanoseconds < 0:
                self.untimed += 1
            else:
                self._labels[label].real += nanoseconds

"""Runs of a bundle's kernels in the opposite order, so that a driver compiles those first that are needed last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from heterocc.runtime.execute.executable import Instrument, synchronizer
from heterocc.runtime.plan.schedule import Schedule, Step


class Rehearsal:
    """Observes one context: kernels are not run in their order, but by `run`. What they compute is of no use."""

    def __init__(self, plan: Schedule) -> None:
        self._plan = plan
        self._calls: list[tuple[int, Callable[..., Any], tuple[Any, ...]]] = []

    def instrument(self, partition: int) -> Instrument:
        """The hook that records the calls of kernels in place of running them."""

        def hook(function: Any, symbol: str, before: bool, _result: Any, *arguments: Any) -> int:
            if not before or symbol.startswith("vm.builtin."):
                return 0
            self._calls.append((partition, function, arguments))
            return 1

        return hook

    def wrap(self, step: Step, action: Callable[[], Any], wait: Callable[[], Any] | None) -> Callable[[], Any]:
        """Return the action unchanged."""
        return action

    def run(self, stop: Callable[[], bool]) -> None:
        """Run the recorded calls, the last one first, until `stop` is true."""
        waits = [synchronizer(space) for space in self._plan.spaces]
        for partition, function, arguments in reversed(self._calls):
            if stop():
                return
            function(*arguments)
            wait = waits[partition]
            if wait is not None:
                wait()

"""Unfinished work of a run on devices: by device, in order, each with a function that waits for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress

from heterocc.artifacts.errors import HeteroccError
from heterocc.runtime.execute.faults import device_fault
from heterocc.runtime.plan.steps import Call, Copy, Space

Settle = Callable[[], object]
"""A function that waits until a copy or a partition is done, and raises its error."""

Describe = Callable[[Copy | Call], tuple[str, str]]
"""The action of a step and the label of its device, for messages."""


class InFlight:
    """The running copies and partitions of one run. For one thread."""

    __slots__ = ("_describe", "_queues")

    def __init__(self, describe: Describe) -> None:
        self._describe = describe
        self._queues: dict[Space, deque[tuple[Copy | Call, Settle]]] = {}

    def add(self, device: Space, step: Copy | Call, settle: Settle) -> None:
        """Add work of a device; one step may have several parts."""
        self._queues.setdefault(device, deque()).append((step, settle))

    def settle(self, device: Space, until: Copy | Call) -> None:
        """Wait for all work of a device up to a step, unless this is done already.

        Each step has its own result, so that an error names the copy that failed. Raises DeviceError
        or DeviceMemoryError naming it.
        """
        queue = self._queues.get(device, deque())
        if not any(step is until for step, _ in queue):
            return
        while queue:
            step, wait = queue.popleft()
            try:
                wait()
            except Exception as error:
                raise device_fault(error, *self._describe(step)) from error
            if step is until and not (queue and queue[0][0] is until):
                return

    def finish(self) -> None:
        """Wait for all remaining work. Raises as `settle` does."""
        for device in self._queues:
            self.drain(device)

    def drain(self, device: Space) -> None:
        """Wait for all work of a device. Raises as `settle` does."""
        queue = self._queues.get(device)
        if queue:
            self.settle(device, queue[-1][0])

    def abandon(self) -> None:
        """Wait for all remaining work, failed or not: memory must not be freed while a device uses it."""
        for queue in self._queues.values():
            while queue:
                with suppress(HeteroccError, RuntimeError, ValueError, OSError):
                    queue.popleft()[1]()

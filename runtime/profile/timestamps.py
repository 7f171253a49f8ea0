"""The devices of a session that time their kernels themselves, and notes on the others."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

from heterocc.artifacts.foreign import pass_foreign
from heterocc.runtime import forks
from heterocc.runtime.execute.faults import first_line
from heterocc.runtime.native import typed_error, vulkan_devices
from heterocc.runtime.native.kernel_clock import KernelClock
from heterocc.runtime.plan.schedule import HOST, Space


class Timestamps:
    """Device timestamps for a session's kernels, enabled from construction until `close` or garbage collection.

    If a device has none, its kernels are timed by waiting for each, with a note in `notes`.
    """

    def __init__(self, spaces: Iterable[Space]) -> None:
        self._clocks: dict[Space, KernelClock] = {}
        started: list[KernelClock] = []
        notes: list[str] = []
        for space in dict.fromkeys(spaces):
            if space == HOST:
                continue
            found = find_clock(space)
            if isinstance(found, KernelClock):
                try:
                    found.start()
                except Exception as error:
                    pass_foreign(error)
                    typed = typed_error(error)
                    found = first_line(error) if typed is None else typed.message
                else:
                    started.append(found)
                    self._clocks[space] = found
            if isinstance(found, str):
                notes.append(f"kernels on {space} are timed by waiting for each, which slows them down: {found}")
        self.notes = tuple(notes)
        forks.keep_in_children(self)
        self._finalizer = weakref.finalize(self, _stop, started)
        self._finalizer.atexit = False  # the drivers end with the process

    def clock(self, space: Space) -> KernelClock | None:
        """The clock for kernels in a space, or None if the host times them."""
        return self._clocks.get(space)

    def close(self) -> None:
        """Disable the timestamps, unless other sessions use them too."""
        self._finalizer()


def find_clock(space: Space) -> KernelClock | str:
    """The clock of a device, or the reason why it has none."""
    if space.backend not in ("opencl", "vulkan"):
        return f"timestamps of {space.backend} are not used"
    if space.backend == "vulkan" and not vulkan_devices()[space.index].timestamps:
        return "the device has no timestamps"
    clock = KernelClock.of(space.backend)
    return "the installed TVM has its own back end" if clock is None else clock


def _stop(clocks: Iterable[KernelClock]) -> None:
    for clock in clocks:
        clock.stop()

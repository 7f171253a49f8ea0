"""The contexts of a loaded variant, created on demand and reused."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from heterocc.runtime.execute.chain import Chain, Context

if TYPE_CHECKING:  # imported when a session profiles
    from heterocc.runtime.profile.recorder import Recorder
    from heterocc.runtime.profile.timestamps import Timestamps


class ContextPool:
    """Contexts of one chain, the first of them created at once. Thread-safe; a context is for one thread at a time."""

    def __init__(self, chain: Chain, *, profiling: bool = False) -> None:
        """Raises DeviceError or DeviceMemoryError if there is not enough memory for the first context."""
        self.chain = chain
        spaces = [space for i, space in enumerate(chain.schedule.spaces) if i in chain.compiled]
        self.timestamps: Timestamps | None = None
        if profiling:
            from heterocc.runtime.profile.timestamps import Timestamps

            self.timestamps = Timestamps(spaces)
        self._lock = threading.Lock()
        self._recorders: list[Recorder] = []
        self._closed = False
        self._idle = deque([self.new()])

    @property
    def recorders(self) -> tuple[Recorder, ...]:
        """The recorders of all contexts created so far; empty without profiling."""
        with self._lock:
            return tuple(self._recorders)

    def new(self) -> Context:
        """A new context, owned by the caller."""
        if self.timestamps is None:
            return Context(self.chain)
        from heterocc.runtime.profile.recorder import Recorder

        recorder = Recorder(self.chain.schedule, self.timestamps)
        context = Context(self.chain, observer=recorder)
        with self._lock:
            self._recorders.append(recorder)
        return context

    def take(self) -> Context:
        """An idle context, or a new one."""
        try:
            return self._idle.pop()
        except IndexError:
            return self.new()

    def give_back(self, context: Context) -> None:
        """Keep a context for the next caller, unless the pool is closed."""
        if not self._closed:
            self._idle.append(context)

    def close(self) -> None:
        """Free idle contexts, and those in use when they are given back. Stop the device timestamps."""
        self._closed = True
        self._idle.clear()
        if self.timestamps is not None:
            self.timestamps.close()

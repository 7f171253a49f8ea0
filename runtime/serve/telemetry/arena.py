"""What ONNX Runtime's arena keeps, divided among the models whose runs made it grow."""

from __future__ import annotations

import threading
from collections.abc import Hashable

from heterocc.runtime.execute.ort_session import arena_bytes, shrink_arena
from heterocc.runtime.serve.memory import Memory, resident

_STEP = 1 << 20
"""A run has not changed the arena if the process's size differs from that of the last look by less."""


class Arena:
    """The arena that all sessions of ONNX Runtime in the service share. For use by several threads."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._parts: dict[Hashable, float] = {}
        self._size = 0
        self._resident = 0
        self._before = 0

    def begin(self) -> None:
        """Note its size when the models are loaded, as `Memory.begin` does that of the process."""
        self._before = self._size

    def ran(self, user: Hashable) -> None:
        """Add to a model's part what the arena has grown by; the model has run."""
        with self._lock:
            now = resident()
            if abs(now - self._resident) < _STEP:  # asking ONNX Runtime takes ten times as long
                return
            size, before = arena_bytes(), self._size
            self._size, self._resident = size, now
            self._parts[user] = self._parts.get(user, 0) + max(0, size - before)

    def left(self, user: Hashable) -> None:
        """Give back what no run uses, when a model that has run is unloaded: the others take what they need again."""
        with self._lock:
            if self._parts.pop(user, None) is None:
                return
            shrink_arena()
            size, before = arena_bytes(), self._size
            self._size, self._resident = size, resident()
            for other in self._parts:
                self._parts[other] *= size / before if before else 1

    def part(self, user: Hashable) -> int:
        """The bytes of a model, at most those by which the process has grown."""
        part, whole = self._parts.get(user, 0), self._size
        used = min(whole, self._before + self._memory.kept)
        return round(part * used / whole) if whole else 0

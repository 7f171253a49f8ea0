"""Rarer garbage collection during a compile."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (100_000, 20, 50)

_lock = threading.Lock()
_before: list[tuple[int, int, int]] = []
"""The thresholds before the first compile that runs now, once for each of those that run now."""


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Let Python look for unreachable cycles after more objects than usual. Also a decorator.

    A compile makes millions of objects that reference counts free; looking through them takes a tenth of its time.
    The thresholds are the process's: they are as before when the last of several compiles has ended.
    """
    with _lock:
        _before.append(_before[0] if _before else gc.get_threshold())
        gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        with _lock:
            found = _before.pop()
            if not _before:
                gc.set_threshold(*found)

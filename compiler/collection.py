"""Rarer garbage collection during a compile."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_THRESHOLDS = (100_000, 20, 50)


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Let Python look for unreachable cycles after more objects than usual. Also a decorator.

    A compile makes millions of objects that reference counts free; looking through them takes a tenth of its time.
    """
    before = gc.get_threshold()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)

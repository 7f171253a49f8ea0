"""How many cores something else keeps busy while kernels are compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_busy: ContextVar[int] = ContextVar("heterocc_busy_cores", default=0)


def busy_cores() -> int:
    """The number of cores that are busy."""
    return _busy.get()


@contextmanager
def beside_busy_cores(count: int) -> Iterator[None]:
    """Compile kernels in fewer threads within the block, because something else keeps cores busy."""
    token = _busy.set(count)
    try:
        yield
    finally:
        _busy.reset(token)

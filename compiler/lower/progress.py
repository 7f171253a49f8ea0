"""Progress reports of a lowering: its loops report each step to a watcher, if one is set for the thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Watcher(Protocol):
    """Callbacks for the progress of a lowering."""

    def phase(self, text: str, total: int | None = None) -> None:
        """Called when a phase begins; `total` is its number of steps, None if unknown."""
        ...

    def step(self, text: str = "") -> None:
        """Called when a step of the phase is done."""
        ...


_watcher: ContextVar[Watcher | None] = ContextVar("heterocc_lowering_watcher", default=None)


@contextmanager
def watched(watcher: Watcher | None) -> Iterator[None]:
    """Report the progress of lowerings in this thread to `watcher` within the block; None disables reports."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def unwatched(function: Callable[P, T]) -> Callable[P, T]:
    """`function` without progress reports, for a lowering that is one step of a larger one."""

    @wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> T:
        with watched(None):
            return function(*args, **kwargs)

    return alone


def phase(text: str) -> None:
    """Report the start of a phase whose number of steps is unknown."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher.phase(text)


def counted(text: str, items: Collection[T]) -> Iterator[T]:
    """Iterate over the items and report each as a step of a phase."""
    watcher = _watcher.get()
    if watcher is None:
        yield from items
        return
    watcher.phase(text, len(items))
    for item in items:
        yield item
        watcher.step()

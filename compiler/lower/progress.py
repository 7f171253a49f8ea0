"""How far a lowering is: its loops tell whoever watches, without a watcher they are plain loops."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Watcher(Protocol):
    """Who is told of a lowering's progress."""

    def phase(self, text: str, total: int | None = None) -> None:
        """A phase begins, of `total` steps where that is known."""
        ...

    def step(self, text: str = "") -> None:
        """A step of the phase is done."""
        ...


_watcher: ContextVar[Watcher | None] = ContextVar("heterocc_lowering_watcher", default=None)


@contextmanager
def watched(watcher: Watcher | None) -> Iterator[None]:
    """While open, what this thread lowers is told to `watcher`, None for nobody."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def unwatched(function: Callable[P, T]) -> Callable[P, T]:
    """A function that tells nobody: it lowers within a step of something larger."""

    @wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> T:
        with watched(None):
            return function(*args, **kwargs)

    return alone


def phase(text: str) -> None:
    """A phase begins that cannot be counted."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher.phase(text)


def counted(text: str, items: Collection[T]) -> Iterator[T]:
    """The items, each a step of a phase."""
    watcher = _watcher.get()
    if watcher is None:
        yield from items
        return
    watcher.phase(text, len(items))
    for item in items:
        yield item
        watcher.step()

"""What a compile tells while it runs: notes, warnings, progress and the time of its stages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Reporter:
    """Collects notes and warnings; a command line shows them and progress by overriding the methods.

    Notes say what was decided without being asked; warnings say what the user should look at. Nothing that changes a
    result may stay untold, so both end up in the report and in the bundle. Of a text with two forms (a Hint) this class
    keeps the one for callers from Python.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def note(self, text: str) -> None:
        """Say what was decided without being asked."""
        text = str(text)
        if text not in self.notes:
            self.notes.append(text)

    def warn(self, text: str) -> None:
        """Say what the user should look at."""
        text = str(text)
        if text not in self.warnings:
            self.warnings.append(text)

    @contextmanager
    def stage(self, title: str, total: int | None = None) -> Iterator[Progress]:
        """A stage of long work; `total` is its number of steps where known."""
        yield Progress()


class Progress:
    """Progress inside a stage; this base shows nothing."""

    def begin(self, text: str) -> None:
        """Work on an item begins."""

    def phase(self, text: str, total: int | None = None) -> None:
        """A phase of the work on the item begins: counting starts anew, to `total` where that is known."""

    def item(self, text: str) -> None:
        """Work on the next step of the phase begins; `text` names it."""

    def step(self, text: str = "", steps: int = 1) -> None:
        """Steps are done; `text` names the item, where `begin` has not."""


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add the wall time of the block to `seconds[name]`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start

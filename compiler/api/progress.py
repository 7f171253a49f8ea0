"""Notes, warnings, progress and times of a running compile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from heterocc.artifacts.text.one_line import one_line


class Reporter:
    """A collector of notes and warnings. A command line overrides its methods to show them and progress.

    Notes are about decisions that the user did not make; warnings need the user's attention. Everything that changes a
    result is reported, so notes and warnings are also in the report of the compile. Each is kept in one line, with
    control characters escaped; of a text with two forms (a Hint) this class keeps the one for callers from Python.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.warnings: list[str] = []

    def note(self, text: str) -> None:
        """Add a note on a decision that the user did not make; repeated notes are ignored."""
        text = one_line(str(text))
        if text not in self.notes:
            self.notes.append(text)

    def warn(self, text: str) -> None:
        """Add a warning that needs the user's attention; repeated warnings are ignored."""
        text = one_line(str(text))
        if text not in self.warnings:
            self.warnings.append(text)

    @contextmanager
    def stage(self, title: str, total: int | None = None) -> Iterator[Progress]:
        """A stage of long work; `total` is its number of steps, if known."""
        yield Progress()


class Progress:
    """Progress within a stage; this base class shows nothing."""

    def begin(self, text: str) -> None:
        """Begin work on an item."""

    def phase(self, text: str, total: int | None = None) -> None:
        """Begin a phase of the item and reset the count of steps; `total` is their number, if known."""

    def item(self, text: str) -> None:
        """Begin the next step of the phase, which `text` names."""

    def step(self, text: str = "", steps: int = 1) -> None:
        """Count finished steps; `text` names the item if `begin` was not called."""


@contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add the wall time of the block to `seconds[name]`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start

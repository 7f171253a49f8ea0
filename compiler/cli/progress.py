"""Progress of long work: a bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as RichProgress

from heterocc.compiler.api.progress import Progress

LINE_SECONDS = 5.0
"""Seconds between lines of progress if not on a terminal; faster work writes no line."""

_WIDTH = 60
"""Maximum characters of an item's name that are shown."""


class Stage(Progress):
    """The state of a stage: its title, the item, the phase, and the steps of the phase or of the stage."""

    def __init__(self, title: str, total: int | None) -> None:
        self.title, self.total, self.done = title, total or None, 0
        self._item = self._phase = self._step = ""

    @property
    def text(self) -> str:
        """Title, item, phase and step: `lowering p0 for CPU (67 nodes): scheduling kernels`."""
        text = " ".join(part for part in (self.title, self._item[:_WIDTH]) if part)
        return ": ".join(part for part in (text, self._phase, self._step[:_WIDTH]) if part)

    @property
    def count(self) -> str:
        """The steps done and their total, such as `12/66`; empty without a total."""
        return "" if self.total is None else f"{self.done}/{self.total}"

    def begin(self, text: str) -> None:
        """Begin an item."""
        self._item, self._phase, self._step = text, "", ""
        self.show()

    def phase(self, text: str, total: int | None = None) -> None:
        """Begin a phase of the item."""
        self._phase, self._step, self.total, self.done = text, "", total, 0
        self.show()

    def item(self, text: str) -> None:
        """Begin the next step of the phase."""
        self._step = text
        self.show()

    def step(self, text: str = "", steps: int = 1) -> None:
        """Count finished steps."""
        if text:
            self._item = text
        self.done += steps
        self.show()

    def show(self) -> None:
        """Display the state; called after each change."""


class _Bar(Stage):
    def __init__(self, title: str, total: int | None, bar: RichProgress) -> None:
        super().__init__(title, total)
        self._bar = bar
        self._task = bar.add_task(escape(title), total=self.total, count=self.count)

    def show(self) -> None:
        self._bar.update(
            self._task, description=escape(self.text), total=self.total, completed=self.done, count=self.count
        )


@contextmanager
def bar(console: Console, title: str, total: int | None) -> Iterator[Progress]:
    """A progress bar that disappears when the stage ends; without a total, it only moves."""
    columns = [
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[count]}"),
        TimeElapsedColumn(),
    ]
    with RichProgress(*columns, console=console, transient=True) as shown:
        yield _Bar(title, total, shown)


class Lines:
    """A writer of progress lines: one every `LINE_SECONDS` during stages, counted from the start of the first."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started: float | None = None
        self._last = 0.0

    @contextmanager
    def stage(self, title: str, total: int | None) -> Iterator[Progress]:
        """A stage that writes lines even if no progress is reported."""
        now = time.monotonic()
        if self._started is None:
            self._started = self._last = now
        stage, over = Stage(title, total), threading.Event()
        writer = threading.Thread(target=self._write, args=(stage, over), name="heterocc-progress", daemon=True)
        writer.start()
        try:
            yield stage
        finally:
            over.set()
            writer.join()

    def _write(self, stage: Stage, over: threading.Event) -> None:
        while not over.wait(max(0.0, self._last + LINE_SECONDS - time.monotonic())):
            self._last = time.monotonic()
            elapsed = self._last - (self._started or 0.0)
            line = " ".join(part for part in (stage.text, stage.count) if part)
            try:
                self._console.print(escape(f"{line} … {elapsed:.0f} s"))
            except (OSError, ValueError):  # standard error was closed
                return

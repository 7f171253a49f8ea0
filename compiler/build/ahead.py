"""Lowering of CPU partitions in a thread while a GPU's driver compiles kernels, which takes a core for seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from threading import Event
from types import TracebackType
from typing import Self

from heterocc.compiler.lower.backend import Candidate, LoweredPartition, Run, Timer

Lower = Callable[[Timer, Callable[[str], None]], LoweredPartition]
"""A lowering, given the timer of kernels and the receiver of its notes."""


@dataclass(frozen=True, slots=True)
class LoweringBegun:
    """A partition that a thread lowers, and its notes so far."""

    result: Future[LoweredPartition]
    notes: list[str]


class LoweringAhead:
    """A thread that lowers partitions before they are asked for. Use as a context manager: its end awaits the thread.

    Kernels are timed only while nothing else runs.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "heterocc-lowering")
        self._quiet = Event()
        self._quiet.set()
        self._last: Future[LoweredPartition] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._quiet.set()
        self._pool.shutdown(cancel_futures=True)

    def begin(self, lower: Lower, timer: Timer) -> LoweringBegun:
        """Lower a partition; kernels are timed once it is quiet, or when somebody waits for it."""

        def quietly(candidates: Sequence[Candidate], wait: Run) -> Sequence[float]:
            self._quiet.wait()
            return timer(candidates, wait)

        notes: list[str] = []
        # The files that must not be overwritten belong to the context.
        self._last = self._pool.submit(copy_context().run, lower, quietly, notes.append)
        return LoweringBegun(self._last, notes)

    def busy(self) -> None:
        """Let no kernels be timed: something else is about to run."""
        self._quiet.clear()

    def quiet(self) -> None:
        """Let kernels be timed: nothing else is running."""
        self._quiet.set()

    def finish(self) -> None:
        """Wait until nothing is being lowered."""
        self._quiet.set()
        if self._last is not None:  # one thread lowers one after another
            self._last.exception()

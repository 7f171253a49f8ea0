"""Lowering of CPU partitions in a thread while a GPU's driver compiles kernels, which takes a core for seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from threading import Event
from types import TracebackType
from typing import Self

from heterocc.compiler.lower.backend import Candidate, LoweredPartition, Run, Timer

Lower = Callable[[Timer, Callable[[str], None]], LoweredPartition]
"""A lowering, given the timer of kernels and the receiver of its notes."""


class LoweringAhead:
    """Partitions that a thread lowers before they are asked for. Use as a context manager: its end awaits the thread.

    Kernels are timed only while nothing else runs.
    """

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._quiet = Event()
        self._quiet.set()
        self._begun: dict[object, tuple[Future[LoweredPartition], list[str]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._quiet.set()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def begin(self, key: object, lower: Lower, timer: Timer) -> None:
        """Lower a partition, unless it was begun before; kernels are timed after `quiet`, or when it is taken."""
        self._quiet.clear()
        if key in self._begun:
            return

        def quietly(candidates: Sequence[Candidate], wait: Run) -> Sequence[float]:
            self._quiet.wait()
            return timer(candidates, wait)

        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "heterocc-lowering")
        notes: list[str] = []
        # The files that must not be overwritten belong to the context.
        self._begun[key] = self._pool.submit(copy_context().run, lower, quietly, notes.append), notes

    def quiet(self) -> None:
        """Let kernels be timed: nothing else is running."""
        self._quiet.set()

    def finish(self) -> None:
        """Wait until nothing is being lowered."""
        self._quiet.set()
        for future, _ in self._begun.values():
            future.exception()

    def take(self, key: object, note: Callable[[str], None]) -> LoweredPartition | None:
        """The partition, and its notes to `note`; None if it was not begun. Raises what its lowering raised."""
        future, notes = self._begun.pop(key, (None, []))
        if future is None:
            return None
        self._quiet.set()
        try:
            return future.result()
        finally:
            for text in notes:
                note(text)

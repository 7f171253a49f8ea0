"""Lowering of CPU partitions in a thread while a GPU's driver compiles kernels, which takes a core for seconds."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from types import TracebackType
from typing import Self

from heterocc.compiler.lower.backend import LoweredPartition


class LoweringAhead:
    """A thread that lowers partitions before they are asked for; the end of the context awaits it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "heterocc-lowering")
        self._last: Future[LoweredPartition] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def begin(self, lower: Callable[[], LoweredPartition]) -> Future[LoweredPartition]:
        """Begin to lower a partition."""
        # The files that must not be overwritten belong to the context.
        self._last = self._pool.submit(copy_context().run, lower)
        return self._last

    def finish(self) -> None:
        """Wait until nothing is being lowered."""
        if self._last is not None:  # one thread lowers one after another
            self._last.exception()

"""Threads that run requests, and the queues in front of them, one for each model version.

Everything but the requests themselves runs on the event loop, so that queues need no locks.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Generic, TypeVar

from heterocc.artifacts.errors import DeadlineError, QueueFullError

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Job(Generic[T]):
    """One request: the function that a worker calls, and times from `perf_counter` in seconds.

    `result` is None once the caller has it or has left. An error's traceback leads to the job; if the job led back to
    the error, only the garbage collector would free the request's data.
    """

    work: Callable[[], T]
    line: Line
    result: asyncio.Future[T] | None
    queued: float = field(default_factory=perf_counter)
    started: float | None = None
    ended: float | None = None


class Line:
    """The waiting requests of one model version, first in, first out.

    `pending` counts places: requests that are received, wait or run. Batching belongs here: a worker that takes a
    request could take those behind it too.
    """

    def __init__(self, name: str, limit: int) -> None:
        self.name = name
        self.limit = limit
        self.pending = 0
        self.running = 0
        self.in_turn = False
        self.jobs: deque[Job[Any]] = deque()

    @property
    def waiting(self) -> int:
        """The number of requests that are received or wait for a worker."""
        return self.pending - self.running

    @contextmanager
    def place(self) -> Iterator[None]:
        """Take a place for a request before its data is read. Raises QueueFullError if there is none.

        A request whose caller left while it ran keeps its place until the run ends.
        """
        if self.pending >= self.limit:
            raise QueueFullError(
                f"the model '{self.name}' has {self.pending} requests waiting or running", hint="send it again later"
            )
        self.pending += 1
        try:
            yield
        finally:
            self.pending -= 1


class Workers:
    """A fixed number of threads. Models with waiting requests take turns. For use on one event loop."""

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._idle = count
        self._turns: deque[Line] = deque()
        self._handed: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"worker-{number}", daemon=True) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, line: Line, work: Callable[[], T]) -> Job[T]:
        """Queue a request in a line in which it has a place."""
        job = Job(work, line, self._loop.create_future())
        line.jobs.append(job)
        self._add_turn(line)
        self._hand_out()
        return job

    async def result(self, job: Job[T], deadline: float | None = None) -> T:
        """Wait for a request. `deadline` is on the event loop's clock.

        Raises what the work raises, and DeadlineError. If it is cancelled or its deadline passes, a request that waits
        is removed; one that runs goes on and its result is dropped.
        """
        assert job.result is not None
        timer = None if deadline is None else self._loop.call_at(deadline, _expire, job)
        try:
            return await job.result
        finally:
            job.result = None
            if timer is not None:
                timer.cancel()
            if job.started is None:
                with suppress(ValueError):
                    job.line.jobs.remove(job)
            elif job.ended is None:
                job.line.pending += 1  # given back in `_finish`

    def close(self) -> None:
        """End the threads after their current requests. No further request may be submitted."""
        for _ in self._threads:
            self._handed.put(None)

    def _add_turn(self, line: Line) -> None:
        if not line.in_turn:
            line.in_turn = True
            self._turns.append(line)

    def _hand_out(self) -> None:
        while self._idle and self._turns:
            line = self._turns.popleft()
            line.in_turn = False
            if not line.jobs:  # all were cancelled
                continue
            job = line.jobs.popleft()
            if line.jobs:
                self._add_turn(line)
            job.started = perf_counter()
            line.running += 1
            self._idle -= 1
            self._handed.put(job)

    def _work(self) -> None:
        while (job := self._handed.get()) is not None:
            result, error = None, None
            try:
                result = job.work()
            except BaseException as raised:
                error = raised
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._finish, job, result, error)
            del job, result, error  # a waiting thread keeps no arrays alive

    def _finish(self, job: Job[Any], result: Any, error: BaseException | None) -> None:
        job.ended = perf_counter()
        job.line.running -= 1
        self._idle += 1
        if job.result is None:
            job.line.pending -= 1  # the caller left
        elif not job.result.done():
            if error is None:
                job.result.set_result(result)
            else:
                job.result.set_exception(error)
        self._hand_out()


def _expire(job: Job[Any]) -> None:
    if job.result is not None and not job.result.done():
        state = "waiting" if job.started is None else "running"
        job.result.set_exception(DeadlineError(f"the deadline passed while the request was {state}"))

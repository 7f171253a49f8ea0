"""Threads that run requests, and the queues in front of them, one for each model version.

Everything but the requests themselves runs on the event loop, so that queues need no locks. A worker takes one request
or, from the line of a model that takes batches, several at once.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Generic, TypeVar

from heterocc.runtime.serve.batches import Batching, Share
from heterocc.runtime.serve.errors import DeadlineError, QueueFullError

T = TypeVar("T")

Outcome = tuple[Any, BaseException | None]
"""What a request returned, or the error that it raised."""

RunTogether = Callable[[Sequence[Any]], Sequence[Outcome]]


@dataclass(slots=True, eq=False)
class Job(Generic[T]):
    """One request: the function that a worker calls, and times from `perf_counter` in seconds.

    `result` is None once the caller has it or has left. An error's traceback leads to the job; if the job led back to
    the error, only the garbage collector would free the request's data.
    """

    work: Callable[[], T]
    line: Line
    result: asyncio.Future[T] | None
    share: Share | None = None
    together: int = 1
    """The number of requests in its run."""
    queued: float = field(default_factory=perf_counter)
    started: float | None = None
    ended: float | None = None
    deadline: float | None = None
    """On the event loop's clock."""
    after: Callable[[], None] | None = None
    """Called when the run has ended whose caller left before."""


class Line:
    """The waiting requests of one model version, first in, first out.

    `pending` counts places: requests that wait or run. With `batching`, a worker that takes a request
    takes those behind it that fit.
    """

    def __init__(self, name: str, limit: int, batching: Batching | None = None) -> None:
        self.name = name
        self.limit = limit
        self.batching = batching
        self.pending = 0
        self.running = 0
        self.in_turn = False
        self.jobs: deque[Job[Any]] = deque()

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a worker."""
        return self.pending - self.running

    def require_place(self) -> None:
        """Raise QueueFullError if there is no place now, so that a request need not be received."""
        if self.pending >= self.limit:
            raise QueueFullError(
                f"the model '{self.name}' has {self.pending} requests waiting or running", hint="send it again later"
            )

    @contextmanager
    def place(self) -> Iterator[None]:
        """Take a place for a request that was received. Raises QueueFullError if there is none.

        A request whose caller left while it ran keeps its place until the run ends.
        """
        self.require_place()
        self.pending += 1
        try:
            yield
        finally:
            self.pending -= 1

    def take(self) -> list[Job[Any]]:
        """Remove the requests of the next run from those that wait; there must be one."""
        if self.batching is None:
            return [self.jobs.popleft()]
        jobs = [self.jobs[place] for place in self.batching.select(job.share for job in self.jobs)]
        for job in jobs:
            self.jobs.remove(job)
            job.together = len(jobs)
        return jobs


class Workers:
    """A fixed number of threads. Models with waiting requests take turns. For use on one event loop."""

    def __init__(self, count: int, run_together: RunTogether | None = None) -> None:
        """`run_together` runs the works of a batch, in a worker's thread, and returns the outcome of each."""
        self._together = run_together
        self._loop = asyncio.get_running_loop()
        self.count = count
        self._idle = count
        self._turns: deque[Line] = deque()
        self._handed: queue.SimpleQueue[list[Job[Any]] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"worker-{number}", daemon=True) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, line: Line, work: Callable[[], T], share: Share | None = None) -> Job[T]:
        """Queue a request in a line in which it has a place. Requests without a share run alone."""
        job = Job(work, line, self._loop.create_future(), share)
        line.jobs.append(job)
        self._add_turn(line)
        self._hand_out()
        return job

    async def result(self, job: Job[T], deadline: float | None = None) -> T:
        """Wait for a request. `deadline` is on the event loop's clock.

        Raises what the work raises, and DeadlineError. If it is cancelled or its deadline passes, a request that waits
        is removed; one that runs goes on and its result is dropped. A result that arrives after the deadline is an
        error too, also where the event loop was too busy to notice the deadline itself.
        """
        assert job.result is not None
        job.deadline = deadline
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
            jobs = line.take()
            if line.jobs:
                self._add_turn(line)
            started = perf_counter()
            for job in jobs:
                job.started = started
            line.running += len(jobs)
            self._idle -= 1
            self._handed.put(jobs)

    def _work(self) -> None:
        while (jobs := self._handed.get()) is not None:
            outcomes = self._outcomes(jobs)
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._finish, jobs, outcomes)
            del jobs, outcomes  # a waiting thread keeps no arrays alive

    def _outcomes(self, jobs: Sequence[Job[Any]]) -> Sequence[Outcome]:
        try:
            if len(jobs) > 1 and self._together is not None:
                return self._together([job.work for job in jobs])
            return [(jobs[0].work(), None)]
        except BaseException as error:
            return [(None, error)] * len(jobs)

    def _finish(self, jobs: Sequence[Job[Any]], outcomes: Sequence[Outcome]) -> None:
        self._idle += 1
        for job, (result, error) in zip(jobs, outcomes, strict=True):
            self._answer(job, result, error)
        self._hand_out()

    def _answer(self, job: Job[Any], result: Any, error: BaseException | None) -> None:
        job.ended = perf_counter()
        job.line.running -= 1
        if job.result is None:
            job.line.pending -= 1  # the caller left
            if job.after is not None:
                job.after()
        elif not job.result.done():
            if job.deadline is not None and self._loop.time() >= job.deadline:
                _expire(job)
            elif error is None:
                job.result.set_result(result)
            else:
                job.result.set_exception(error)


def _expire(job: Job[Any]) -> None:
    if job.result is not None and not job.result.done():
        state = "waiting" if job.started is None else "running"
        job.result.set_exception(DeadlineError(f"the deadline passed while the request was {state}"))

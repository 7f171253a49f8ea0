"""A queue of requests, and the threads that carry them out."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from heterocc.artifacts.errors import DeviceError, UsageError
from heterocc.runtime import forks
from heterocc.runtime.feeds import Array, Feed

IDLE_SECONDS = 0.2
"""A thread without work ends after this time, so that none outlives its session, and none delays the process's end."""

Results = dict[str, Any]


class Member(Protocol):
    """What runs a request: a loaded variant, or a choice among several."""

    @property
    def usable(self) -> bool:
        """Whether it should get requests as long as another member can take them."""
        ...

    def run(self, feed: Feed, out: Mapping[str, Array] | None = None) -> Results:
        """Run one request on the calling thread."""
        ...


class Request(Future[Results]):
    """The future of one request. `cancel` succeeds until a thread starts to carry it out."""

    def __init__(self, feed: Feed, out: Mapping[str, Array] | None, where: str) -> None:
        super().__init__()
        self._work: tuple[Feed, Mapping[str, Array] | None] | None = (feed, out)
        self._where = where
        self._generation = forks.generation
        self._answered = False

    def result(self, timeout: float | None = None) -> Results:
        """The outputs by name, as `Session.run` returns them; raises what it raises, or CancelledError.

        In a forked child, raises DeviceError unless the request was done before the fork.
        """
        self._refuse_in_child()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error of the request, or None. In a forked child as `result`."""
        self._refuse_in_child()
        return super().exception(timeout)

    def carry_out(self, member: Member) -> None:
        """Run it, unless it was cancelled, and set its result or error."""
        work, self._work = self._work, None  # frees the caller's arrays although the future is kept
        if work is None or not self.set_running_or_notify_cancel():
            return
        try:
            results = member.run(*work)
        except BaseException as error:
            self._answered = True
            self.set_exception(error)
            del self, work  # the error's traceback has this frame, and would be a cycle with the future
        else:
            self._answered = True
            self.set_result(results)

    def drop(self) -> None:
        """Cancel it, for a queue that no longer has it."""
        self._work = None
        self.cancel()
        self.set_running_or_notify_cancel()  # informs concurrent.futures.wait

    def _refuse_in_child(self) -> None:
        if self._generation != forks.generation and not self._answered:
            raise forks.refusal("this process was forked while the request was not done", self._where)


class _Worker:
    """A thread's request; if it is idle, the next is handed to it, and `bell` is released to wake it."""

    __slots__ = ("bell", "request")

    def __init__(self, request: Request) -> None:
        self.bell = threading.Lock()
        self.bell.acquire()
        self.request: Request | None = request


class _Lane:
    """A member with its threads: at most `limit` of them, `count` now."""

    __slots__ = ("count", "idle", "limit", "member")

    def __init__(self, member: Member, limit: int) -> None:
        self.member = member
        self.limit = limit
        self.count = 0
        self.idle: list[_Worker] = []


class Requests:
    """Requests in the order of their arrival, each carried out by the first member that has a thread to spare.

    A member has up to `limit` threads, started when needed and ended when idle. Thread-safe. A forked child must make
    a new queue: this one's threads and the state of its lock belong to the parent.
    """

    def __init__(self, members: Sequence[tuple[Member, int]], where: str) -> None:
        """`members` are in order of preference, each with its limit; `where` is the bundle's path, for messages."""
        self._where = where
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._lanes = tuple(_Lane(member, limit) for member, limit in members)
        self._waiting: deque[Request] = deque()
        self._mine: set[int] = set()
        self._closed = False

    def submit(self, feed: Feed, out: Mapping[str, Array] | None = None) -> Request:
        """Add a request. Raises UsageError after `close`, and DeviceError if no thread can be started."""
        request = Request(feed, out, self._where)
        with self._lock:
            if self._closed:
                raise UsageError("the session is closed", where=self._where)
            if not self._hand_over(request):
                self._waiting.append(request)
        return request

    def close(self, *, cancel: bool = False) -> None:
        """Accept no more requests, carry out or `cancel` those that wait, and return when all threads are idle.

        A thread of the queue, that is, a future's callback, cannot wait for itself: from there, `cancel` is implied
        and the call returns at once.
        """
        own = threading.get_ident() in self._mine
        with self._lock:
            self._closed = True
            dropped = tuple(self._waiting) if cancel or own else ()
            if dropped:
                self._waiting.clear()
            for lane in self._lanes:
                while lane.idle:
                    lane.idle.pop().bell.release()
        for request in dropped:
            request.drop()
        with self._lock:
            while not own and any(lane.count for lane in self._lanes):
                self._ended.wait()

    def _hand_over(self, request: Request) -> bool:
        """Give a request to a thread that is idle or new. False if all are busy."""
        for lane in self._lanes:
            if not lane.member.usable:
                continue
            if lane.idle:
                worker = lane.idle.pop()
                worker.request = request
                worker.bell.release()
                return True
            if lane.count < lane.limit:
                return self._start(lane, request)
        return False

    def _start(self, lane: _Lane, request: Request) -> bool:
        thread = threading.Thread(target=self._work, args=(lane, _Worker(request)), name="heterocc-request")
        lane.count += 1
        try:
            thread.start()
        except RuntimeError as error:
            lane.count -= 1
            if any(lane.count for lane in self._lanes):
                return False
            raise DeviceError(
                f"no thread can be started for the request: {error}", where=self._where, hint="use Session.run"
            ) from error
        return True

    def _work(self, lane: _Lane, worker: _Worker) -> None:
        """The body of a thread."""
        self._mine.add(threading.get_ident())
        while worker.request is not None:
            worker.request.carry_out(lane.member)
            worker.request = None
            self._next(lane, worker)

    def _next(self, lane: _Lane, worker: _Worker) -> None:
        """Give the thread's worker its next request; without one, the thread has left the lane."""
        with self._lock:
            alone = not any(other.count for other in self._lanes if other is not lane)
            if self._waiting and (lane.member.usable or alone):
                worker.request = self._waiting.popleft()
                return
            if self._closed or self._waiting:
                self._leave(lane)
                return
            lane.idle.append(worker)
        rang = worker.bell.acquire(timeout=IDLE_SECONDS)
        with self._lock:
            if worker.request is not None:
                if not rang:  # handed over in the moment in which the time was over
                    worker.bell.acquire()
                return
            if worker in lane.idle:
                lane.idle.remove(worker)
            self._leave(lane)

    def _leave(self, lane: _Lane) -> None:
        self._mine.discard(threading.get_ident())
        lane.count -= 1
        self._ended.notify_all()

"""Results of many requests in order, with a limit on the requests in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from heterocc.artifacts.errors import UsageError
from heterocc.artifacts.files.closing import Closing
from heterocc.runtime.feeds import Feed

Results = dict[str, Any]
F = TypeVar("F")
Submit = Callable[[Feed], Future[Results]]


def check_depth(depth: int | None, default: int) -> int:
    """The number of requests in flight. Raises UsageError unless it is a positive integer or None."""
    if depth is None:
        return default
    if type(depth) is not int or depth < 1:
        raise UsageError(f"depth must be a positive integer, not {depth!r}"[:200], hint="leave it out for the default")
    return depth


def check_feeds(feeds: F) -> F:
    """The feeds themselves. Raises UsageError if they are a single feed, or no iterable."""
    if isinstance(feeds, Mapping):
        raise UsageError("feeds must be an iterable of feeds, not a single feed", hint="use run or run_async")
    if not isinstance(feeds, (Iterable, AsyncIterable)):
        raise UsageError(f"feeds must be an iterable of feeds, not {feeds!r}"[:200])
    return feeds


class Stream(Closing, Iterator[Results]):
    """An iterator over the results of requests, in the order of their feeds. For one thread.

    At most `depth` requests are in flight: taken from the feeds, and their results not yet returned by `next`. A feed
    is taken only by `next`: at least one each time, if there is room, and more until the oldest result is there.

    The error of a request is raised by the `next` that would return its result; `delivered` counts it, so that its
    number is `delivered - 1`. The other requests are not affected: call `next` again, or begin another `for` loop over
    the same stream, to go on with the next result. An error of the feeds' iterator ends the stream, after the results
    of the feeds before it.

    `close`, or the end of a `with` block, cancels the requests that wait; those that run finish unseen.
    """

    def __init__(self, submit: Submit, feeds: Iterable[Feed], depth: int) -> None:
        self._submit = submit
        self._feeds: Iterator[Feed] | None = iter(feeds)
        self._depth = depth
        self._flight: deque[Future[Results]] = deque()
        self._ending: BaseException | None = None
        self.delivered = 0
        """The number of results and errors that `next` has returned and raised."""

    def __repr__(self) -> str:
        state = "closed " if self._feeds is None else ""
        return f"<{state}Stream: {self.delivered} delivered, {len(self._flight)} in flight>"

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Results:
        """The next result. Raises the errors of `Session.run`, and CancelledError if the session cancelled it."""
        self._fill()
        if not self._flight:
            ending, self._ending = self._ending, None
            raise StopIteration if ending is None else ending
        oldest = self._flight[0]
        try:
            return oldest.result()
        finally:
            if oldest.done():  # it is not if Ctrl-C interrupted the wait
                self._flight.popleft()
                self.delivered += 1

    def close(self) -> None:
        """Take no more feeds, and cancel the requests that wait."""
        self._feeds = None
        while self._flight:
            self._flight.pop().cancel()

    def _fill(self) -> None:
        while self._feeds is not None and len(self._flight) < self._depth:
            try:
                self._flight.append(self._submit(next(self._feeds)))
            except StopIteration:
                self._feeds = None
            except Exception as error:
                self._feeds, self._ending = None, error
            if self._flight and self._flight[0].done():
                return

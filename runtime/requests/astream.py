"""Results of many requests in order for asyncio, with a limit on the requests in flight."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from heterocc.artifacts.errors import UsageError
from heterocc.runtime.feeds import Feed
from heterocc.runtime.requests.stream import Results, Submit

Feeds = Iterable[Feed] | AsyncIterable[Feed]


class AsyncStream(AsyncIterator[Results]):
    """As `Stream`, for one task of a running event loop; the feeds' iterator may be asynchronous too.

    An asynchronous iterator is asked for the next feed while results are awaited, so that it may depend on earlier
    results. A plain one is called in the event loop as long as there is room, and must not block.
    """

    def __init__(self, submit: Submit, feeds: Feeds, depth: int) -> None:
        self._submit = submit
        self._depth = depth
        self._source: AsyncIterator[Feed] | None = None
        self._plain: Iterator[Feed] | None = None
        if isinstance(feeds, AsyncIterable):
            self._source = aiter(feeds)
        else:
            self._plain = iter(feeds)
        self._taking: asyncio.Future[Feed] | None = None
        self._flight: deque[asyncio.Future[Results]] = deque()
        self._ending: BaseException | None = None
        self.delivered = 0
        """The number of results and errors that were returned and raised."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Results:
        """The next result. Raises the errors of `Session.run`, and UsageError if the session was closed before it ran.

        If the awaiting task is cancelled, the stream is as before.
        """
        self._fill()
        while not (self._flight and self._flight[0].done()):
            awaited: list[asyncio.Future[Any]] = [*list(self._flight)[:1], *([self._taking] if self._taking else [])]
            if not awaited:
                ending, self._ending = self._ending, None
                raise StopAsyncIteration if ending is None else ending
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            self._fill()
        self.delivered += 1
        return _result(self._flight.popleft())

    async def aclose(self) -> None:
        """Take no more feeds, and cancel the requests that wait."""
        taking, self._taking = self._taking, None
        self._source = self._plain = None
        while self._flight:
            self._flight.pop().cancel()
        if taking is not None:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _fill(self) -> None:
        """Submit the feeds that are there, as long as there is room."""
        while self._plain is not None and len(self._flight) < self._depth:
            try:
                self._add(next(self._plain))
            except StopIteration:
                self._plain = None
            except Exception as error:
                self._end(error)
        if self._taking is not None and self._taking.done():
            taking, self._taking = self._taking, None
            try:
                self._add(taking.result())
            except StopAsyncIteration:
                self._source = None
            except Exception as error:
                self._end(error)
        if self._taking is None and self._source is not None and len(self._flight) < self._depth:
            self._taking = asyncio.ensure_future(_first(self._source))

    def _add(self, feed: Feed) -> None:
        self._flight.append(asyncio.wrap_future(self._submit(feed)))

    def _end(self, error: Exception) -> None:
        self._source, self._plain, self._ending = None, None, error


async def answer(request: Future[Results]) -> Results:
    """Wait for a request, and cancel it if the waiting task is cancelled.

    Raises its error, and UsageError if its session was closed before it ran.
    """
    waiting = asyncio.wrap_future(request)
    try:
        await asyncio.wait([waiting])
    except asyncio.CancelledError:
        waiting.cancel()
        raise
    return _result(waiting)


def _result(done: asyncio.Future[Results]) -> Results:
    """The result of a request; asyncio's CancelledError would look as if the waiting task had been cancelled."""
    if done.cancelled():
        raise UsageError("the session was closed before the request started")
    return done.result()


async def _first(source: AsyncIterator[Feed]) -> Feed:
    return await anext(source)

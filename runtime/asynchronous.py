"""The part of a session that runs requests on other threads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from heterocc.runtime import forks
from heterocc.runtime.feeds import Array, Feed
from heterocc.runtime.loading.loaded import Results
from heterocc.runtime.loading.several import Spread
from heterocc.runtime.running import Running

if TYPE_CHECKING:  # imported when they are used: many sessions only call `run`
    from concurrent.futures import Future

    from heterocc.runtime.requests.astream import AsyncStream, Feeds
    from heterocc.runtime.requests.queue import Requests
    from heterocc.runtime.requests.stream import Stream


class Asynchronous(Running):
    """`run_async`, `stream` and the same for asyncio; docs/requests.md describes them."""

    _limits: tuple[int, ...]
    """The number of requests at a time of each member."""
    _queues: dict[int, Requests]
    """The queue of this process, by the number of forks that led to it; a child's is its own."""

    @property
    def requests(self) -> int:
        """The number of requests of `run_async`, `stream` and `astream` that run at the same time."""
        return sum(self._limits)

    def run_async(self, feed: Feed, *, out: Mapping[str, Array] | None = None) -> Future[Results]:
        """Queue a request and return its future, whose `result()` returns what `run` returns and raises what it raises.

        At most `requests` run at the same time, on threads that are started when needed and end 0.2 s after their last
        request. Others wait in a queue without limit (`stream` has one), and start in the order of the calls. The
        arrays of `feed` and `out` must not be changed before the future is done. `cancel()` succeeds as long as the
        request waits. Callbacks of `add_done_callback` run on the thread that ran the request, and must not wait for
        other requests.

        Raises UsageError if the session is closed, and DeviceError in a forked child that cannot use it.
        """
        return self._queue().submit(feed, out)

    async def arun(self, feed: Feed, *, out: Mapping[str, Array] | None = None) -> Results:
        """`run` for asyncio: the event loop goes on meanwhile. A task that is cancelled cancels a waiting request.

        Raises UsageError if the session is closed before the request starts.
        """
        from heterocc.runtime.requests.astream import answer

        return await answer(self._queue().submit(feed, out))

    def stream(self, feeds: Iterable[Feed], *, depth: int | None = None) -> Stream:
        """Return an iterator over the results of `feeds`, in their order; `depth` requests are in flight.

        A feed is taken when there is room for it, so `feeds` may be endless. By default `depth` is twice `requests`;
        with MULTI it is eight times `requests`, so that a fast device does not wait for a slow one. The class Stream
        says how errors are raised.
        """
        from heterocc.runtime.requests.stream import Stream, check_depth, check_feeds

        return Stream(self._queue().submit, check_feeds(feeds), check_depth(depth, self._default_depth()))

    def astream(self, feeds: Feeds, *, depth: int | None = None) -> AsyncStream:
        """`stream` for asyncio: `async for result in session.astream(feeds)`. `feeds` may be asynchronous too."""
        from heterocc.runtime.requests.astream import AsyncStream
        from heterocc.runtime.requests.stream import check_depth, check_feeds

        return AsyncStream(self._queue().submit, check_feeds(feeds), check_depth(depth, self._default_depth()))

    def _default_depth(self) -> int:
        return self.requests * (2 if len(self._members) == 1 else 8)

    def _queue(self) -> Requests:
        if isinstance(self._runner, Spread):
            for member in self._members:
                member.alive()
        self._alive()
        queue = self._queues.get(forks.generation)
        if queue is None:
            from heterocc.runtime.requests.queue import Requests

            lanes = self._runner.lanes() if isinstance(self._runner, Spread) else (self._runner,)
            queue = Requests(tuple(zip(lanes, self._limits, strict=True)), self._bundle.path)
        # `setdefault` is atomic; a lock could be held by another thread at a fork.
        return self._queues.setdefault(forks.generation, queue)

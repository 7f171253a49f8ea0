"""Streams: order, back-pressure, errors, closing; the same for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import numpy as np
import pytest

from heterocc.artifacts.errors import FeedError, UsageError
from heterocc.runtime import Session, load
from tests.runtime.requests.conftest import BAD, feed

Feed = dict[str, np.ndarray]


class Counted:
    """Feeds, and how many were taken."""

    def __init__(self, feeds: list[Feed]) -> None:
        self.taken = 0
        self._feeds = feeds

    def __iter__(self) -> Iterator[Feed]:
        for one in self._feeds:
            self.taken += 1
            yield one

    async def __aiter__(self) -> AsyncIterator[Feed]:
        for one in self:
            await asyncio.sleep(0)
            yield one


def numbers(results: list[dict[str, np.ndarray]]) -> list[float]:
    return [float(r["y"][0]) for r in results]


def test_a_stream_gives_the_results_in_order_and_keeps_the_session_busy(two: Session) -> None:
    stream, running = two.stream(feed(i) for i in range(8)), set()
    for number, result in enumerate(stream):
        assert result["y"] == number
        running.add(sum(f.running() for f in stream._flight))
    assert stream.delivered == 8 and max(running) >= 1  # beside the one whose result was returned


@pytest.mark.parametrize("depth", [1, 3, 50])
def test_at_most_depth_feeds_are_taken_ahead_of_the_results(two: Session, depth: int) -> None:
    feeds = Counted([feed(i) for i in range(6)])
    stream = two.stream(feeds, depth=depth)
    assert feeds.taken == 0
    for number, result in enumerate(stream):
        assert result["y"] == number
        assert feeds.taken <= number + depth
        time.sleep(0.03 if depth == 3 else 0)
    assert feeds.taken == stream.delivered == 6


def test_an_endless_iterator_is_taken_as_far_as_needed(two: Session) -> None:
    def endless() -> Iterator[Feed]:
        number = 0
        while True:
            yield feed(number)
            number += 1

    with two.stream(endless(), depth=4) as stream:
        assert numbers([next(stream) for _ in range(3)]) == [0, 1, 2]


def test_an_error_is_raised_in_its_requests_turn_and_a_second_loop_goes_on(two: Session) -> None:
    stream = two.stream([feed(0), BAD, feed(2), feed(3)], depth=4)
    seen: list[dict[str, np.ndarray]] = []
    with pytest.raises(FeedError):
        seen.extend(stream)
    assert stream.delivered == 2  # number 1 failed
    seen = [*stream]
    assert numbers(seen) == [2, 3]
    assert list(stream) == []


def test_an_error_of_the_feeds_comes_after_the_results_before_it(two: Session) -> None:
    def broken() -> Iterator[Feed]:
        yield feed(0)
        yield feed(1)
        raise LookupError("no more images")

    stream = two.stream(broken())
    assert numbers([next(stream), next(stream)]) == [0, 1]
    with pytest.raises(LookupError, match="no more images"):
        next(stream)
    assert list(stream) == []


def test_a_closed_stream_cancels_what_waits_and_takes_no_more(two: Session) -> None:
    feeds = Counted([feed(i) for i in range(20)])
    with two.stream(feeds, depth=10) as stream:
        next(stream)
        flight = list(stream._flight)
    assert feeds.taken <= 10 and list(stream) == []
    assert len(flight) == 9 and sum(f.cancelled() for f in flight) >= 6  # two run, and one may have ended


def test_a_session_that_closes_cancels_a_stream(sleeper: Path) -> None:
    session = load(sleeper, threads=1, requests=1)
    stream = session.stream([feed(i) for i in range(6)], depth=4)
    assert next(stream)["y"] == 0
    session.close(cancel=True)
    outcomes: list[object] = []
    for _ in range(6):
        try:
            outcomes.append(float(next(stream)["y"][0]))
        except (CancelledError, UsageError, StopIteration) as error:
            outcomes.append(type(error))
    assert outcomes[0] == 1.0 and set(outcomes[1:]) <= {CancelledError, UsageError, StopIteration, 2.0}
    assert outcomes[-1] is StopIteration and UsageError in outcomes


def test_what_are_no_feeds_and_no_depth_is_a_usage_error(two: Session) -> None:
    for wrong in (feed(1), 3, None):
        for call in (two.stream, two.astream):
            with pytest.raises(UsageError, match="feeds must be an iterable of feeds"):
                call(wrong)  # type: ignore[operator]
    for depth in (0, -1, 1.5, True, "2"):
        for call in (two.stream, two.astream):
            with pytest.raises(UsageError, match="depth must be a positive integer"):
                call([feed(1)], depth=depth)  # type: ignore[operator]
    assert list(two.stream([])) == []


# ---- asyncio ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "asynchronous"])
def test_an_async_stream_gives_the_results_in_order_while_the_loop_goes_on(two: Session, kind: str) -> None:
    feeds = Counted([feed(i) for i in range(6)])
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    async def main() -> list[float]:
        ticking = asyncio.ensure_future(tick())
        found = []
        async for result in two.astream(iter(feeds) if kind == "plain" else feeds, depth=3):
            assert feeds.taken <= len(found) + 4  # one more may be taken and not yet accepted
            found.append(float(result["y"][0]))
        ticking.cancel()
        return found

    assert asyncio.run(main()) == [0, 1, 2, 3, 4, 5]
    assert ticks > 5


def test_an_async_iterator_may_wait_for_earlier_results(two: Session) -> None:
    async def main() -> list[float]:
        answers: asyncio.Queue[float] = asyncio.Queue()

        async def feeds() -> AsyncIterator[Feed]:
            value = 1.0
            for _ in range(3):
                yield feed(value)
                value = 2 * await answers.get()

        found = []
        async for result in two.astream(feeds(), depth=4):
            found.append(float(result["y"][0]))
            answers.put_nowait(found[-1])
        return found

    assert asyncio.run(main()) == [1, 2, 4]


def test_an_async_error_is_raised_in_its_requests_turn_and_the_stream_goes_on(two: Session) -> None:
    async def main() -> tuple[list[float], list[float], int]:
        async with two.astream([feed(0), BAD, feed(2)]) as stream:
            first = [float((await anext(stream))["y"][0])]
            with pytest.raises(FeedError):
                await anext(stream)
            at = stream.delivered
            return first, [float(r["y"][0]) async for r in stream], at

    assert asyncio.run(main()) == ([0.0], [2.0], 2)


def test_an_async_error_of_the_feeds_comes_after_the_results_before_it(two: Session) -> None:
    async def broken() -> AsyncIterator[Feed]:
        yield feed(0)
        raise LookupError("no more images")

    async def main() -> float:
        stream = two.astream(broken())
        first = float((await anext(stream))["y"][0])
        with pytest.raises(LookupError):
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        return first

    assert asyncio.run(main()) == 0


def test_a_cancelled_wait_leaves_the_async_stream_as_it_was(two: Session) -> None:
    async def main() -> list[float]:
        stream = two.astream([feed(i) for i in range(3)])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.002)
        return [float(r["y"][0]) async for r in stream]

    assert asyncio.run(main()) == [0, 1, 2]


def test_a_closed_async_stream_ends(two: Session) -> None:
    async def main() -> list[object]:
        async def never() -> AsyncIterator[Feed]:
            yield feed(0)
            await asyncio.sleep(60)

        stream = two.astream(never())
        found = [float((await anext(stream))["y"][0])]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(stream), 0.002)
        await stream.aclose()
        return [*found, *[r async for r in stream]]

    assert asyncio.run(main()) == [0]


def test_a_run_is_awaited_and_cancelled_with_its_task(two: Session) -> None:
    async def main() -> list[float]:
        tasks = [asyncio.ensure_future(two.arun(feed(i))) for i in range(5)]
        await asyncio.sleep(0.005)
        tasks[4].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[4], asyncio.CancelledError)
        return [float(r["y"][0]) for r in results if isinstance(r, dict)]

    assert asyncio.run(main()) == [0, 1, 2, 3]


def test_a_session_that_closes_is_an_error_of_the_requests_that_wait_and_no_cancelled_task(sleeper: Path) -> None:
    async def main() -> list[object]:
        session = load(sleeper, threads=1, requests=1)
        stream = session.astream([feed(i) for i in range(3)])
        tasks = [asyncio.ensure_future(anext(stream)), asyncio.ensure_future(session.arun(feed(7)))]
        await asyncio.sleep(0.005)
        await asyncio.to_thread(session.close, cancel=True)
        first, second = await asyncio.gather(*tasks, return_exceptions=True)
        with pytest.raises(UsageError, match="closed before the request started"):
            await anext(stream)
        return [first["y"][0], second]

    first, second = asyncio.run(main())
    assert first == 0 and isinstance(second, UsageError)

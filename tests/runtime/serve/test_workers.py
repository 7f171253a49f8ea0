"""Queues and workers, with gates instead of models."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from heterocc.runtime.serve.errors import DeadlineError, QueueFullError
from heterocc.runtime.serve.workers import Line, Workers


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a blocked request waits for; open after the test."""
    gate = threading.Event()
    yield gate
    gate.set()


def run(scenario: Callable[[Workers], Coroutine[Any, Any, None]], count: int = 1) -> None:
    async def main() -> None:
        workers = Workers(count)
        try:
            await asyncio.wait_for(scenario(workers), 30)
        finally:
            workers.close()

    asyncio.run(main())


async def ask(workers: Workers, line: Line, work: Callable[[], Any], seconds: float | None = None) -> Any:
    with line.place():
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        return await workers.result(workers.submit(line, work), deadline)


def test_models_with_waiting_requests_take_turns(gate: threading.Event) -> None:
    async def scenario(workers: Workers) -> None:
        order: list[str] = []
        a, b = Line("a", 10), Line("b", 10)
        calls = [asyncio.ensure_future(ask(workers, a, gate.wait))]
        for line, text in ((a, "a1"), (a, "a2"), (a, "a3"), (b, "b1"), (b, "b2")):
            calls.append(asyncio.ensure_future(ask(workers, line, lambda text=text: order.append(text))))
        await asyncio.sleep(0.01)
        gate.set()
        await asyncio.gather(*calls)
        assert order == ["a1", "b1", "a2", "b2", "a3"]
        assert a.pending == b.pending == a.running == b.running == 0

    run(scenario)


def test_a_full_line_refuses_a_request_and_takes_one_again_later(gate: threading.Event) -> None:
    async def scenario(workers: Workers) -> None:
        line = Line("m", 2)
        calls = [asyncio.ensure_future(ask(workers, line, gate.wait)) for _ in range(2)]
        await asyncio.sleep(0.01)
        with pytest.raises(QueueFullError, match="the model 'm' has 2 requests"):
            await ask(workers, line, gate.wait)
        gate.set()
        await asyncio.gather(*calls)
        assert await ask(workers, line, lambda: 5) == 5

    run(scenario)


def test_a_deadline_removes_a_waiting_request_and_leaves_a_running_one(gate: threading.Event) -> None:
    async def scenario(workers: Workers) -> None:
        line, ran = Line("m", 2), []
        running = asyncio.ensure_future(ask(workers, line, gate.wait, 0.05))
        waiting = asyncio.ensure_future(ask(workers, line, lambda: ran.append(1), 0.02))
        with pytest.raises(DeadlineError, match="while the request was waiting"):
            await waiting
        assert (line.pending, line.running) == (1, 1)
        with pytest.raises(DeadlineError, match="while the request was running"):
            await running
        assert (line.pending, line.running) == (1, 1), "a run keeps its place until it ends"
        gate.set()
        assert await ask(workers, line, lambda: 7) == 7
        assert (line.pending, line.running, ran) == (0, 0, [])

    run(scenario)


def test_a_result_after_the_deadline_is_an_error_even_if_the_event_loop_was_busy() -> None:
    async def scenario(workers: Workers) -> None:
        line = Line("m", 1)
        call = asyncio.ensure_future(ask(workers, line, lambda: 1, 0.05))
        await asyncio.sleep(0)
        time.sleep(0.1)  # the work ends, and its deadline passes, before the loop sees either
        with pytest.raises(DeadlineError, match="while the request was running"):
            await call
        assert (line.pending, line.running) == (0, 0)

    run(scenario)


def test_a_cancelled_request_never_runs(gate: threading.Event) -> None:
    async def scenario(workers: Workers) -> None:
        line, ran = Line("m", 3), []
        calls = [asyncio.ensure_future(ask(workers, line, gate.wait))]
        calls += [asyncio.ensure_future(ask(workers, line, lambda: ran.append(1))) for _ in range(2)]
        await asyncio.sleep(0.01)
        calls[1].cancel()
        calls[0].cancel()
        await asyncio.sleep(0.01)
        assert (line.pending, line.running) == (2, 1)
        gate.set()
        await calls[2]
        assert (line.pending, line.running, ran) == (0, 0, [1])

    run(scenario)


def test_places_add_up_whenever_requests_are_cancelled() -> None:
    async def scenario(workers: Workers) -> None:
        line = Line("m", 50)
        for pause in (0, 0, 0, 1e-5, 1e-4, 3e-4) * 20:
            calls = [asyncio.ensure_future(ask(workers, line, lambda: 1)) for _ in range(8)]
            await asyncio.sleep(pause)
            for call in calls[::2]:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        assert await ask(workers, line, lambda: 1) == 1
        await asyncio.sleep(0.02)
        assert (line.pending, line.running) == (0, 0)

    run(scenario, 2)


class Data:
    """What a request holds."""


def test_the_data_of_a_failed_request_is_freed_without_the_garbage_collector(gate: threading.Event) -> None:
    async def scenario(workers: Workers) -> None:
        line, held = Line("m", 3), []

        def request(fails: bool) -> Callable[[], Any]:
            data = Data()
            held.append(weakref.ref(data))
            return lambda: (data, 1 // 0 if fails else gate.wait())

        for error, work, seconds in ((ZeroDivisionError, request(True), None), (DeadlineError, request(False), 0.01)):
            with pytest.raises(error):
                await ask(workers, line, work, seconds)
            del work
        gate.set()
        assert await ask(workers, line, lambda: 1) == 1
        assert [data() for data in held] == [None, None]

    gc.disable()
    try:
        run(scenario)
    finally:
        gc.enable()


def test_the_error_of_a_request_is_raised_to_its_caller_only() -> None:
    async def scenario(workers: Workers) -> None:
        line = Line("m", 50)
        with pytest.raises(ZeroDivisionError):
            await ask(workers, line, lambda: 1 // 0)
        assert await ask(workers, line, lambda: 1) == 1

    run(scenario)

"""The memory that all requests together may take."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from heterocc.runtime.execute import ort_session
from heterocc.runtime.native.cpu_api import MEMORY_LIMIT
from heterocc.runtime.serve import server
from heterocc.runtime.serve.errors import QueueFullError, RequestSizeError
from heterocc.runtime.serve.memory import Memory
from heterocc.runtime.serve.options import ServeOptions
from heterocc.runtime.serve.protocols.rest import _Rest


def test_memory_is_taken_and_given_back_also_after_an_error() -> None:
    memory = Memory(10)
    with memory.hold() as first, memory.hold() as second:
        first.take(7)
        with pytest.raises(QueueFullError, match="all the memory"):
            second.take(4)
        second.take(3)
        with pytest.raises(RequestSizeError, match="needs 11 bytes of memory, and all together may take 10"):
            first.take(4)
        first.give_back(5)
        second.take(5)
        assert memory.taken == 10
    assert memory.taken == 0


def test_what_a_run_still_uses_stays_taken_when_its_caller_leaves() -> None:
    memory = Memory(10)
    with memory.hold() as holding:
        holding.take(7)
        end = holding.leave()
    assert memory.taken == 7
    end()
    end()
    assert memory.taken == 0


def test_requests_that_wait_for_memory_get_it_the_last_one_first() -> None:
    async def scenario() -> None:
        memory, order = Memory(10), []

        async def ask(size: int, name: str) -> None:
            with memory.hold() as holding:
                await holding.receive(size, 5)
                order.append(name)
                assert memory.taken <= 10
                await asyncio.sleep(0.01)

        await asyncio.gather(*(ask(size, f"{size}") for size in (6, 8, 5, 7)))
        assert order == ["6", "7", "5", "8"] and memory.taken == memory.expected == 0

    asyncio.run(scenario())


def test_a_part_of_the_memory_is_not_for_what_was_not_received_yet() -> None:
    async def scenario() -> None:
        memory = Memory(10, for_expected=6)
        with memory.hold() as first, memory.hold() as second:
            await first.receive(6, 5)
            second.take(4)
            with pytest.raises(QueueFullError):
                await second.receive(1, 0.01)
            second.give_back(4)
            with pytest.raises(QueueFullError):
                await second.receive(1, 0.01)
            assert not memory.crowded
            task = asyncio.ensure_future(second.receive(6, 5))
            await asyncio.sleep(0)
            assert memory.crowded
            first.received(2)
            await task
            assert (memory.taken, memory.expected) == (8, 6)
        assert memory.taken == memory.expected == 0

    asyncio.run(scenario())


def test_a_request_that_waits_in_vain_or_is_cancelled_takes_nothing() -> None:
    async def scenario() -> None:
        memory = Memory(10)
        with memory.hold() as held, memory.hold() as waiting:
            held.take(10)
            with pytest.raises(QueueFullError):
                await waiting.receive(1, 0.01)
            task = asyncio.ensure_future(waiting.receive(4, 5))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            held.give_back(10)
            await waiting.receive(10, 0.01)
        assert memory.taken == 0

    asyncio.run(scenario())


_GROWTH = """
from heterocc.runtime.serve.memory import Memory, resident
memory = Memory(10)
memory.begin()
before, block = memory.kept, bytearray(50_000_000)
print(memory.kept - before, resident())
"""


def test_what_the_process_keeps_is_counted_since_its_models_were_loaded() -> None:
    # In a process of its own: this one may have pages free that earlier tests used, and the block would lie in them.
    done = subprocess.run([sys.executable, "-c", _GROWTH], capture_output=True, text=True, check=True)
    growth, whole = map(int, done.stdout.split())
    assert growth > 40_000_000 and whole > 40_000_000


def test_a_value_of_a_run_may_take_no_more_than_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []

    async def serve(options: ServeOptions) -> None:
        seen.append((os.environ[MEMORY_LIMIT], ort_session.most_memory()))

    monkeypatch.setattr(server, "_serve", serve)
    monkeypatch.setattr(server, "log_to_stderr", lambda: None)
    options, before = ServeOptions([], memory=64 << 20, workers=3), ort_session.most_memory()
    monkeypatch.delenv(MEMORY_LIMIT, raising=False)
    server.run(options)
    assert MEMORY_LIMIT not in os.environ and ort_session.most_memory() == before
    monkeypatch.setenv(MEMORY_LIMIT, "5")
    server.run(options)
    assert os.environ[MEMORY_LIMIT] == "5"
    assert seen == [("64", 3 * 64 << 20), ("5", 3 * 64 << 20)]


def test_a_large_page_takes_memory_until_the_client_has_it() -> None:
    async def scenario() -> None:
        service = SimpleNamespace(memory=Memory(1 << 20), options=ServeOptions([]))
        rest, sent = _Rest(cast(Any, service)), bytearray()

        async def send(message: Mapping[str, Any]) -> None:
            sent.extend(message.get("body", b""))

        page = rest._long(bytes(600_000), "text/plain")
        assert service.memory.taken == 600_000
        with pytest.raises(QueueFullError):
            rest._long(bytes(600_000), "text/plain")
        small = rest._long(bytes(1000), "text/plain")
        for answer in (page, small):
            await answer({"type": "http"}, cast(Any, None), cast(Any, send))
        assert len(sent) == 601_000 and service.memory.taken == 0

    asyncio.run(scenario())


def test_nobody_waits_for_the_answer_of_a_request_that_has_left() -> None:
    memory = Memory(10)
    with memory.hold() as holding:
        holding.take_for_answer(4)
        end = holding.leave()
        with pytest.raises(QueueFullError, match="nobody waits"):
            holding.take_for_answer(1)
    assert memory.taken == 4
    end()
    assert memory.taken == 0

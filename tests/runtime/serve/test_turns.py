"""Messages that come together are copied one by one, with turns of the event loop for others in between."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from heterocc.runtime.serve.protocols.receiver import Turns
from heterocc.runtime.serve.tensors import to_json


def test_of_tasks_that_could_go_on_together_one_does_in_each_turn() -> None:
    async def together() -> list[int]:
        loop, turns, count = asyncio.get_running_loop(), Turns(), [0]
        arrived: asyncio.Future[None] = loop.create_future()

        def tick() -> None:
            count[0] += 1
            loop.call_soon(tick)

        async def read() -> int:
            await arrived
            return count[0]

        tasks = [asyncio.ensure_future(turns.each(read())) for _ in range(5)]
        await asyncio.sleep(0)
        tick()
        arrived.set_result(None)
        return await asyncio.gather(*tasks)

    found = asyncio.run(together())
    assert len(set(found)) == 5


def test_an_error_and_a_cancellation_reach_what_goes_on_in_turns() -> None:
    async def both() -> list[str]:
        turns, seen = Turns(), []

        async def read(arrived: asyncio.Future[None]) -> None:
            try:
                await arrived
            except BaseException as error:
                seen.append(type(error).__name__)
                raise

        for end in (lambda future: future.set_exception(ValueError("gone")), lambda future: future.cancel()):
            arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            task = asyncio.ensure_future(turns.each(read(arrived)))
            await asyncio.sleep(0)
            end(arrived)
            with pytest.raises((ValueError, asyncio.CancelledError)):
                await task
        task = asyncio.ensure_future(turns.each(read(asyncio.get_running_loop().create_future())))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(turns.next(), 5)  # no turn is kept by what ended
        return seen

    assert asyncio.run(both()) == ["ValueError", "CancelledError", "CancelledError"]


def test_many_texts_of_an_answer_are_few_parts() -> None:
    parts = list(to_json("y", np.array(["aβ"] * 50_000, object)))
    assert len(parts) < 20 and b"".join(parts) == b"[" + b",".join([b'"a\\u03b2"'] * 50_000) + b"]"
    assert b"".join(to_json("y", np.array([], object))) == b"[]"

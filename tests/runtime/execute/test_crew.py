"""Threads that runs borrow."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from heterocc.artifacts.errors import DeviceError
from heterocc.runtime import load
from heterocc.runtime.execute import crew, tvm_api
from heterocc.runtime.execute.crew import dismiss_idle, on_crew
from tests.runtime import standin

Write = Callable[..., Path]


def test_an_interrupt_waits_for_the_run_whose_memory_is_in_use() -> None:
    ended = threading.Event()

    def call() -> None:
        time.sleep(0.3)
        ended.set()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            on_crew(2, call)
        assert ended.is_set()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_what_a_call_raises_comes_back_and_the_threads_serve_the_next() -> None:
    dismiss_idle()

    def fail() -> None:
        raise ValueError("mine")

    for _ in range(3):
        with pytest.raises(ValueError, match="mine"):
            on_crew(2, fail)
    assert len(crew._idle[2]) == 1


def test_calls_within_calls_have_threads_of_their_own() -> None:
    leaders: list[int] = []

    def inner() -> None:
        leaders.append(threading.get_ident())

    def outer() -> None:
        leaders.append(threading.get_ident())
        on_crew(2, inner)

    on_crew(2, outer)
    assert len({*leaders, threading.get_ident()}) == 3


def test_threads_that_cannot_be_had_are_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    dismiss_idle()
    monkeypatch.setattr(crew._thread, "start_new_thread", none)
    with pytest.raises(DeviceError, match="no thread can be started") as found:
        on_crew(2, lambda: None)
    assert found.value.where and found.value.hint


def test_a_thread_may_use_sessions_with_few_threads_and_with_more(
    bundle_of: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    use_threads = tvm_api.use_threads
    monkeypatch.setattr("heterocc.runtime.execute.crew.use_threads", lambda n: (counts.append(n), use_threads(n))[1])
    monkeypatch.setattr("heterocc.runtime.select.select.max_threads", lambda: 8)
    path = bundle_of(standin.chain(1))
    x = {"x": np.zeros(16, np.float32)}
    for threads in (1, 4, 1, 2):
        with load(path, threads=threads) as session:
            assert next(iter(session.run(x).values()))[0] == 1
    assert counts == [4, 2]

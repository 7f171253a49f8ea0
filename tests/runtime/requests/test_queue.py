"""Requests of a session: order, number at a time, errors, cancelling, closing under load, forks."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, wait
from pathlib import Path

import numpy as np
import pytest

from heterocc.artifacts.errors import DeviceError, FeedError, UsageError
from heterocc.runtime import Session, load
from heterocc.runtime.requests.queue import IDLE_SECONDS
from tests.runtime import standin
from tests.runtime.apis import Api
from tests.runtime.requests.conftest import BAD, feed

Write = Callable[..., Path]


def workers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "heterocc-request"]


def test_requests_run_at_the_same_time_up_to_the_limit(two: Session) -> None:
    futures = [two.run_async(feed(i)) for i in range(6)]
    running = set()
    while not all(f.done() for f in futures):
        running.add(sum(f.running() for f in futures))
        time.sleep(0.001)
    assert [float(f.result()["y"][0]) for f in futures] == [0, 1, 2, 3, 4, 5]
    assert max(running) == 2 == len(workers())


def test_no_thread_is_started_before_the_first_request_and_idle_ones_end(two: Session) -> None:
    two.run(feed(1))
    assert workers() == []
    two.run_async(feed(1)).result()
    assert len(workers()) == 1
    for thread in workers():
        thread.join(IDLE_SECONDS + 1)
    assert workers() == []
    assert two.run_async(feed(2)).result()["y"] == 2


def test_an_idle_thread_is_used_again_instead_of_a_new_one(bundle_of: Write) -> None:
    with load(bundle_of(standin.chain(2)), threads=1, requests=4) as session:
        x = {"x": np.zeros(16, np.float32)}
        seen = set()
        for _ in range(50):
            session.run_async(x).result()
            seen.update(workers())
            time.sleep(0.0005)
        assert len(seen) < 5  # more than one if a request comes before the thread of the last is idle


def test_an_error_belongs_to_its_request(two: Session) -> None:
    futures = [two.run_async(f) for f in (feed(1), BAD, feed(3))]
    assert futures[0].result()["y"] == 1 and futures[2].result()["y"] == 3
    with pytest.raises(FeedError, match="shape"):
        futures[1].result()
    assert isinstance(futures[1].exception(), FeedError)


def test_results_go_into_the_arrays_of_out(two: Session) -> None:
    y = np.zeros(1, np.float32)
    assert two.run_async(feed(7), out={"y": y}).result()["y"] is y
    assert y == 7


def test_a_request_that_waits_can_be_cancelled_and_one_that_runs_cannot(two: Session) -> None:
    futures = [two.run_async(feed(i)) for i in range(4)]
    assert futures[3].cancel()
    time.sleep(0.005)
    assert not futures[0].cancel()
    done, waiting = wait(futures, timeout=5)
    assert len(done) == 4 and not waiting
    assert [f.cancelled() for f in futures] == [False, False, False, True]
    with pytest.raises(CancelledError):
        futures[3].result()


def test_callbacks_are_called_with_the_future(two: Session) -> None:
    seen: list[float] = []
    called = threading.Event()
    two.run_async(feed(5)).add_done_callback(lambda f: (seen.append(float(f.result()["y"][0])), called.set()))
    assert called.wait(5) and seen == [5.0]


def test_close_finishes_what_was_accepted(sleeper: Path) -> None:
    session = load(sleeper, threads=1, requests=2)
    futures = [session.run_async(feed(i)) for i in range(5)]
    session.close()
    assert all(f.done() for f in futures)
    assert [float(f.result()["y"][0]) for f in futures] == [0, 1, 2, 3, 4]
    assert workers() == []
    for call in (session.run_async, session.run):
        with pytest.raises(UsageError, match="closed"):
            call(feed(1))
    with pytest.raises(UsageError, match="closed"):
        session.stream([feed(1)])


@pytest.mark.parametrize("way", ["cancel", "exception"])
def test_close_with_cancel_finishes_what_runs_and_cancels_the_rest(sleeper: Path, way: str) -> None:
    session = load(sleeper, threads=1, requests=2)
    futures = [session.run_async(feed(i)) for i in range(40)]
    time.sleep(0.005)
    if way == "cancel":
        session.close(cancel=True)
    else:
        with pytest.raises(KeyError), session:
            raise KeyError
    assert all(f.done() for f in futures)
    cancelled = [f.cancelled() for f in futures]
    ran = cancelled.index(True)  # two, but on a busy machine one may not have begun, or others have ended
    assert 0 < ran < 20
    assert cancelled == [False] * ran + [True] * (40 - ran)
    session.close()


def test_closing_in_a_callback_does_not_wait_for_itself(sleeper: Path) -> None:
    session = load(sleeper, threads=1, requests=1)
    closed = threading.Event()
    futures = [session.run_async(feed(i)) for i in range(3)]
    futures[0].add_done_callback(lambda _: (session.close(), closed.set()))
    assert closed.wait(5)
    wait(futures, timeout=5)
    assert [f.cancelled() for f in futures] == [False, True, True]


@pytest.mark.parametrize("_", range(8))
def test_no_future_is_lost_when_many_threads_submit_while_another_closes(bundle_of: Write, _: int) -> None:
    session = load(bundle_of(standin.chain(2)), threads=1, requests=3)
    x = {"x": np.zeros(16, np.float32)}
    futures, refused = [], []
    start = threading.Barrier(4)

    def caller() -> None:
        start.wait()
        for _ in range(100):
            try:
                futures.append(session.run_async(x))
            except UsageError as error:
                refused.append(error)

    threads = [threading.Thread(target=caller) for _ in range(3)]
    for thread in threads:
        thread.start()
    start.wait()
    time.sleep(0.001)
    session.close()
    for thread in threads:
        thread.join()
    assert len(futures) + len(refused) == 300
    assert not wait(futures, timeout=5).not_done
    assert {type(f.exception()) for f in futures} <= {type(None), UsageError}


def test_a_session_that_is_dropped_finishes_its_requests_and_is_freed(sleeper: Path) -> None:
    session = load(sleeper, threads=1, requests=1)
    watch = weakref.ref(session._loaded)
    futures = [session.run_async(feed(i)) for i in range(2)]
    del session
    assert [float(f.result()["y"][0]) for f in futures] == [0, 1]
    for thread in workers():
        thread.join(5)
    gc.collect()
    assert watch() is None


def test_a_request_keeps_neither_its_feed_nor_its_error_in_a_cycle(two: Session) -> None:
    given, bad = np.zeros(1, np.float32), np.zeros(2, np.float32)
    watches = [weakref.ref(given), weakref.ref(bad)]
    good, failed = two.run_async({"x": given}), two.run_async({"x": bad})
    del given, bad
    wait([good, failed])
    gc.collect()
    assert watches[0]() is None
    gc.disable()
    try:
        del failed
        assert watches[1]() is None
    finally:
        gc.enable()


def test_requests_run_on_devices(bundle_of: Write, api: Api) -> None:
    with load(bundle_of(standin.chain(4, device=f"c{api.letter}"))) as session:
        assert session.requests >= 2
        xs = [np.full(16, i, np.float32) for i in range(30)]
        futures = [session.run_async({"x": x}) for x in xs]
        for x, future in zip(xs, futures, strict=True):
            np.testing.assert_array_equal(future.result()["v3"], x + 4)


def test_the_number_of_requests_follows_threads_hint_and_argument(
    bundle_of: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "6")
    path = bundle_of(standin.chain(1))
    for arguments, expected in (
        ({}, (6, 1)),
        ({"threads": 2}, (2, 3)),
        ({"hint": "latency"}, (6, 1)),
        ({"hint": "throughput"}, (1, 6)),
        ({"hint": "throughput", "requests": 2}, (1, 2)),
        ({"hint": "throughput", "threads": 3}, (3, 2)),
        ({"requests": 9}, (6, 9)),
    ):
        with load(path, **arguments) as session:
            assert (session.threads, session.requests) == expected


@pytest.mark.parametrize("arguments", [{"requests": 0}, {"requests": "2"}, {"requests": True}, {"hint": "speed"}])
def test_malformed_requests_and_hints_are_usage_errors(bundle_of: Write, arguments: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=f"^error.HC120.: {next(iter(arguments))} must be"):
        load(bundle_of(standin.chain(1)), **arguments)  # type: ignore[arg-type]


def test_an_exhausted_supply_of_threads_is_an_error_or_a_wait(two: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    running = two.run_async(feed(0))
    monkeypatch.setattr(threading.Thread, "start", _no_thread)
    waiting = two.run_async(feed(1))
    assert (running.result()["y"], waiting.result()["y"]) == (0, 1)
    for thread in workers():
        thread.join(5)
    with pytest.raises(DeviceError, match="no thread can be started") as caught:
        two.run_async(feed(2))
    assert caught.value.hint
    assert two.run(feed(2))["y"] == 2


def _no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_the_process_ends_when_its_requests_are_done(sleeper: Path) -> None:
    program = (
        "import sys, numpy as np\nfrom heterocc.runtime import load\n"
        "session = load(sys.argv[1], threads=1, requests=2)\n"
        "for i in range(4):\n"
        "    f = session.run_async({'x': np.full(1, i, np.float32)})\n"
        "    f.add_done_callback(lambda f: sys.stdout.write(str(f.result()['y'][0]) + ' '))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(sleeper)], capture_output=True, text=True, timeout=60, check=True
    )
    assert sorted(done.stdout.split()) == ["0.0", "1.0", "2.0", "3.0"] and done.stderr == ""


FORKED = """
import os, sys, time
import numpy as np
from heterocc.artifacts.errors import DeviceError
from heterocc.runtime import load
feed = {"x": np.full(1, 3, np.float32)}
session = load(sys.argv[1], threads=1, requests=1, verify="load")
done = session.run_async(feed)
done.result()
child = os.fork()
if child == 0:
    ok = done.result()["y"] == 3 and session.run_async(feed).result()["y"] == 3
    session.close()
    os._exit(0 if ok else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
running, waiting = session.run_async(feed), session.run_async(feed)
time.sleep(0.005)
child = os.fork()
if child == 0:
    for call in (running.result, waiting.result, waiting.exception, lambda: session.run_async(feed)):
        try:
            call()
            os._exit(1)
        except DeviceError as error:
            assert error.hint and error.where
    session.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert waiting.result()["y"] == 3
session.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_has_a_queue_of_its_own_and_does_not_wait_for_its_parents(sleeper: Path) -> None:
    subprocess.run([sys.executable, "-c", FORKED, str(sleeper)], timeout=60, check=True)

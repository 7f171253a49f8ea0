"""Runs by native code from a feed to results, beside those by Python code."""

from __future__ import annotations

import gc
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterocc.artifacts.errors import FeedError
from heterocc.runtime import Session, load
from heterocc.runtime.native import cpu_api, cpu_runner
from tests.runtime import standin
from tests.runtime.execute.native_runs import runs_of
from tests.runtime.standin import CPU, Model, Op, Part, write_bundle

pytestmark = pytest.mark.skipif(cpu_api.problem() is not None, reason="the CPU plug-in was not built")

SHAPE = (3, 5)
Feed = dict[str, np.ndarray]


def bundle_of(folder: Path, shape: tuple[int, ...]) -> Path:
    """y = a + b, z = (a + b) · b · 2, in two partitions."""
    values = dict.fromkeys(("a", "b", "y", "t", "z"), ("float32", shape))
    first = Part(0, ("a", "b"), ("y",), (Op("add", "add", ("a", "b"), "y"),))
    ops = (Op("mul", "mul", ("y", "b"), "t"), Op("twice", "add", ("t", "t"), "z"))
    second = Part(0, ("y", "b"), ("z",), ops)
    model = Model(values, ("a", "b"), ("y", "z"), (first, second), devices=(CPU,))  # type: ignore[arg-type]
    return write_bundle(folder / "m.hcb", model)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle_of(tmp_path_factory.mktemp("fast"), SHAPE)


@pytest.fixture
def session(small: Path) -> Iterator[Session]:
    with load(small, threads=1) as opened:
        yield opened


def feed_of(seed: int, shape: tuple[int, ...] = SHAPE) -> Feed:
    a, b = np.random.default_rng(seed).standard_normal((2, *shape)).astype(np.float32)
    return {"a": a, "b": b}


def assert_right(found: Any, feed: Feed) -> None:
    a, b = (np.asarray(feed[name], np.float32) for name in "ab")
    assert list(found) == ["y", "z"]
    np.testing.assert_allclose(found["y"], a + b, rtol=1e-6)
    np.testing.assert_allclose(found["z"], (a + b) * b * 2, rtol=1e-5)


def test_a_plain_feed_runs_natively_and_a_list_has_the_same_results(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = runs_of(session, monkeypatch)
    for seed in range(3):
        feed = feed_of(seed)
        assert_right(session.run(feed), feed)
        assert_right(dict(zip("yz", session.run(None, feed), strict=True)), feed)
    assert seen == [True] * 6


@pytest.mark.parametrize("shape", [(1,), (7, 1, 3), (130, 257)])
def test_values_of_any_size_are_right(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with load(bundle_of(tmp_path, shape)) as session:
        for seed in range(4):
            feed = feed_of(seed, shape)
            assert_right(session.run(feed), feed)


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(np.asfortranarray, id="other order"),
        pytest.param(lambda a: np.repeat(a, 2, 1)[:, ::2], id="strided"),
        pytest.param(lambda a: a.astype(">f4"), id="big-endian"),
        pytest.param(lambda a: np.frombuffer(b"." + a.tobytes(), np.uint8)[1:].view("f4").reshape(SHAPE), id="odd"),
        pytest.param(lambda a: a.view(type("Sub", (np.ndarray,), {})), id="subclass"),
        pytest.param(lambda a: a.tolist(), id="list"),
    ],
)
def test_other_arrays_are_converted_in_python(
    session: Session, monkeypatch: pytest.MonkeyPatch, form: Callable[[np.ndarray], Any]
) -> None:
    seen = runs_of(session, monkeypatch)
    feed = feed_of(4)
    try:
        found = session.run({"a": feed["a"], "b": form(feed["b"])})
    except FeedError:
        assert isinstance(form(feed["b"]), list)
    else:
        assert_right(found, feed)
    assert seen == [False]
    assert_right(session.run(feed), feed)


def test_an_input_at_any_address_is_right(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = runs_of(session, monkeypatch)
    for skip in range(0, 64, 4):
        raw = np.zeros(256, np.uint8)
        start = -raw.ctypes.data % 64 + skip
        feed = feed_of(skip)
        a = raw[start : start + 60].view(np.float32).reshape(SHAPE)
        a[...] = feed["a"]
        a.flags.writeable = False
        assert_right(session.run({"a": a, "b": feed["b"]}), feed)
    assert all(seen)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f | {"c": f["a"]}, "no input 'c'"),
        (lambda f: {"a": f["a"]}, "'b' is missing"),
        (lambda f: f | {"b": f["b"].astype(np.float64)}, "dtype float32, got float64"),
        (lambda f: f | {"b": f["b"].T}, r"shape \[3, 5\], got \[5, 3\]"),
        (lambda f: f | {"b": f["b"].reshape(15)}, r"shape \[3, 5\], got \[15\]"),
        (lambda f: [f], "inputs, got 1 array"),
        (lambda f: None, "must be a mapping, an array, or a list of arrays, got NoneType"),
    ],
)
def test_a_wrong_feed_is_refused_as_before(session: Session, change: Callable[[Feed], Any], words: str) -> None:
    with pytest.raises(FeedError, match=words):
        session.run(change(feed_of(0)))
    assert_right(session.run(feed_of(1)), feed_of(1))


def test_results_outlive_later_runs_and_the_session(small: Path) -> None:
    feeds = [feed_of(seed) for seed in range(8)]
    with load(small) as session:
        kept = [session.run(feed) for feed in feeds]
        parts = [session.run(feed)["z"][1:, ::2] for feed in feeds]
    del session
    gc.collect()
    for feed, found, part in zip(feeds, kept, parts, strict=True):
        assert_right(found, feed)
        np.testing.assert_array_equal(part, found["z"][1:, ::2])
        found["y"] += 1  # it is the caller's


def test_runs_keep_no_references_and_use_the_memory_of_dropped_results(session: Session) -> None:
    feed = feed_of(0)
    assert cpu_runner.is_usable()
    dtype = feed["a"].dtype
    session.run(feed)
    before = [sys.getrefcount(o) for o in (feed, feed["a"], feed["b"], dtype, "y", "z")]
    addresses = set()
    for _ in range(200):
        found = session.run(feed)
        addresses.add(found["y"].ctypes.data)
    del found
    assert len(addresses) <= 2
    after = [sys.getrefcount(o) for o in (feed, feed["a"], feed["b"], dtype, "y", "z")]
    assert after == before


def test_the_memory_of_large_dropped_results_is_used_without_new_pages(tmp_path: Path) -> None:
    shape = (3, 5 << 20)  # 60 MiB
    feed = feed_of(0, shape)
    with load(bundle_of(tmp_path, shape), threads=1) as session:
        for _ in range(3):
            found = session.run(feed)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        found = session.run(feed)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 100
        assert_right(found, feed)


def test_threads_share_a_session(session: Session) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            kept = []
            for step in range(200):
                feed = feed_of(seed * 1000 + step)
                kept.append((session.run(feed), feed))
            for found, feed in kept:
                assert_right(found, feed)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_without_native_runs_results_are_the_same(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_runner, "is_usable", lambda: False)
    with load(small) as session:
        for seed in range(3):
            assert_right(session.run(feed_of(seed)), feed_of(seed))
        assert not session._runner.current.alive().runs.fast


FAILING = """
import sys
import numpy as np
import tvm_ffi
from heterocc.artifacts.errors import DeviceError
from heterocc.runtime import load

calls = 0

def called():
    global calls
    calls += 1
    if calls in (4, 5):  # in native code, and in Python
        raise ValueError("no luck")
    return 0

tvm_ffi.register_global_func("heterocc.test.called", called)
x = {"x": np.ones(1, np.float32)}
with load(sys.argv[1]) as session:
    for _ in range(3):
        assert session.run(x)["y"].tolist() == [1]
    try:
        session.run(x)
    except DeviceError as error:
        assert "no luck" in str(error.__cause__) + error.message, error
    else:
        raise AssertionError("the run did not fail")
    assert session.run(x)["y"].tolist() == [1]
    assert session._runner.current.alive().runs.fast and calls == 6
print("ok")
"""


def test_a_run_that_fails_is_repeated_in_python_which_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(standin.RULES, "call heterocc.test.called", standin._calling("heterocc.test.called"))
    part = Part(0, ("x",), ("y",), (Op("call", "call heterocc.test.called", ("x",), "y"),))
    values: dict[str, Any] = dict.fromkeys("xy", ("float32", (1,)))
    path = write_bundle(tmp_path / "m.hcb", Model(values, ("x",), ("y",), (part,)))
    done = subprocess.run(
        [sys.executable, "-c", FAILING, path], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr

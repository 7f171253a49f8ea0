"""Runs of code for dynamic sizes by native code from a feed to results, beside those by Python code."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

from heterocc.artifacts.errors import FeedError, HeteroccError
from heterocc.compiler import compile_model
from heterocc.runtime import Session, load
from heterocc.runtime.native import cpu_api, cpu_sizes
from tests.runtime.execute.native_runs import runs_of

pytestmark = pytest.mark.skipif(cpu_api.problem() is not None, reason="the CPU plug-in was not built")

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
net (float[n, k] a, float[n, k] b, int64[m] rows) => (float[n, k] y, float[m, k] z) {
  y = Add(a, b)
  t = Mul(y, b)
  z = Gather(t, rows)
}
"""
Feed = dict[str, np.ndarray]
SIZES = ((3, 5, 2), (1, 1, 1), (7, 33, 40), (130, 257, 3), (3, 5, 2))


def compiled(folder: Path, text: str = TEXT, **options: Any) -> Path:
    path = folder / "m.hcb"
    compile_model(onnx.parser.parse_model(text), path, devices="CPU", **options)
    return path


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("any_size"))


@pytest.fixture
def session(bundle: Path) -> Iterator[Session]:
    with load(bundle, threads=1) as opened:
        yield opened


def feed_of(seed: int, n: int = 3, k: int = 5, m: int = 2) -> Feed:
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((2, n, k)).astype(np.float32)
    return {"a": a, "b": b, "rows": rng.integers(-n, n, m)}


def assert_right(found: Any, feed: Feed) -> None:
    a, b = (np.asarray(feed[name], np.float32) for name in "ab")
    assert list(found) == ["y", "z"]
    np.testing.assert_allclose(found["y"], a + b, rtol=1e-6)
    np.testing.assert_allclose(found["z"], ((a + b) * b)[feed["rows"]], rtol=1e-5)


def test_feeds_of_any_size_run_natively(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = runs_of(session, monkeypatch)
    for seed, sizes in enumerate(SIZES):
        feed = feed_of(seed, *sizes)
        assert_right(session.run(feed), feed)
        assert_right(dict(zip("yz", session.run(None, feed), strict=True)), feed)
    assert seen == [True] * 2 * len(SIZES)


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(np.asfortranarray, id="other order"),
        pytest.param(lambda a: np.repeat(a, 2, 1)[:, ::2], id="strided"),
        pytest.param(lambda a: a.astype(">f4"), id="big-endian"),
        pytest.param(lambda a: np.frombuffer(b"." + a.tobytes(), np.uint8)[1:].view("f4").reshape(a.shape), id="odd"),
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
        found = session.run(feed | {"b": form(feed["b"])})
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
        a = raw[start : start + 60].view(np.float32).reshape(3, 5)
        a[...] = feed["a"]
        a.flags.writeable = False
        assert_right(session.run(feed | {"a": a}), feed)
    assert seen == [True] * 16


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f | {"c": f["a"]}, "no input 'c'"),
        (lambda f: {"a": f["a"], "rows": f["rows"]}, "'b' is missing"),
        (lambda f: f | {"b": f["b"].astype(np.float64)}, "dtype float32, got float64"),
        (lambda f: f | {"b": f["b"].reshape(15)}, r"got \[15\]"),
        (lambda f: f | {"b": f["b"][:2]}, "dimension 'n' is 3 in 'a' and 2 in 'b'"),
        (lambda f: [f], "inputs, got 1 array"),
        (lambda f: None, "must be a mapping, an array, or a list of arrays, got NoneType"),
    ],
)
def test_a_wrong_feed_is_refused_as_in_python(session: Session, change: Callable[[Feed], Any], words: str) -> None:
    with pytest.raises(FeedError, match=words):
        session.run(change(feed_of(0)))
    assert_right(session.run(feed_of(1)), feed_of(1))


def test_sizes_beyond_a_bound_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(compiled(tmp_path, dims={"n": (2, 4)})) as session:
        seen = runs_of(session, monkeypatch)
        for n in (2, 4):
            assert_right(session.run(feed_of(n, n)), feed_of(n, n))
        for n in (1, 5):
            with pytest.raises(FeedError, match="'n'"):
                session.run(feed_of(n, n))
    assert seen == [True, True, False, False]


def test_a_run_that_fails_is_repeated_in_python_which_says_why(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[n, 1] a, float[1, k] b) => (float[n, k] y) { y = Add(a, b) }"""
    small, large = np.ones((2, 1), np.float32), np.ones((1 << 23, 1), np.float32)  # more bytes than addresses
    with load(compiled(tmp_path, text)) as session:
        for _ in range(2):
            assert session.run({"a": small, "b": small.T})["y"].tolist() == [[2, 2], [2, 2]]
            with pytest.raises(HeteroccError):
                session.run({"a": large, "b": large.T})
        assert session._runner.current.alive().runs.fast


def test_results_outlive_later_runs_and_the_session(bundle: Path) -> None:
    feeds = [feed_of(seed, n=3 + seed) for seed in range(8)]
    with load(bundle) as session:
        kept = [session.run(feed) for feed in feeds]
        parts = [session.run(feed)["z"][1:, ::2] for feed in feeds]
    del session
    gc.collect()
    for feed, found, part in zip(feeds, kept, parts, strict=True):
        assert_right(found, feed)
        np.testing.assert_array_equal(part, found["z"][1:, ::2])
        found["y"] += 1  # it is the caller's
        found["z"] += 1


def test_results_that_are_inputs_or_parts_of_one_another_are_right(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    net (float[n, 4] x) => (float[n, 4] y, float[n, 4] same, float[l] flat) <int64[1] all = {-1}> {
      y = Relu(x)
      same = Identity(x)
      flat = Reshape(y, all)
    }"""
    with load(compiled(tmp_path, text)) as session:
        for n in (1, 5, 2):
            x = np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32)
            before = x.copy()
            found = session.run({"x": x})
            x[:] = 7  # the caller's again
            for name, wanted in {
                "y": before.clip(0),
                "same": before,
                "flat": before.clip(0).reshape(-1),
            }.items():
                np.testing.assert_array_equal(found[name], wanted, err_msg=name)


def test_runs_keep_no_references_and_use_the_memory_of_dropped_results(session: Session) -> None:
    feed = feed_of(0)
    values = (feed, *feed.values(), feed["a"].dtype, "y", "z")
    session.run(feed)
    before = [sys.getrefcount(value) for value in values]
    addresses = set()
    for _ in range(200):
        found = session.run(feed)
        addresses.add(found["y"].ctypes.data)
    del found
    assert len(addresses) <= 2
    assert [sys.getrefcount(value) for value in values] == before


def test_threads_share_a_session(session: Session) -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            kept = []
            for step in range(100):
                feed = feed_of(seed * 1000 + step, n=1 + step % 9)
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


def test_runs_on_numbers_that_numpy_lacks_are_native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    net (bfloat16[n] x) => (bfloat16[n] y) { y = Neg(x) }"""
    with load(compiled(tmp_path, text)) as session:
        seen = runs_of(session, monkeypatch)
        for n in (3, 40):
            x = np.arange(n).astype(ml_dtypes.bfloat16)
            found = session.run({"x": x})["y"]
            assert found.dtype == x.dtype and (found == -x).all()
        with pytest.raises(FeedError, match="bfloat16"):
            session.run({"x": x.view(np.uint16)})
        assert seen == [True, True, False]


def test_without_native_runs_results_are_the_same(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_sizes, "is_usable", lambda: False)
    with load(bundle) as session:
        for seed, sizes in enumerate(SIZES):
            feed = feed_of(seed, *sizes)
            assert_right(session.run(feed), feed)
        assert not session._runner.current.alive().runs.fast

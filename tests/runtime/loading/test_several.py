"""Requests that are spread over several variants of a bundle (`MULTI`), and failures of their devices."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heterocc.artifacts.errors import (
    DeviceError,
    DeviceLostError,
    FeedError,
    IncompatibleBundleError,
    UnknownDeviceError,
    UsageError,
)
from heterocc.artifacts.reader import open_bundle
from heterocc.runtime import Session, load
from heterocc.runtime.loading.loaded import Loaded
from heterocc.runtime.select.each import select_each
from heterocc.runtime.select.request import parse_request
from tests.runtime import standin
from tests.runtime.apis import Api
from tests.runtime.requests.conftest import BAD, feed

Write = Callable[..., Path]
X = np.arange(16, dtype=np.float32)


@pytest.fixture(scope="session")
def unequal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for two devices that share no core: FAST answers after 5 ms, SLOW after 20 ms."""
    models = standin.sleeping(5, "FAST"), standin.sleeping(20, "SLOW")
    return standin.write_bundle(tmp_path_factory.mktemp("unequal") / "m.hcb", *models)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The number of runs by the variant's first device."""
    seen: Counter[str] = Counter()
    plain = Loaded.run

    def counted(self: Loaded, *arguments: object) -> object:
        seen[self.devices[0]] += 1
        return plain(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Loaded, "run", counted)
    return seen


Fail = Callable[[str, Exception], None]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fail]:
    """Makes every run on a device raise an error."""
    plain, failing = Loaded.run, dict[str, Exception]()

    def run(self: Loaded, *arguments: object) -> object:
        if self.devices[0] in failing:
            raise failing[self.devices[0]]
        return plain(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Loaded, "run", run)
    yield failing.__setitem__


def test_each_device_gets_as_many_requests_as_it_can_carry_out(unequal: Path, counts: Counter[str]) -> None:
    with load(unequal, "MULTI:FAST,SLOW", threads=1, requests=1) as session:
        assert session.devices == ("FAST", "SLOW") and [v.name for v in session.variants] == ["FAST", "SLOW#1"]
        for number, result in enumerate(session.stream(feed(i) for i in range(60))):
            assert result["y"] == number
    assert counts.total() == 60
    assert 2 * counts["SLOW"] < counts["FAST"]  # four times as fast
    assert counts["SLOW"] >= 5


def test_the_first_device_answers_as_long_as_it_is_idle(unequal: Path, counts: Counter[str]) -> None:
    for devices, first in (("MULTI:SLOW,FAST", "SLOW"), ("MULTI:FAST,SLOW", "FAST")):
        counts.clear()
        with load(unequal, devices, threads=1) as session:
            for i in range(3):
                assert session.run(feed(i))["y"] == i
                assert session.run(None, feed(i))[0] == i
        assert set(counts) == {first}


def test_callers_of_run_are_spread_by_the_runs_in_progress(unequal: Path, counts: Counter[str]) -> None:
    with load(unequal, "MULTI:FAST,SLOW", threads=1) as session, ThreadPoolExecutor(4) as pool:
        assert [float(r["y"][0]) for r in pool.map(session.run, map(feed, range(24)))] == list(range(24))
    assert counts["SLOW"] >= 4 and counts["FAST"] >= 4


@pytest.mark.parametrize("devices", ["MULTI:{0},CPU", "MULTI:CPU,{0}", "MULTI", "multi: cpu, {0}"])
def test_a_device_and_the_cpu_work_at_the_same_time(bundle_of: Write, api: Api, devices: str) -> None:
    path = bundle_of(standin.chain(4, device=api.letter), standin.chain(4))
    with load(path, devices.format(api.device.name)) as session:
        assert len(session.variants) == 2 and set(session.devices) == {"CPU", api.device.name}
        assert sum("MULTI runs requests on" in note for note in session.notes) == 2
        for number, result in enumerate(session.stream({"x": X + i} for i in range(50))):
            np.testing.assert_array_equal(result["v3"], X + number + 4)


# ---- the choice of variants ---------------------------------------------------------------------------------------


def names(path: Path, devices: str) -> list[str]:
    with open_bundle(path) as bundle:
        selections, _ = select_each(bundle.manifest, parse_request(devices), bundle.path)
        return [s.variants[0].name for s in selections]


def test_names_of_multi_select_variants(bundle_of: Write) -> None:
    one, two, both = (replace(standin.chain(1), devices=(standin.CPU.model_copy(update={"name": n}),)) for n in "ABC")
    both = replace(both, devices=(*both.devices, standin.ORT))
    path = bundle_of(one, two, both)
    assert names(path, "MULTI:A,B") == ["A", "B#1"]
    assert names(path, "MULTI:b,a") == ["B#1", "A"]
    assert names(path, "MULTI:A,A") == ["A"]
    assert names(path, "MULTI:C,A") == ["C,ORT#2", "A"]
    assert names(path, "MULTI:A,B,-B") == ["A"]
    assert names(path, "MULTI:-A,-C") == ["B#1"]


def test_a_device_that_is_absent_is_skipped_with_a_note_and_a_wrong_name_is_an_error(bundle_of: Write) -> None:
    path = bundle_of(standin.chain(1))
    with load(path, "MULTI:CUDA,CPU") as session:
        assert len(session.variants) == 1
        assert any("MULTI skipped CUDA" in note for note in session.notes)
    for devices, message in (("MULTI:TPU,CPU", "TPU"), ("MULTI:,", "empty"), ("MULTI:CUDA", "no variant for CUDA")):
        with pytest.raises(UnknownDeviceError, match=message):
            load(path, devices)
    with pytest.raises(UnknownDeviceError, match="no variant"):
        load(path, "MULTI:CPU,-CPU")
    with pytest.raises(UsageError, match="MULTI cannot be combined with start"):
        load(path, "MULTI", start="CPU")
    assert IncompatibleBundleError is not UnknownDeviceError


# ---- failures -----------------------------------------------------------------------------------------------------


def test_a_request_of_a_device_that_fails_is_repeated_on_the_other_with_one_note(unequal: Path, fail: Fail) -> None:
    fail("FAST", DeviceError("FAST failed"))
    with load(unequal, "MULTI:FAST,SLOW", threads=1) as session:
        for i in range(3):
            assert session.run(feed(i))["y"] == i
        assert [float(r["y"][0]) for r in session.stream(map(feed, range(8)))] == list(range(8))
        notes = [note for note in session.notes if "repeated elsewhere" in note]
        assert len(notes) == 1 and "FAST failed (HC401)" in notes[0]


def test_a_lost_device_gets_no_more_requests(unequal: Path, fail: Fail, counts: Counter[str]) -> None:
    with load(unequal, "MULTI:FAST,SLOW", threads=1, requests=1) as session:
        assert session.run(feed(1))["y"] == 1
        counts.clear()
        fail("FAST", DeviceLostError("FAST was lost"))
        assert [float(r["y"][0]) for r in session.stream(map(feed, range(8)))] == list(range(8))
        assert session.run(feed(1))["y"] == 1
        assert counts["SLOW"] == 9
        assert sum("gets no more requests" in note for note in session.notes) == 1
        assert session.variant.name == "SLOW#1"


def test_if_all_devices_fail_the_first_error_is_raised_and_no_future_is_lost(unequal: Path, fail: Fail) -> None:
    for kind in (DeviceError, DeviceLostError):
        with load(unequal, "MULTI:FAST,SLOW", threads=1, requests=1) as session:
            fail("FAST", kind("FAST failed"))
            fail("SLOW", kind("SLOW failed"))
            with pytest.raises(kind, match="FAST failed"):
                session.run(feed(1))
            futures = [session.run_async(feed(i)) for i in range(10)]
            assert {type(f.exception(10)) for f in futures} == {kind}


def test_a_wrong_feed_is_not_repeated(unequal: Path, counts: Counter[str]) -> None:
    with load(unequal, "MULTI:FAST,SLOW", threads=1) as session:
        with pytest.raises(FeedError):
            session.run(BAD)
        assert isinstance(session.run_async(BAD).exception(), FeedError)
    assert counts.total() == 2


@pytest.mark.usefixtures("api_faults")
def test_a_real_device_that_is_lost_costs_no_request(
    bundle_of: Write, api: Api, api_faults: Callable[[str], None]
) -> None:
    path = bundle_of(standin.chain(4, device=api.letter), standin.chain(4))
    with load(path, f"MULTI:{api.device.name},CPU", threads=1) as session:
        session.run({"x": X})
        api_faults("lost:3")
        for number, result in enumerate(session.stream({"x": X + i} for i in range(40))):
            np.testing.assert_array_equal(result["v3"], X + number + 4)
        assert any(f"{api.device.name} failed and gets no more requests" in note for note in session.notes)
        assert session.devices == (api.device.name, "CPU") and session.variant.devices[0].name == "CPU"


def test_a_closed_session_of_several_variants_is_closed(unequal: Path) -> None:
    session = load(unequal, "MULTI:FAST,SLOW", threads=1)
    futures = [session.run_async(feed(i)) for i in range(8)]
    session.close()
    assert [float(f.result()["y"][0]) for f in futures] == list(range(8))
    assert repr(session).startswith("<closed Session")
    for call in (session.run, session.run_async):
        with pytest.raises(UsageError, match="closed"):
            call(feed(1))
    assert not [t for t in threading.enumerate() if t.name == "heterocc-request"]
    assert isinstance(session, Session)

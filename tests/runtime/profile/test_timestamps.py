"""Profiles of OpenCL and Vulkan sessions: kernels by the device's clock, each time in the right session."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from heterocc.artifacts.errors import DeviceError
from heterocc.runtime import load
from heterocc.runtime.native import vulkan_devices, vulkan_unavailable_reason
from heterocc.runtime.native.kernel_clock import KernelClock
from heterocc.runtime.profile.timeline import chrome_trace
from heterocc.runtime.session import Session
from tests.runtime import apis, standin
from tests.runtime.apis import Api
from tests.runtime.standin import Model, Op, Part

Write = Callable[..., Path]
X = np.arange(16, dtype=np.float32)


@pytest.fixture
def clocked(api: Api) -> Api:
    """Each API whose device here has timestamps."""
    if api is apis.VULKAN and not vulkan_devices()[0].timestamps:
        pytest.skip("the first Vulkan device has no timestamps")
    return api


def run(session: Session, times: int = 1) -> None:
    shape = tuple(d or 0 for d in session.inputs[0].shape or ())
    for _ in range(times):
        session.run({"x": np.ones(shape, np.float32)})


def is_on(clocked: Api, session: Session) -> bool:
    """Whether the device's clock runs: a kernel of a session that does not profile is timed for whoever asks."""
    clock = KernelClock.of(clocked.backend)
    assert clock is not None
    owner = -1
    clock.time_for(owner, 0)
    run(session)
    clock.time_for(0, 0)
    return len(tuple(clock.take(owner))) > 0


def test_kernels_are_timed_by_the_device_and_fit_into_their_partition(bundle_of: Write, clocked: Api) -> None:
    names = ["x", "a", "b", "y"]
    ops = tuple(Op(f"op{i}", "add", (names[i], "w"), names[i + 1]) for i in range(3))
    model = Model(
        values=dict.fromkeys(names, ("float32", (1 << 16,))),
        inputs=("x",),
        outputs=("y",),
        parts=(Part(1, ("x",), ("y",), ops, ("w",)),),
        weights={"w": np.ones(1 << 16, np.float32)},
        devices=(standin.CPU, clocked.device),
    )
    with load(bundle_of(model), profile=True) as session:
        run(session, 3)
        profile = session.profile()
    kernels = profile.of("kernel")
    assert [(k.exec_type.split()[1], k.clock, k.calls) for k in kernels] == [(f"op{i}", "device", 1) for i in range(3)]
    assert all(k.real_ms > 0 and k.cpu_ms > 0 for k in kernels)
    (partition,) = profile.of("partition")
    assert partition.clock == "host"
    assert sum(k.real_ms for k in kernels) <= partition.real_ms
    assert profile.notes == ()
    assert [r["clock"] for r in profile.to_json()["records"] if r["kind"] == "kernel"] == ["device"] * 3
    events = [e for e in profile.events if e.record.kind == "kernel"]
    assert len(events) == 9 and all(one.end <= other.begin for one, other in pairwise(events))
    assert sum(e.end - e.begin for e in events) / 3e6 == pytest.approx(sum(k.real_ms for k in kernels))
    tracks = [e["args"]["name"] for e in chrome_trace(profile)["traceEvents"] if e["name"] == "thread_name"]
    assert tracks.count("kernels, by the device's clock") == 1


def test_sessions_and_threads_at_once_have_their_own_times(bundle_of: Write, clocked: Api, tmp_path: Path) -> None:
    small = load(bundle_of(standin.chain(2, (16,), device=clocked.letter)), profile=True)
    large = load(
        standin.write_bundle(tmp_path / "large.hcb", standin.chain(2, (1 << 21,), device=clocked.letter)), profile=True
    )
    plain = load(tmp_path / "large.hcb")
    with small, large, plain, ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(run, s, 4) for s in (small, large, plain, small, large, plain)]:
            done.result()
        profiles = small.profile(), large.profile()
    for profile in profiles:
        assert profile.runs == 8
        assert [k.calls for k in profile.of("kernel")] == [1, 1]
    brief, long = ([k.real_ms for k in p.of("kernel")] for p in profiles)
    assert 0 < max(brief) < min(long)


def test_the_clock_stops_with_the_last_session_that_profiles(bundle_of: Write, clocked: Api) -> None:
    path = bundle_of(standin.chain(2, device=clocked.letter))
    with load(path) as plain:
        first, second = load(path, profile=True), load(path, profile=True)
        run(first)
        first.close()
        first.close()
        assert is_on(clocked, plain)
        run(second)
        assert [k.real_ms > 0 for k in second.profile().of("kernel")] == [True, True]
        second.close()
        assert not is_on(clocked, plain)


def test_the_clock_stops_when_a_session_is_dropped_without_closing(bundle_of: Write, clocked: Api) -> None:
    path = bundle_of(standin.chain(2, device=clocked.letter))
    with load(path) as plain:
        dropped = load(path, profile=True)
        run(dropped)
        assert is_on(clocked, plain)
        del dropped
        gc.collect()
        assert not is_on(clocked, plain)


def test_after_a_failed_run_other_sessions_of_the_thread_are_not_timed_for_it(
    bundle_of: Write, clocked: Api, api_faults: Callable[[str], None]
) -> None:
    path = bundle_of(standin.chain(2, device=clocked.letter))
    with load(path) as plain, load(path, profile=True) as session:
        run(session)
        api_faults("launch:1")
        with pytest.raises(DeviceError):
            run(session)
        clock = KernelClock.of(clocked.backend)
        assert clock is not None
        run(plain)
        assert [len(tuple(clock.take(recorder._owner))) for recorder in session._alive().pool.recorders] == [0]
        run(session)
        profile = session.profile()
    assert profile.runs == 2
    assert [k.real_ms > 0 for k in profile.of("kernel")] == [True, True]


@pytest.mark.vulkan
@pytest.mark.skipif(vulkan_unavailable_reason() is not None, reason=f"no Vulkan here: {vulkan_unavailable_reason()}")
def test_kernels_of_a_device_without_timestamps_are_waited_for_and_the_profile_says_so(
    bundle_of: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = tuple(replace(device, timestamps=False) for device in vulkan_devices())
    monkeypatch.setattr("heterocc.runtime.profile.timestamps.vulkan_devices", lambda: without)
    with load(bundle_of(standin.chain(2, device="v")), profile=True) as session:
        run(session, 2)
        profile = session.profile()
    (note,) = profile.notes
    assert note == (
        "kernels on vulkan:0 are timed by waiting for each, which slows them down: the device has no timestamps"
    )
    assert profile.to_json()["notes"] == [note]
    assert profile.to_table().splitlines()[-1] == f"note: {note}"
    assert [k.clock == "host" and k.real_ms >= k.cpu_ms > 0 for k in profile.of("kernel")] == [True, True]


def test_kernels_of_a_driver_that_refuses_timestamps_are_waited_for_and_the_profile_says_why(
    bundle_of: Write, clocked: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    switched: list[bool] = []

    def refuse(_: KernelClock, enabled: bool) -> None:
        switched.append(enabled)
        if enabled:
            raise RuntimeError("no profiling queue")

    monkeypatch.setattr(KernelClock, "_switch", refuse)
    with load(bundle_of(standin.chain(2, device=clocked.letter)), profile=True) as session:
        run(session)
        profile = session.profile()
    assert switched == [True, False]
    assert [note.rpartition(": ")[2] for note in profile.notes] == ["no profiling queue"]
    assert [k.clock == "host" and k.real_ms >= k.cpu_ms > 0 for k in profile.of("kernel")] == [True, True]

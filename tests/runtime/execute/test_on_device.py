"""Bundles with partitions on a device beside the CPU, the same on every API."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heterocc.artifacts.errors import DeviceError, DeviceMemoryError
from heterocc.artifacts.manifest import Device
from heterocc.runtime import load
from heterocc.runtime.select.request import FIRST
from heterocc.runtime.select.select import select_variants
from tests.runtime import standin
from tests.runtime.apis import Api
from tests.runtime.standin import Model, Op, Part

Write = Callable[..., Path]
X = np.arange(16, dtype=np.float32)


def chain(length: int, devices: str, api: Api) -> Model:
    """`standin.chain`, the letter d for the API's device."""
    return standin.chain(length, device=devices.replace("d", api.letter))


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("devices", ["d", "cd", "dc", "cddc"])
def test_a_chain_over_two_devices_gives_the_right_numbers(bundle_of: Write, api: Api, devices: str) -> None:
    with load(bundle_of(chain(6, devices, api))) as session:
        for x in (X, X * 3):
            np.testing.assert_array_equal(session.run({"x": x})["v5"], x + 6)


@pytest.mark.usefixtures("memory")
def test_nothing_is_allocated_on_a_device_after_the_first_run(bundle_of: Write, api: Api) -> None:
    with load(bundle_of(chain(6, "cd", api))) as session:
        before = session.allocations
        for _ in range(5):
            session.run({"x": X})
        assert session.allocations == before


@pytest.mark.usefixtures("memory")
def test_values_and_kernels_of_a_device_can_be_watched(bundle_of: Write, api: Api) -> None:
    seen = []
    with load(bundle_of(chain(4, "cdd", api))) as session:
        traced = session.run_traced({"x": X})
        session.trace_kernels({"x": X}, lambda t: seen.append(t.outputs[0]), "p2")
    assert list(traced) == ["x", "v0", "v1", "v2", "v3"]
    for number, value in enumerate(traced.values()):
        np.testing.assert_array_equal(value, X + number)
    np.testing.assert_array_equal(seen, [X + 3])


def test_transfers_are_timed_each_once(bundle_of: Write, api: Api, memory: str) -> None:
    with load(bundle_of(chain(3, "cdc", api)), profile=True) as session:
        session.run({"x": X})
        profile = session.profile()
    sent = [(r.name, r.exec_type) for r in profile.of("transfer")]
    note = " (same memory)" if memory == "shared" else ""
    assert sent == [("v0", f"host -> {api.backend}:0{note}"), ("v1", f"{api.backend}:0 -> host{note}")]
    assert {r.status for r in profile.of("transfer")} == {"NOT_RUN" if memory == "shared" else "EXECUTED"}
    assert {r.device for r in profile.of("kernel")} == {"CPU", api.device.name}
    assert all(r.status == "EXECUTED" and r.real_ms > 0 and r.cpu_ms > 0 for r in profile.of("kernel"))


@pytest.mark.usefixtures("memory")
def test_empty_tensors_constants_and_dead_outputs_on_a_device(bundle_of: Write, api: Api) -> None:
    model = Model(
        values={n: ("float32", (0, 4) if n in "ef" else (16,)) for n in "xefkyz"},
        inputs=("x", "e"),
        outputs=("y", "f", "k"),
        parts=(
            Part(1, ("x", "k"), ("y",), (Op("sum", "add", ("x", "k"), "y"),)),
            Part(1, ("x",), ("z",), (Op("same", "copy", ("x",), "z"),)),
            Part(0, ("e",), ("f",), (Op("none", "copy", ("e",), "f"),)),
        ),
        weights={"w": np.full(16, 5, np.float32)},
        constants={"k": "w"},
        devices=(standin.CPU, api.device),
    )
    with load(bundle_of(model)) as session:
        got = session.run({"x": X, "e": np.zeros((0, 4), np.float32)})
    np.testing.assert_array_equal(got["y"], X + 5)
    np.testing.assert_array_equal(got["k"], np.full(16, 5, np.float32))
    assert got["f"].shape == (0, 4)


def test_a_failed_kernel_names_partition_and_device_and_leaves_the_session_usable(
    bundle_of: Write, api: Api, api_faults: Callable[[str], None]
) -> None:
    with load(bundle_of(chain(3, "cdc", api))) as session:
        session.run({"x": X})
        api_faults("launch:1")
        with pytest.raises(DeviceError, match=f"{api.device.name} failed while running partition 'p1'"):
            session.run({"x": X})
        np.testing.assert_array_equal(session.run({"x": X})["v2"], X + 3)


def test_a_device_without_memory_is_a_memory_error(
    bundle_of: Write, api: Api, api_faults: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterocc.runtime.execute.chain.shared_spaces", lambda _: frozenset())
    path = bundle_of(chain(3, "cdc", api))
    gc.collect()
    api.trim()  # memory that earlier tests gave back would be reused, and nothing allocated
    api_faults("alloc:1")
    with pytest.raises(DeviceMemoryError, match=f"{api.backend}:0 failed while allocating 64 bytes"):
        load(path)
    api_faults("")
    with load(path) as session:
        np.testing.assert_array_equal(session.run({"x": X})["v2"], X + 3)


def test_a_device_index_that_is_not_here_is_a_reason_to_pass_a_variant_over(bundle_of: Write, api: Api) -> None:
    far = chain(2, "cd", api)
    far = Model(**{**vars(far), "devices": (standin.CPU, Device(name="GPU.7", backend=api.backend, index=7))})
    with load(bundle_of(far, standin.chain(2))) as session:
        assert session.devices == ("CPU",)
        assert f"GPU.7 is {api.label} device 7" in session.notes[0]
        assert select_variants(session.bundle.manifest, FIRST, "m").variants[0].name.startswith("CPU")


def test_a_profile_says_which_transfers_run_beside_a_partition(
    bundle_of: Write, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterocc.runtime.execute.chain.shared_spaces", lambda _: frozenset())
    model = chain(2, "dc", api)
    beside = Part(device=0, inputs=("x",), outputs=("z",), ops=(Op("twice", "add", ("x", "x"), "z"),))
    model = replace(
        model,
        values={**model.values, "z": ("float32", (16,))},
        outputs=("v1", "z"),
        parts=(replace(model.parts[0], device=1), beside, replace(model.parts[1], device=0)),
        devices=(standin.CPU, api.device),
    )
    with load(bundle_of(model), profile=True) as session:
        found = session.run({"x": X})
        np.testing.assert_array_equal(found["v1"], X + 2)
        np.testing.assert_array_equal(found["z"], X * 2)
        transfers = session.profile().of("transfer")
    assert [(r.name, r.exec_type) for r in transfers] == [
        ("x", f"host -> {api.backend}:0 (overlaps p1)"),
        ("v0", f"{api.backend}:0 -> host (overlaps p1)"),
    ]
    assert all(r.real_ms > 0 for r in transfers)


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("sessions", [1, 4])
def test_threads_share_a_device(bundle_of: Write, api: Api, sessions: int) -> None:
    path = bundle_of(chain(4, "cdd", api))
    loaded = [load(path, threads=1) for _ in range(sessions)]
    with ThreadPoolExecutor(8) as pool:
        for i, got in pool.map(lambda i: (i, loaded[i % sessions].run({"x": X + i})["v3"]), range(200)):
            np.testing.assert_array_equal(got, X + i + 4)
    for session in loaded:
        session.close()


@pytest.mark.usefixtures("memory")
def test_a_session_on_a_lost_device_fails_and_a_new_one_works(
    bundle_of: Write, api: Api, api_faults: Callable[[str], None]
) -> None:
    path = bundle_of(chain(3, "cdc", api))
    with load(path) as session:
        np.testing.assert_array_equal(session.run({"x": X})["v2"], X + 3)
        api_faults("lost:1")
        for _ in range(2):
            with pytest.raises(DeviceError, match="load the bundle again"):
                session.run({"x": X})
        with load(path) as other:
            np.testing.assert_array_equal(other.run({"x": X})["v2"], X + 3)
        with pytest.raises(DeviceError, match="load the bundle again"):
            session.run({"x": X})

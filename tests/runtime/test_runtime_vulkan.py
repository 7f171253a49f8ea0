"""Bundles with partitions on a Vulkan device, alone and beside the CPU and OpenCL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import standin
import tvm_ffi
from standin import Model, Op, Part

from heterocc.artifacts.errors import DeviceError, DeviceMemoryError
from heterocc.artifacts.manifest import Device
from heterocc.runtime import load
from heterocc.runtime.native import unavailable_reason, vulkan_unavailable_reason
from heterocc.runtime.native.vulkan_api import statistics, trim

pytestmark = [
    pytest.mark.vulkan,
    pytest.mark.skipif(
        vulkan_unavailable_reason() is not None, reason=f"no Vulkan here: {vulkan_unavailable_reason()}"
    ),
]

Write = Callable[..., Path]
X = np.arange(16, dtype=np.float32)


@pytest.fixture(params=["shared", "copied"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to reach a device's memory: aliased where the device is a CPU, and copied as to a device of its own."""
    if request.param == "copied":
        monkeypatch.setattr("heterocc.runtime.chain.shared_spaces", lambda _: frozenset())
    return str(request.param)


@pytest.fixture
def faults() -> Iterator[Callable[[str], None]]:
    inject = tvm_ffi.get_global_func("heterocc.vulkan.fault")
    yield inject
    inject("")


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("devices", ["v", "cv", "vc", "cvvc"])
def test_a_chain_over_two_devices_gives_the_right_numbers(bundle_of: Write, devices: str) -> None:
    with load(bundle_of(standin.chain(6, device=devices))) as session:
        for x in (X, X * 3):
            np.testing.assert_array_equal(session.run({"x": x})["v5"], x + 6)


@pytest.mark.opencl
@pytest.mark.usefixtures("memory")
@pytest.mark.skipif(unavailable_reason() is not None, reason=f"no OpenCL here: {unavailable_reason()}")
@pytest.mark.parametrize("devices", ["vg", "gvc", "cgvgv"])
def test_a_chain_over_three_devices_gives_the_right_numbers(bundle_of: Write, devices: str) -> None:
    with load(bundle_of(standin.chain(8, device=devices))) as session:
        for x in (X, X * 3):
            np.testing.assert_array_equal(session.run({"x": x})["v7"], x + 8)


@pytest.mark.usefixtures("memory")
def test_nothing_is_allocated_on_a_device_after_the_first_run(bundle_of: Write) -> None:
    with load(bundle_of(standin.chain(6, device="cv"))) as session:
        session.run({"x": X})
        before, held = session.allocations, statistics().held
        for _ in range(5):
            session.run({"x": X})
        assert session.allocations == before
        assert statistics().held == held


def test_partitions_that_follow_each_other_on_a_device_are_one_submission(
    bundle_of: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterocc.runtime.chain.shared_spaces", lambda _: frozenset())
    with load(bundle_of(standin.chain(5, device="v"))) as session:
        session.run({"x": X})
        before = statistics()
        session.run({"x": X})
        after = statistics()
    assert after.kernels - before.kernels == 5
    assert after.submissions - before.submissions == 1


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("sessions", [1, 4])
def test_threads_share_a_device(bundle_of: Write, sessions: int) -> None:
    path = bundle_of(standin.chain(4, device="cvv"))
    loaded = [load(path, threads=1) for _ in range(sessions)]
    with ThreadPoolExecutor(8) as pool:
        for i, got in pool.map(lambda i: (i, loaded[i % sessions].run({"x": X + i})["v3"]), range(200)):
            np.testing.assert_array_equal(got, X + i + 4)
    for session in loaded:
        session.close()


@pytest.mark.usefixtures("memory")
def test_values_and_kernels_of_a_device_can_be_watched(bundle_of: Write) -> None:
    seen = []
    with load(bundle_of(standin.chain(4, device="cvv"))) as session:
        traced = session.run_traced({"x": X})
        session.trace_kernels({"x": X}, lambda t: seen.append(t.outputs[0]), "p2")
    assert list(traced) == ["x", "v0", "v1", "v2", "v3"]
    for number, value in enumerate(traced.values()):
        np.testing.assert_array_equal(value, X + number)
    np.testing.assert_array_equal(seen, [X + 3])


def test_transfers_are_timed_each_once(bundle_of: Write, memory: str) -> None:
    with load(bundle_of(standin.chain(3, device="cvc")), profile=True) as session:
        session.run({"x": X})
        profile = session.profile()
    sent = [(r.name, r.exec_type) for r in profile.of("transfer")]
    note = " (same memory)" if memory == "shared" else ""
    assert sent == [("v0", f"host -> vulkan:0{note}"), ("v1", f"vulkan:0 -> host{note}")]
    assert {r.device for r in profile.of("kernel")} == {"CPU", "VULKAN"}
    assert all(r.status == "EXECUTED" and r.real_ms > 0 and r.cpu_ms > 0 for r in profile.of("kernel"))


@pytest.mark.usefixtures("memory")
def test_empty_tensors_constants_and_dead_outputs_on_a_device(bundle_of: Write) -> None:
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
        devices=(standin.CPU, standin.VULKAN),
    )
    with load(bundle_of(model)) as session:
        got = session.run({"x": X, "e": np.zeros((0, 4), np.float32)})
    np.testing.assert_array_equal(got["y"], X + 5)
    np.testing.assert_array_equal(got["k"], np.full(16, 5, np.float32))
    assert got["f"].shape == (0, 4)


def test_a_failed_kernel_names_partition_and_device_and_leaves_the_session_usable(
    bundle_of: Write, faults: Callable[[str], None]
) -> None:
    with load(bundle_of(standin.chain(3, device="cvc"))) as session:
        session.run({"x": X})
        faults("launch:1")
        with pytest.raises(DeviceError, match="VULKAN failed while running partition 'p1'"):
            session.run({"x": X})
        np.testing.assert_array_equal(session.run({"x": X})["v2"], X + 3)


def test_a_device_without_memory_is_a_memory_error(
    bundle_of: Write, faults: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterocc.runtime.chain.shared_spaces", lambda _: frozenset())
    path = bundle_of(standin.chain(3, device="cvc"))
    trim()  # nothing idle that the plug-in could free before it tries again
    faults("alloc:1")
    with pytest.raises(DeviceMemoryError, match="vulkan:0 failed while allocating 64 bytes"):
        load(path)
    faults("")
    with load(path) as session:
        np.testing.assert_array_equal(session.run({"x": X})["v2"], X + 3)


def test_a_kernel_that_the_driver_refuses_is_an_error_of_the_load(
    bundle_of: Write, faults: Callable[[str], None]
) -> None:
    path = bundle_of(standin.chain(2, device="v"))
    faults("build:1")
    with pytest.raises(DeviceError, match="vulkan:0 failed while loading partition 'p0': kernel '"):
        load(path)
    faults("")
    with load(path) as session:
        np.testing.assert_array_equal(session.run({"x": X})["v1"], X + 2)


@pytest.mark.usefixtures("memory")
def test_a_session_on_a_lost_device_fails_and_a_new_one_works(bundle_of: Write, faults: Callable[[str], None]) -> None:
    path = bundle_of(standin.chain(3, device="cvc"))
    with load(path) as session:
        np.testing.assert_array_equal(session.run({"x": X})["v2"], X + 3)
        faults("lost:1")
        for _ in range(2):
            with pytest.raises(DeviceError, match="load the bundle again"):
                session.run({"x": X})
        with load(path) as other:
            np.testing.assert_array_equal(other.run({"x": X})["v2"], X + 3)
        with pytest.raises(DeviceError, match="load the bundle again"):
            session.run({"x": X})


def test_a_device_index_that_is_not_here_is_a_reason_to_pass_a_variant_over(bundle_of: Write) -> None:
    far = standin.chain(2, device="cv")
    far = Model(**{**vars(far), "devices": (standin.CPU, Device(name="GPU.7", backend="vulkan", index=7))})
    with load(bundle_of(far, standin.chain(2))) as session:
        assert session.devices == ("CPU",)
        assert "GPU.7 is Vulkan device 7" in session.notes[0]

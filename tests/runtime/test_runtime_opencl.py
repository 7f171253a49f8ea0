from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import standin
import tvm_ffi
from standin import Model, Op, Part

from heterocc.artifacts.errors import DeviceError, DeviceMemoryError
from heterocc.artifacts.manifest import Device
from heterocc.runtime import load
from heterocc.runtime.native import trim, unavailable_reason
from heterocc.runtime.select import select_variants

pytestmark = [
    pytest.mark.opencl,
    pytest.mark.skipif(unavailable_reason() is not None, reason=f"no OpenCL here: {unavailable_reason()}"),
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
    inject = tvm_ffi.get_global_func("heterocc.opencl.fault")
    yield inject
    inject("")


@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize("devices", ["g", "cg", "gc", "cggc"])
def test_a_chain_over_two_devices_gives_the_right_numbers(bundle_of: Write, devices: str) -> None:
    with load(bundle_of(standin.chain(6, device=devices))) as session:
        for x in (X, X * 3):
            np.testing.assert_array_equal(session.run({"x": x})["v5"], x + 6)


@pytest.mark.usefixtures("memory")
def test_nothing_is_allocated_on_a_device_after_the_first_run(bundle_of: Write) -> None:
    with load(bundle_of(standin.chain(6, device="cg"))) as session:
        before = session.allocations
        for _ in range(5):
            session.run({"x": X})
        assert session.allocations == before


@pytest.mark.usefixtures("memory")
def test_threads_share_a_device(bundle_of: Write) -> None:
    with load(bundle_of(standin.chain(4, device="cgg")), threads=1) as session, ThreadPoolExecutor(4) as pool:
        for i, got in pool.map(lambda i: (i, session.run({"x": X + i})["v3"]), range(60)):
            np.testing.assert_array_equal(got, X + i + 4)


@pytest.mark.usefixtures("memory")
def test_values_and_kernels_of_a_device_can_be_watched(bundle_of: Write) -> None:
    seen = []
    with load(bundle_of(standin.chain(4, device="cgg"))) as session:
        traced = session.run_traced({"x": X})
        session.trace_kernels({"x": X}, lambda t: seen.append(t.outputs[0]), "p2")
    assert list(traced) == ["x", "v0", "v1", "v2", "v3"]
    for number, value in enumerate(traced.values()):
        np.testing.assert_array_equal(value, X + number)
    np.testing.assert_array_equal(seen, [X + 3])


def test_transfers_are_timed_each_once(bundle_of: Write, memory: str) -> None:
    with load(bundle_of(standin.chain(3, device="cgc")), profile=True) as session:
        session.run({"x": X})
        profile = session.profile()
    sent = [(r.name, r.exec_type) for r in profile.of("transfer")]
    note = " (same memory)" if memory == "shared" else ""
    assert sent == [("v0", f"host -> opencl:0{note}"), ("v1", f"opencl:0 -> host{note}")]
    assert {r.status for r in profile.of("transfer")} == {"NOT_RUN" if memory == "shared" else "EXECUTED"}
    assert {r.device for r in profile.of("kernel")} == {"CPU", "OPENCL"}
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
        devices=(standin.CPU, standin.OPENCL),
    )
    with load(bundle_of(model)) as session:
        got = session.run({"x": X, "e": np.zeros((0, 4), np.float32)})
    np.testing.assert_array_equal(got["y"], X + 5)
    np.testing.assert_array_equal(got["k"], np.full(16, 5, np.float32))
    assert got["f"].shape == (0, 4)


def test_a_failed_kernel_names_partition_and_device_and_leaves_the_session_usable(
    bundle_of: Write, faults: Callable[[str], None]
) -> None:
    with load(bundle_of(standin.chain(3, device="cgc"))) as session:
        session.run({"x": X})
        faults("launch:1")
        with pytest.raises(DeviceError, match="OPENCL failed while running partition 'p1'"):
            session.run({"x": X})
        np.testing.assert_array_equal(session.run({"x": X})["v2"], X + 3)


def test_a_device_without_memory_is_a_memory_error(
    bundle_of: Write, faults: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterocc.runtime.chain.shared_spaces", lambda _: frozenset())
    path = bundle_of(standin.chain(3, device="cgc"))
    gc.collect()
    trim()  # memory that earlier tests gave back would be reused, and nothing allocated
    faults("alloc:1")
    with pytest.raises(DeviceMemoryError, match="opencl:0 failed while allocating 64 bytes"):
        load(path)
    faults("")
    with load(path) as session:
        np.testing.assert_array_equal(session.run({"x": X})["v2"], X + 3)


def test_a_device_index_that_is_not_here_is_a_reason_to_pass_a_variant_over(bundle_of: Write) -> None:
    far = standin.chain(2, device="cg")
    far = Model(**{**vars(far), "devices": (standin.CPU, Device(name="GPU.7", backend="opencl", index=7))})
    with load(bundle_of(far, standin.chain(2))) as session:
        assert session.devices == ("CPU",)
        assert "GPU.7 is OpenCL device 7" in session.notes[0]
        assert select_variants(session.bundle.manifest, None, "m").variants[0].name.startswith("CPU")


def test_a_profile_says_which_transfers_run_beside_a_partition(
    bundle_of: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterocc.runtime.chain.shared_spaces", lambda _: frozenset())
    model = standin.chain(2, device="gc")
    beside = Part(device=0, inputs=("x",), outputs=("z",), ops=(Op("twice", "add", ("x", "x"), "z"),))
    model = replace(
        model,
        values={**model.values, "z": ("float32", (16,))},
        outputs=("v1", "z"),
        parts=(replace(model.parts[0], device=1), beside, replace(model.parts[1], device=0)),
        devices=(standin.CPU, standin.OPENCL),
    )
    with load(bundle_of(model), profile=True) as session:
        found = session.run({"x": X})
        np.testing.assert_array_equal(found["v1"], X + 2)
        np.testing.assert_array_equal(found["z"], X * 2)
        transfers = session.profile().of("transfer")
    assert [(r.name, r.exec_type) for r in transfers] == [
        ("x", "host -> opencl:0 (overlaps p1)"),
        ("v0", "opencl:0 -> host (overlaps p1)"),
    ]
    assert all(r.real_ms > 0 for r in transfers)

"""Properties of Vulkan alone: bundles on three devices, submissions, memory in use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tvm_ffi

from heterocc.artifacts.errors import DeviceError
from heterocc.runtime import load
from heterocc.runtime.native import opencl_unavailable_reason, vulkan_unavailable_reason
from heterocc.runtime.native.vulkan_api import statistics
from tests.runtime import standin

pytestmark = [
    pytest.mark.vulkan,
    pytest.mark.skipif(
        vulkan_unavailable_reason() is not None, reason=f"no Vulkan here: {vulkan_unavailable_reason()}"
    ),
]

Write = Callable[..., Path]
X = np.arange(16, dtype=np.float32)


@pytest.fixture
def faults() -> Iterator[Callable[[str], None]]:
    inject = tvm_ffi.get_global_func("heterocc.vulkan.fault")
    yield inject
    inject("")


@pytest.mark.opencl
@pytest.mark.usefixtures("memory")
@pytest.mark.skipif(opencl_unavailable_reason() is not None, reason=f"no OpenCL here: {opencl_unavailable_reason()}")
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
    monkeypatch.setattr("heterocc.runtime.execute.chain.shared_spaces", lambda _: frozenset())
    with load(bundle_of(standin.chain(5, device="v"))) as session:
        session.run({"x": X})
        before = statistics()
        session.run({"x": X})
        after = statistics()
    assert after.kernels - before.kernels == 5
    assert after.submissions - before.submissions == 1


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

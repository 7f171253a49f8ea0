"""Timestamps of kernels, by owner and label, on OpenCL and Vulkan."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from heterocc.runtime.native import vulkan_devices
from heterocc.runtime.native.kernel_clock import KernelClock
from tests.runtime.native import opencl_sample, vulkan_sample

Launch = Callable[[int], None]


@pytest.fixture(
    params=[
        pytest.param("opencl", marks=pytest.mark.opencl),
        pytest.param("vulkan", marks=pytest.mark.vulkan),
    ]
)
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "vulkan" and not vulkan_devices()[0].timestamps:
        pytest.skip("the first Vulkan device has no timestamps")
    return str(request.param)


@pytest.fixture
def launch(backend: str) -> Launch:
    """Runs the sample's kernel over so many elements and waits for it."""
    sample: Any = {"opencl": opencl_sample, "vulkan": vulkan_sample}[backend]
    kernel = sample.load(sample.module_bytes()).get_function("scale")

    def run(size: int) -> None:
        source, target = sample.to_device(np.ones(size, "float32")), sample.empty((size,))
        kernel(sample.pointer(target), sample.pointer(source), 2.0, 1, size // 8, 8)
        assert (sample.to_host(target) == 3).all()

    return run


@pytest.fixture
def clock(backend: str, launch: Launch) -> Iterator[KernelClock]:
    assert callable(launch)  # which loads the plug-in
    found = KernelClock.of(backend)
    assert found is not None
    yield found
    found.time_for(0, 0)


def taken(clock: KernelClock, owner: int) -> list[tuple[int, int]]:
    return [(int(label), int(time)) for label, time in clock.take(owner)]


def test_a_kernel_is_timed_for_its_owner_while_the_clock_runs(clock: KernelClock, launch: Launch) -> None:
    clock.time_for(7, 1)
    launch(64)
    assert taken(clock, 7) == []
    clock.start()
    try:
        for label in (1, 2, 2):
            clock.time_for(7, label)
            launch(64)
        clock.time_for(0, 0)
        launch(64)
        assert taken(clock, 8) == []
        times = taken(clock, 7)
        assert taken(clock, 7) == []
    finally:
        clock.stop()
    assert [label for label, _ in times] == [1, 2, 2]
    assert all(0 < time < 10**9 for _, time in times)
    clock.time_for(7, 3)
    launch(64)
    assert taken(clock, 7) == []


def test_a_kernel_with_more_to_do_takes_longer(clock: KernelClock, launch: Launch) -> None:
    sizes = (1 << 8, 1 << 18)
    clock.start()
    try:
        for _ in range(3):
            for label, size in enumerate(sizes):
                clock.time_for(9, label)
                launch(size)
        times = taken(clock, 9)
    finally:
        clock.stop()
    small, large = (min(time for label, time in times if label == wanted) for wanted in (0, 1))
    assert small < large


def test_the_clock_runs_until_its_last_user_stops_it(clock: KernelClock, launch: Launch) -> None:
    clock.time_for(5, 1)
    clock.start()
    clock.start()
    clock.stop()
    launch(64)
    assert len(taken(clock, 5)) == 1
    clock.stop()
    launch(64)
    assert taken(clock, 5) == []


def test_times_that_nobody_took_are_dropped_when_the_clock_stops(clock: KernelClock, launch: Launch) -> None:
    clock.start()
    clock.time_for(4, 1)
    launch(64)
    clock.stop()
    clock.start()
    try:
        assert taken(clock, 4) == []
    finally:
        clock.stop()


def test_threads_have_kernels_timed_each_for_its_own_owner(clock: KernelClock, launch: Launch) -> None:
    found: dict[int, list[int]] = {}

    def work(owner: int) -> None:
        labels = []
        for label in range(20):
            clock.time_for(owner if label % 2 else 0, label)
            launch(64)
            labels += [label for label, _ in taken(clock, owner)]
        found[owner] = labels

    threads = [threading.Thread(target=work, args=(owner,)) for owner in range(20, 26)]
    clock.start()
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        clock.stop()
    assert found == {owner: list(range(1, 20, 2)) for owner in range(20, 26)}

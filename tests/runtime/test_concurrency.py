from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

from heterocc.artifacts.errors import DeviceError, UsageError
from heterocc.runtime import Session, load
from tests.runtime import standin

Write = Callable[..., Path]


def test_many_threads_share_a_session_and_each_gets_its_own_numbers(bundle_of: Write) -> None:
    with load(bundle_of(standin.chain(8)), threads=1) as session:
        barrier = threading.Barrier(8)

        def caller(seed: int) -> bool:
            barrier.wait()
            x = np.arange(16, dtype=np.float32) * seed
            return all(np.array_equal(session.run({"x": x})["v7"], x + 8) for _ in range(200))

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(caller, range(8)))


def test_contexts_are_made_when_needed_and_used_again(bundle_of: Write) -> None:
    with load(bundle_of(standin.chain(2)), threads=1) as session:
        x = {"x": np.zeros(16, np.float32)}
        at_load = session.allocations
        for _ in range(20):
            session.run(x)
        assert session.allocations == at_load
        for _ in range(5):
            with ThreadPoolExecutor(3) as pool:
                list(pool.map(lambda _: session.run(x), range(30)))
        assert session.allocations <= 3 * at_load


@pytest.mark.parametrize("way", ["out", "bind"])
def test_nothing_is_allocated_after_the_first_run(bundle_of: Write, way: str) -> None:
    size = 64 * 1024
    with load(bundle_of(standin.chain(4, (size,))), threads=1) as session:
        x, y = np.ones(size, np.float32), np.empty(size, np.float32)
        binding = session.bind()

        def once() -> None:
            if way == "out":
                session.run({"x": x}, out={"v3": y})
            else:
                binding.run()

        once()
        count, rss = session.allocations, _resident()
        tracemalloc.start()
        try:
            for _ in range(50):
                once()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert session.allocations == count
        assert peak < size  # a single value has four bytes for each element
        assert _resident() - rss < 4 * size


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


def test_values_of_a_long_chain_share_two_slots_beside_the_input(bundle_of: Write) -> None:
    with load(bundle_of(standin.chain(20, (1024,)))) as session:
        assert session.allocated_bytes == 3 * 1024 * 4


def failing(length: int) -> standin.Model:
    """A chain whose second partition is compiled for another shape than the manifest says."""
    model = standin.chain(length)
    code = standin.compile_part(standin.chain(length, (8,)), model.parts[1])
    return replace(model, parts=(model.parts[0], replace(model.parts[1], code=code), *model.parts[2:]))


def test_a_failing_partition_is_named_with_its_device(bundle_of: Write) -> None:
    with load(bundle_of(failing(3))) as session:
        with pytest.raises(DeviceError, match="CPU failed while running partition 'p1'") as caught:
            session.run({"x": np.zeros(16, np.float32)})
        assert caught.value.where == "device CPU"


def test_a_failed_run_leaves_the_session_usable_by_others(bundle_of: Write) -> None:
    with load(bundle_of(standin.chain(3)), threads=1) as session:
        x = {"x": np.zeros(16, np.float32)}
        real = session._alive().pool._idle[-1]._actions
        session._alive().pool._idle[-1]._actions = (real[0], _raise, real[2])
        with pytest.raises(DeviceError, match="injected"):
            session.run(x)
        np.testing.assert_array_equal(session.run(x)["v2"], np.full(16, 3, np.float32))


def _raise() -> None:
    raise RuntimeError("injected")


def test_a_session_may_be_closed_while_others_run(bundle_of: Write) -> None:
    session = load(bundle_of(standin.chain(4)), threads=1)
    x = np.zeros(16, np.float32)
    outcomes = []

    def caller(running: Session) -> None:
        for _ in range(200):
            try:
                outcomes.append(float(running.run({"x": x})["v3"][0]))
            except Exception as error:
                outcomes.append(type(error).__name__)

    threads = [threading.Thread(target=caller, args=(session,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    session.close()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 600
    assert set(outcomes) <= {4.0, "UsageError"}
    with pytest.raises(UsageError):
        session.run({"x": x})


def test_a_hop_between_cpu_partitions_takes_at_most_20_microseconds(bundle_of: Write) -> None:
    times = {}
    for length in (1, 50):
        with load(bundle_of(standin.chain(length)), threads=1) as session:
            binding = session.bind()
            times[length] = min(_seconds(binding.run) for _ in range(200))
    assert (times[50] - times[1]) / 49 < 20e-6


def _seconds(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start

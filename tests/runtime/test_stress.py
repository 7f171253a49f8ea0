"""Eight threads on one session and on eight, on every device, over three at once, and side by side."""

from __future__ import annotations

import contextlib

import pytest

from heterocc.runtime import load
from tests.runtime.stress import CHAIN, OPENCL, THREADS, VULKAN, Bundles, Samples, both, hammer

ROUNDS = 200


@pytest.mark.parametrize("sessions", [1, THREADS])
@pytest.mark.parametrize("devices", ["CPU", OPENCL, VULKAN, CHAIN])
def test_eight_threads_each_get_their_own_numbers(
    bundles: Bundles, samples: Samples, devices: str, sessions: int
) -> None:
    with contextlib.ExitStack() as stack:
        loaded = [stack.enter_context(load(bundles.of(devices), threads=1)) for _ in range(sessions)]
        assert hammer(loaded, samples, ROUNDS) == []


@both
def test_sessions_of_both_devices_do_not_disturb_each_other(bundles: Bundles, samples: Samples) -> None:
    with contextlib.ExitStack() as stack:
        names = ["OPENCL", "VULKAN"] * (THREADS // 2)
        loaded = [stack.enter_context(load(bundles.of(name), threads=1)) for name in names]
        assert hammer(loaded, samples, ROUNDS) == []


@both
def test_sessions_that_come_and_go_do_not_disturb_those_that_stay(bundles: Bundles, samples: Samples) -> None:
    with contextlib.ExitStack() as stack:
        loaded = [stack.enter_context(load(bundles.of(name), threads=1)) for name in ("OPENCL", "VULKAN")]
        for _ in range(5):
            with load(bundles.of("VULKAN,OPENCL,CPU"), threads=1) as passing:
                assert hammer([*loaded, passing], samples, ROUNDS // 10) == []

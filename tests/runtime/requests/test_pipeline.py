"""Requests that follow each other through the devices of one variant."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from heterocc.runtime import load
from heterocc.runtime.requests.limits import request_limit
from tests.runtime import standin
from tests.runtime.letter_variants import variant
from tests.runtime.requests.conftest import feed

COUNT = 6
LONG = 30.0
"""Seconds after which a wait fails; none is reached unless requests do not run at the same time."""


def test_each_device_works_on_another_request(tmp_path: Path) -> None:
    """The second device ends a request only when the first one has begun the next."""
    devices = threading.Lock(), threading.Lock()
    begun = threading.Semaphore(0)
    events: list[str] = []

    def first() -> None:
        with devices[0]:
            events.append(f"begin {sum(e.startswith('begin') for e in events)}")
            begun.release()

    def second() -> None:
        with devices[1]:
            number = sum(e.startswith("end") for e in events)
            for _ in range(2 if number == 0 else 1 if number < COUNT - 1 else 0):
                if not begun.acquire(timeout=LONG):
                    raise TimeoutError("no other request was begun")
            events.append(f"end {number}")

    bundle = standin.write_bundle(tmp_path / "m.hcb", standin.stages([first, second]))
    with load(bundle, threads=1, requests=3) as session:
        results = [out["y"][0] for out in session.stream((feed(i) for i in range(COUNT)), depth=COUNT)]
    assert results == list(range(COUNT))
    for number in range(COUNT - 1):
        assert events.index(f"begin {number + 1}") < events.index(f"end {number}")


@pytest.mark.parametrize(
    ("parts", "requests"),
    [
        ([("g", "x", "y")], 2),
        ([("g", "x", "a"), ("c", "a", "y")], 3),
        ([("g", "x", "a"), ("c", "a", "b"), ("v", "b", "y")], 4),
        ([("c", "x", "a"), ("c", "a", "y")], 1),
    ],
)
def test_by_default_one_request_more_runs_than_there_are_devices(parts: list[Any], requests: int) -> None:
    cores = 10**6  # threads of one run: all cores
    assert request_limit(variant(parts), cores, None, None) == requests
    assert request_limit(variant(parts), cores, None, "latency") == 1
    assert request_limit(variant(parts), cores, 7, None) == 7

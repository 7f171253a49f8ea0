"""Kernels of the CPU are timed in native code: an observer in Python takes longer than many kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import pytest

from heterocc.runtime import load
from heterocc.runtime.native import cpu_api
from heterocc.runtime.profile.recorder import Recorder
from tests.runtime.profile.test_profile import X, two_kernels

Write = Callable[..., Path]


def test_an_observer_hears_of_kernels_only() -> None:
    heard: list[Any] = []

    def observer(_function: Any, symbol: str, before: bool, _result: Any, *arguments: Any) -> int:
        heard.append((symbol, before, arguments))
        return 0

    observe = cpu_api.kernels_only(observer)
    for symbol in ("vm.builtin.match_shape", "add", "vm.builtin.", "vm.builtins_of_a_model", ""):
        observe(None, symbol, True, None, 3)
    assert heard == [("add", True, (3,)), ("vm.builtins_of_a_model", True, (3,)), ("", True, (3,))]


def test_kernels_are_timed_by_symbol_and_the_first_calls_one_by_one() -> None:
    native = cpu_api.kernel_times(2)
    assert native is not None
    observe, take = native
    start = perf_counter_ns()
    observe(None, "failed", True, None)
    for symbol in ("add", "vm.builtin.shape_of", "mul", "add"):
        observe(None, symbol, True, None)
        observe(None, symbol, False, None)
    end = perf_counter_ns()
    symbols, sums, calls = take()
    assert symbols == ("add", "mul") and [count for _, count in sums] == [2, 1]
    assert [number for number, *_ in calls] == [0, 1]
    assert start <= calls[0][1] <= calls[0][2] <= calls[1][1] <= calls[1][2] <= end
    assert calls[1][2] - calls[1][1] == sums[1][0]
    observe(None, "add", False, None)  # one that began before its times were taken
    assert take() == (("add", "mul"), [[0, 0], [0, 0]], [])


def test_a_profile_of_the_cpu_calls_no_python_for_a_kernel(bundle_of: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Recorder, "_waiting")
    with load(bundle_of(two_kernels()), profile=True) as session:
        for _ in range(3):
            session.run({"x": X})
        kernels = session.profile().of("kernel")
        assert [k.calls for k in kernels] == [1, 1, 1] and all(k.real_ms > 0 for k in kernels)
        assert len([e for e in session.profile().events if e.record.kind == "kernel"]) == 9


def test_a_profile_without_the_plug_in_times_kernels_in_python(
    bundle_of: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterocc.runtime.profile.recorder.kernel_times", lambda most: None)
    with load(bundle_of(two_kernels()), profile=True) as session:
        session.run({"x": X})
        assert [k.calls for k in session.profile().of("kernel")] == [1, 1, 1]

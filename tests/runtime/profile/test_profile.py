from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterocc.artifacts.errors import UsageError
from heterocc.runtime import KernelTrace, load
from heterocc.runtime.profile.profile import _medians
from heterocc.runtime.profile.recorder import Cell, Interval, Recorder
from tests.runtime import standin
from tests.runtime.execute.test_ort import mixed
from tests.runtime.standin import Model, Op, Part

Write = Callable[..., Path]
X = np.arange(16, dtype=np.float32)


def two_kernels() -> Model:
    """p0: t = x + w, y = t * t; p1: z = y + x."""
    return Model(
        values=dict.fromkeys("xtyz", ("float32", (16,))),
        inputs=("x",),
        outputs=("z",),
        parts=(
            Part(
                0,
                ("x",),
                ("y",),
                (Op("first", "add", ("x", "w"), "t"), Op("second", "mul", ("t", "t"), "y")),
                ("w",),
                nodes=("node_first", "node_second", "folded"),
            ),
            Part(0, ("y", "x"), ("z",), (Op("third", "add", ("y", "x"), "z"),)),
        ),
        weights={"w": np.ones(16, np.float32)},
    )


def test_a_profile_has_partitions_kernels_and_nodes_in_run_order(bundle_of: Write) -> None:
    with load(bundle_of(two_kernels()), profile=True) as session:
        for _ in range(3):
            session.run({"x": X})
        profile = session.profile()
    assert profile.runs == 3
    assert [(r.kind, r.name, r.status) for r in profile.records] == [
        ("partition", "p0", "EXECUTED"),
        ("kernel", "node_first", "EXECUTED"),
        ("kernel", "node_second", "EXECUTED"),
        ("node", "folded", "NOT_RUN"),
        ("partition", "p1", "EXECUTED"),
        ("kernel", "node_third", "EXECUTED"),
    ]
    kernel = profile.of("kernel")[1]
    assert (kernel.layer_type, kernel.exec_type, kernel.device, kernel.partition) == ("Mul", "CPU second", "CPU", "p0")
    assert kernel.nodes == ("node_second",)
    assert kernel.calls == 1
    inside = sum(r.real_ms for r in profile.of("kernel"))
    assert 0 < inside < profile.total_ms


def test_the_table_has_the_columns_of_openvinos(bundle_of: Write) -> None:
    with load(bundle_of(two_kernels()), profile=True) as session:
        session.run({"x": X})
        lines = session.profile().to_table().splitlines()
        data = session.profile().to_json()
    assert lines[0].split() == [
        "layerName",
        "execStatus",
        "layerType",
        "realTime",
        "(ms)",
        "cpuTime",
        "(ms)",
        "execType",
    ]
    assert lines[1].split()[:3] == ["node_first", "EXECUTED", "Add"]
    assert any(line.split()[:2] == ["folded", "NOT_RUN"] for line in lines)
    assert lines[-1].startswith("Total")
    assert len(data["records"]) == 6


def test_partitions_of_onnx_runtime_are_timed_as_a_whole(bundle_of: Write) -> None:
    with load(bundle_of(mixed()), profile=True) as session:
        session.run({"x": X})
        profile = session.profile()
    part = profile.of("partition")[1]
    assert (part.device, part.exec_type, part.status) == ("ORT", "ORT onnx", "EXECUTED")
    assert [r.name for r in profile.of("node") if r.device == "ORT"] == ["scale"]


def test_a_profile_of_a_session_that_has_not_run_executes_nothing(bundle_of: Write) -> None:
    with load(bundle_of(two_kernels()), profile=True) as session:
        profile = session.profile()
    assert profile.runs == 0
    assert {r.kind for r in profile.records} >= {"partition", "kernel"}
    assert all(r.status == "NOT_RUN" and r.real_ms == 0 for r in profile.records)


def test_one_disturbed_run_does_not_change_the_medians(bundle_of: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = Recorder._keep

    def disturbed(self: Recorder, what: Any, begin: int, end: int) -> None:
        keep(self, what, begin, end + (0 if self.intervals else 10**9))

    with load(bundle_of(two_kernels()), profile=True) as session:
        monkeypatch.setattr(Recorder, "_keep", disturbed)
        for _ in range(3):
            session.run({"x": X})
        profile = session.profile()
    assert max(e.end - e.begin for e in profile.events) > 1e9
    for record in (*profile.of("partition"), *profile.of("kernel")):
        times = [e.end - e.begin for e in profile.events if e.record is record]
        assert len(times) == 3 and record.median_ms == statistics.median(times) / 1e6 < 1e3
    assert all(record.median_ms is None for record in profile.of("node"))


def test_the_calls_of_a_kernel_in_a_run_count_together_and_calls_that_differ_have_no_median() -> None:
    def cells(**calls: int) -> dict[Any, Cell]:
        return {(0, symbol): Cell(calls=number) for symbol, number in calls.items()}

    times = {"twice": (1, 2, 10, 20, 3, 4), "looped": (5, 5, 5, 5)}
    recorder = Recorder(None, None, 3, kernels=cells(twice=6, looped=4))  # type: ignore[arg-type]
    recorder.intervals += [Interval((0, name), 0, each * 10**6, 1) for name, all_ in times.items() for each in all_]
    assert _medians([recorder]) == {(0, "twice"): 7.0}


def test_a_cleared_profile_counts_only_the_runs_that_follow(bundle_of: Write) -> None:
    with load(bundle_of(two_kernels()), profile=True) as session:
        for _ in range(3):
            session.run({"x": X})
        session.clear_profile()
        assert {r.status for r in session.profile().records} == {"NOT_RUN"}
        session.run({"x": X})
        profile = session.profile()
    assert profile.runs == 1
    assert [r.calls for r in profile.of("kernel")] == [1.0, 1.0, 1.0]


def test_a_session_that_does_not_profile_says_so_and_has_no_hooks(bundle_of: Write) -> None:
    with load(bundle_of(two_kernels())) as session:
        with pytest.raises(UsageError, match="does not profile"):
            session.profile()
        assert not session._alive().pool.recorders


def test_a_traced_run_gives_every_value_between_partitions(bundle_of: Write) -> None:
    with load(bundle_of(standin.chain(4))) as session:
        traced = session.run_traced({"x": X})
        assert list(traced) == ["x", "v0", "v1", "v2", "v3"]
        for number, value in enumerate(traced.values()):
            np.testing.assert_array_equal(value, X + number)
        np.testing.assert_array_equal(session.run({"x": X})["v3"], X + 4)


def test_kernels_can_be_watched_in_run_order(bundle_of: Write) -> None:
    seen: list[KernelTrace] = []
    with load(bundle_of(two_kernels())) as session:
        session.trace_kernels({"x": X}, seen.append)
    assert [(t.partition, t.symbol) for t in seen] == [(0, "first"), (0, "second"), (1, "third")]
    np.testing.assert_array_equal(seen[0].outputs[0], X + 1)
    np.testing.assert_array_equal(seen[1].outputs[0], (X + 1) ** 2)
    assert seen[0].kernel is not None
    assert seen[0].kernel.nodes == ("node_first",)


def test_one_partition_can_be_watched_by_name_or_number(bundle_of: Write) -> None:
    with load(bundle_of(two_kernels())) as session:
        for chosen in ("p1", 1):
            seen: list[KernelTrace] = []
            session.trace_kernels({"x": X}, seen.append, chosen)
            assert [t.symbol for t in seen] == ["third"]
        with pytest.raises(UsageError, match="the variant has no partition 'p9'"):
            session.trace_kernels({"x": X}, seen.append, "p9")


def test_an_error_in_a_callback_reaches_the_caller(bundle_of: Write) -> None:
    def fail(_: KernelTrace) -> None:
        raise KeyError("of the caller")

    with load(bundle_of(two_kernels())) as session, pytest.raises(KeyError, match="of the caller"):
        session.trace_kernels({"x": X}, fail)

"""Traces of the runs of a profile."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterocc.runtime import load
from heterocc.runtime.cli.main import run_command
from heterocc.runtime.profile import recorder
from heterocc.runtime.profile.timeline import chrome_trace
from tests.perfetto import lost, opened_trace, rows
from tests.runtime.profile.test_profile import X, two_kernels

Write = Callable[..., Path]


def complete(trace: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["cat"] == kind]


def test_a_trace_has_every_run_and_kernels_lie_within_their_partition(bundle_of: Write, tmp_path: Path) -> None:
    bundle, path = bundle_of(two_kernels()), tmp_path / "trace.json"
    assert run_command(["bench", str(bundle), "-n", "1", "--profile", "--trace", str(path)]) == 0
    trace = json.loads(path.read_text())
    partitions, kernels = complete(trace, "partition"), complete(trace, "kernel")
    assert [p["name"] for p in partitions] == ["p0", "p1"] * 5
    assert [k["name"] for k in kernels] == ["node_first", "node_second", "node_third"] * 5
    for kernel in kernels:
        (around,) = [p for p in partitions if p["ts"] <= kernel["ts"] and end(kernel) <= end(p)]
        assert around["name"] == kernel["args"]["partition"]
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"]
    assert names == ["CPU", "calling thread 1"]


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
def test_perfetto_reads_every_kernel_within_its_partition(bundle_of: Write, browser: Any, tmp_path: Path) -> None:
    bundle, path = bundle_of(two_kernels()), tmp_path / "trace.json"
    assert run_command(["bench", str(bundle), "-n", "1", "--profile", "--trace", str(path)]) == 0
    with opened_trace(browser, path) as page:
        kernels = rows(
            page,
            """
            select kernel.name as kernel, partition.name as partition, process.name as device, thread.name as thread
            from slice kernel join slice partition on partition.id = kernel.parent_id
            join thread_track on thread_track.id = kernel.track_id join thread using (utid) join process using (upid)
            where kernel.category = 'kernel' and partition.category = 'partition' order by kernel.ts
            """,
        )
        assert lost(page) == []
    one_run = [("node_first", "p0"), ("node_second", "p0"), ("node_third", "p1")]
    assert kernels == [(*names, "CPU", "calling thread 1") for names in one_run] * 5


def end(event: dict[str, Any]) -> float:
    return float(event["ts"] + event["dur"])


def test_a_trace_needs_a_profile_and_a_place(
    bundle_of: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = str(bundle_of(two_kernels()))
    assert run_command(["bench", bundle, "-n", "1", "--trace", str(tmp_path / "t.json")]) == 2
    assert "--trace shows the profile, which was not asked for" in capsys.readouterr().err
    assert run_command(["run", bundle, "--profile", "--trace", str(tmp_path / "absent" / "t.json")]) == 1
    assert "there is no folder" in capsys.readouterr().err
    assert run_command(["run", bundle, "--profile", "--trace", str(tmp_path / "t.json")]) == 0
    assert len(complete(json.loads((tmp_path / "t.json").read_text()), "partition")) == 2


def test_a_session_keeps_a_limited_number_of_events(bundle_of: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "MOST_INTERVALS", 7)
    with load(bundle_of(two_kernels()), profile=True) as session:
        for _ in range(10):
            np.testing.assert_array_equal(session.run({"x": X})["z"], (X + 1) ** 2 + X)
        assert len(session.profile().events) == 7 and session.profile().runs == 10
        session.clear_profile()
        assert chrome_trace(session.profile()) == {"traceEvents": [], "displayTimeUnit": "ms"}

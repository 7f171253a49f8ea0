"""The policy `measured`: plans are compiled and timed, and the fastest is kept."""

from __future__ import annotations

import errno
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from heterocc.artifacts.errors import UnsupportedOpError, UsageError
from heterocc.compiler import compile_model, explain_bundle, explain_model, partition_model
from heterocc.compiler.cli.main import app
from heterocc.compiler.pipeline.repair import VariantBuilder
from heterocc.compiler.pipeline.timing.measuring import Measurer
from heterocc.compiler.pipeline.timing.timed_runs import TimedRuns
from heterocc.compiler.pipeline.timing.turns import HOPELESS, JUDGED, LEAST, runs_in_turns, undisturbed
from heterocc.runtime import load
from tests.compiler.small import conv_net


@pytest.mark.opencl
def test_the_fastest_of_the_timed_plans_is_kept_and_the_note_has_the_times_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterocc.compiler.pipeline.timing.timed_runs.BUDGET", 0.02)
    model, bundle = conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb"
    report = compile_model(model, bundle, devices="OPENCL,CPU", policy="measured", affinity={"conv1": "CPU"})
    timed = [plan for _, plan in report.timed if plan.seconds is not None]
    (kept,) = [plan for plan in timed if plan.kept]
    assert len(timed) >= 2 and kept.seconds == min(plan.seconds or 0.0 for plan in timed)
    assert {n for plan in timed for n in (plan.name, *plan.also)} == {"greedy", "merge", "optimal", "CPU alone"}
    (alone,) = [plan for _, plan in report.timed if plan.why_not is not None]
    assert alone.name == "OPENCL alone" and alone.why_not == "Conv 'conv1' is pinned to CPU"
    (note,) = [n for n in report.notes if n.startswith("policy measured: ")]
    assert f"{kept.text()}" in note and "(kept)" in note
    with load(bundle) as session:
        assert session.run({"x": np.ones((1, 4, 8, 8), np.float32)})["y"].shape == (1, 5)
    found = explain_bundle(bundle)
    assert found.policy == "measured" and dict(found.measured)[kept.name] == kept.seconds
    assert found.others[0].chosen and found.others[0].measured == kept.seconds
    free = found.named("fc")[0]
    assert free.why == "measured" and f"'{kept.name}' was kept" in free.sentence


def test_a_single_plan_is_kept_without_timing(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["compile", str(conv_net(tmp_path / "m.onnx")), "-o", str(tmp_path / "m.hcb"), "-d", "CPU",
              "--policy", "measured", "--json"]
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    same = ["merge", "greedy", "CPU alone"]
    only = {"variant": "main", "plan": "optimal", "also": same, "p10_us": None, "each_us": [], "kept": True,
            "where": "", "why_not": None}  # fmt: skip
    assert report["measured"] == [only]
    assert report["notes"] == ["policy measured: optimal = merge = greedy = CPU alone (kept)"]


def test_onnx_runtime_is_timed_alone_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterocc.compiler.pipeline.timing.timed_runs.BUDGET", 0.02)
    report = compile_model(conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb", devices="CPU,ORT", policy="measured")
    times = {plan.name: plan.seconds for _, plan in report.timed}
    assert times.keys() == {"optimal", "ORT alone"} and None not in times.values()


@pytest.mark.parametrize("checked", [False, True], ids=["in the check", "in the timing"])
def test_a_machine_that_loads_no_code_is_a_warning_and_decides_no_later_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setenv("HETEROCC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HETEROCC_CALIBRATION")
    model, bundle = conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb"
    if checked:  # the check of the next compile finds this one's
        compile_model(model, bundle, measure=False)
    with monkeypatch.context() as denied:
        denied.setattr(os, "memfd_create", refuse)
        report = compile_model(model, bundle)
    (warning,) = report.warnings
    assert warning.startswith("this machine loads no compiled code") and "allow the system call" in warning
    later = compile_model(model, bundle)
    assert not later.warnings and not any(plan.why_not for _, plan in later.timed)


def test_a_device_that_is_not_here_is_not_measured(tmp_path: Path) -> None:
    (tmp_path / "like.toml").write_text('name = "LIKE"\nbackend = "opencl"\nflops = 1.0\n')
    report = compile_model(
        conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb", devices="LIKE,CPU", device_files=tmp_path / "like.toml",
        policy="measured", check=False,
    )  # fmt: skip
    assert (
        "variant main is not measured: LIKE is not on this machine; its plan is that of policy optimal" in report.notes
    )
    assert set(report.plan.device_of.values()) == {"CPU"}


def test_a_plan_that_cannot_be_built_is_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = VariantBuilder.build

    def fails_when_optimal(self: VariantBuilder, spec: Any, plan: Any, *rest: Any) -> Any:
        if any(p.name == "mincut" for p in rest[-1] or ()):
            raise UnsupportedOpError("it does not build")
        return build(self, spec, plan, *rest)

    monkeypatch.setattr(VariantBuilder, "build", fails_when_optimal)
    report = compile_model(
        conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb", devices="CPU", policy="measured", check=False
    )
    (note,) = [n for n in report.notes if n.startswith("policy measured: ")]
    assert note == "policy measured: merge = greedy = CPU alone (kept), optimal not possible (it does not build)"


def test_only_a_whole_compile_measures(tmp_path: Path) -> None:
    model = conv_net(tmp_path / "m.onnx")
    for call in (partition_model, explain_model):
        with pytest.raises(UsageError, match="only a whole compile does"):
            call(model, devices="CPU", policy="measured")
    with pytest.raises(UsageError, match="only a whole compile does"):
        compile_model(model, tmp_path / "m.hcb", devices="CPU", policy="measured", stop_after="partition")
    with pytest.raises(UsageError, match="there is no policy 'fastest'") as caught:
        compile_model(model, tmp_path / "m.hcb", devices="CPU", policy="fastest")
    assert "greedy, merge, optimal, measured" in str(caught.value.hint)


def test_times_are_those_of_runs_in_turns_after_the_first_of_each_turn() -> None:
    now = [0.0]
    calls: list[str] = []

    def lasts(name: str, seconds: float, first: float = 0.0) -> Callable[[], None]:
        def run() -> None:
            after_another = bool(calls) and calls[-1] != name
            calls.append(name)
            now[0] += seconds + (first if after_another else 0.0)

        return run

    runs = {"slow": lasts("slow", 0.1), "fast": lasts("fast", 0.001, first=0.5)}
    found = runs_in_turns(runs, 0.5, lambda: now[0])
    assert found["slow"] == pytest.approx([0.1] * LEAST)
    assert max(found["fast"]) == pytest.approx(0.001)  # the run after another's is not counted
    turns = [(name, len(list(group))) for name, group in itertools.groupby(calls)]
    assert turns[:2] == [("slow", 2), ("fast", 11)]
    assert len([t for t in turns if t[0] == "slow"]) == LEAST
    assert runs_in_turns({}, 0.5) == {}


def test_within_a_limit_hopeless_plans_have_few_turns_and_the_rest_end_in_time() -> None:
    now = [0.0]

    def lasting(seconds: float) -> Callable[[], None]:
        def run() -> None:
            now[0] += seconds

        return run

    runs = {"near": lasting(0.0011), "fast": lasting(0.001), "hopeless": lasting(0.001 * HOPELESS)}
    found = runs_in_turns(runs, 0.5, lambda: now[0], limit=1.0)
    assert sum(found["hopeless"]) < JUDGED * 0.013 and len(found["near"]) > 2 * len(found["hopeless"])
    assert now[0] < 1.1
    now[0] = 0.0
    runs_in_turns({"fast": runs["fast"], "hopeless": runs["hopeless"]}, 0.5, lambda: now[0], limit=1.0)
    assert now[0] < 0.1  # nothing is left to decide
    now[0] = 0.0
    slow = runs_in_turns({"a": lasting(2.0), "b": lasting(2.1)}, 0.5, lambda: now[0], limit=1.0)
    assert {name: len(times) for name, times in slow.items()} == {"a": 1, "b": 1}


@pytest.mark.parametrize(("second", "turns"), [(0.11, 4), (0.13, 2)])
def test_close_plans_have_more_turns_than_the_limit_and_long_runs_are_all_counted(second: float, turns: int) -> None:
    now = [0.0]

    def lasting(seconds: float) -> Callable[[], None]:
        def run() -> None:
            now[0] += seconds

        return run

    found = runs_in_turns({"a": lasting(0.1), "b": lasting(second)}, 2.0, lambda: now[0], limit=0.5)
    assert len(found["a"]) == turns and len(found["b"]) in (turns - 1, turns)


@pytest.mark.parametrize(("least", "threads"), [(0.0, [1, 4]), (2.0, [1])])
def test_a_default_compile_times_plans_on_one_thread_only_if_other_processes_keep_the_cores_busy(
    timing: Path, monkeypatch: pytest.MonkeyPatch, least: float, threads: list[int]
) -> None:
    on_threads, calls = TimedRuns._on_threads, []

    def seen(self: TimedRuns, paths: Any, number: int | None) -> Any:
        calls.append(number)
        return on_threads(self, paths, number)

    monkeypatch.setattr(TimedRuns, "_on_threads", seen)
    monkeypatch.setattr("heterocc.compiler.pipeline.timing.timed_runs.ALONE", least)
    monkeypatch.setattr("heterocc.compiler.pipeline.timing.timed_runs.available_cores", lambda: 4)
    report = compile_model(save_dynamic(timing / "m.onnx"), timing / "m.hcb")
    assert calls == threads
    (note,) = [n for n in report.notes if n.startswith("timed")]
    assert (" on one thread, as other processes keep the cores busy: " in note) == (threads == [1])


@pytest.fixture
def timing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh cache, in which default compiles time plans."""
    monkeypatch.delenv("HETEROCC_CALIBRATION")
    monkeypatch.setenv("HETEROCC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("heterocc.compiler.pipeline.timing.timed_runs.LIMIT", 0.1)
    monkeypatch.setattr("heterocc.compiler.pipeline.timing.timed_runs.ALONE", 0.0)
    return tmp_path


def save_dynamic(path: Path) -> Path:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("ReduceSum", ["r"], ["y"], name="sum", keepdims=1),
    ]
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1])]  # fmt: skip
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:])), path)
    return path


@pytest.mark.parametrize(("ort", "kept"), [(0.97e-6, "merge"), (0.9e-6, "ORT alone")])
def test_onnx_runtime_is_kept_if_it_is_faster_by_more_than_the_noise(
    timing: Path, monkeypatch: pytest.MonkeyPatch, ort: float, kept: str
) -> None:
    monkeypatch.setattr(TimedRuns, "times", lambda *_: {"merge": (1e-6,), "ORT alone": (ort,)})
    report = compile_model(save_dynamic(timing / "m.onnx"), timing / "m.hcb")
    assert [plan.name for _, plan in report.timed if plan.kept] == [kept]
    found = explain_bundle(timing / "m.hcb")
    assert found.others[0].measured == {"merge": 1e-6, "ORT alone": ort}[kept]
    assert f"'{kept}' was kept" in found.nodes[0].sentence


@pytest.mark.parametrize("fastest", ["merge", "ORT alone"])
def test_a_default_compile_keeps_the_fastest_of_our_code_and_onnx_runtime_and_says_so(
    timing: Path, monkeypatch: pytest.MonkeyPatch, fastest: str
) -> None:
    def stated(self: TimedRuns, variants: Any) -> dict[str, tuple[float, ...]]:
        calls.append(list(variants))
        return {name: (1e-6,) if name == fastest else (3e-6,) for name in variants}

    calls: list[list[str]] = []
    monkeypatch.setattr(TimedRuns, "times", stated)
    model, bundle = save_dynamic(timing / "m.onnx"), timing / "m.hcb"
    report = compile_model(model, bundle)
    assert calls == [["merge", "ORT alone"]]
    device = "ORT" if fastest == "ORT alone" else "CPU"
    assert set(report.plan.device_of.values()) == {device}
    (note,) = [n for n in report.notes if n.startswith("timed")]
    assert note.startswith("timed at n=") and "merge = CPU alone " in note and note.count("(kept)") == 1
    found = explain_bundle(bundle)
    assert found.policy == "measured" and found.nodes[0].why == "measured"
    assert {other.name: other.measured for other in found.others}["ORT alone"] is not None
    first = bundle.read_bytes()
    again = compile_model(model, bundle)  # it is in the cache
    assert len(calls) == 1 and again.plan.partitions == report.plan.partitions and bundle.read_bytes() == first
    (note,) = [n for n in again.notes if n.startswith("timed")]
    assert " by an earlier compile: " in note


def test_a_default_compile_times_real_runs(timing: Path) -> None:
    report = compile_model(save_dynamic(timing / "m.onnx"), timing / "m.hcb")
    times = {plan.name: plan.seconds for _, plan in report.timed}
    assert times.keys() == {"merge", "ORT alone"} and None not in times.values()
    with load(timing / "m.hcb") as session:
        x = np.arange(24, dtype=np.float32).reshape(3, 8)
        np.testing.assert_allclose(session.run({"x": x})["y"], [[x.sum()]])


def test_nothing_is_timed_where_the_user_decides_or_the_machine_cannot_tell(
    timing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, bundle = save_dynamic(timing / "m.onnx"), timing / "m.hcb"
    monkeypatch.setattr(Measurer, "choose", None)
    for options in (
        {"measure": False},
        {"devices": "CPU"},
        {"policy": "optimal"},
        {"passes": "greedy"},
        {"cpu_targets": "x86-64-v2"},
    ):
        assert compile_model(model, bundle, **options).timed == (), options  # type: ignore[arg-type]
    monkeypatch.setenv("HETEROCC_CACHE", "off")
    assert compile_model(model, bundle).timed == ()


def test_a_plan_is_judged_by_runs_that_nothing_disturbed() -> None:
    assert undisturbed([9.0, 8.0, 7.0, 1.0, 9.0]) == 1.0
    assert undisturbed([0.1, *[2.0] * 18, 1.5]) == 2.0  # not by a single lucky run of many
    assert undisturbed([*[2.0] * 16, *[1.0] * 4]) == 1.0


@pytest.mark.opencl
def test_dynamic_dimensions_are_timed_at_the_sizes_of_the_inputs_and_other_shapes_on_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterocc.compiler.pipeline.timing.timed_runs.BUDGET", 0.02)
    node = helper.make_node("Relu", ["x"], ["y"], name="relu")
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 8]) for n in "xy"]
    model, bundle = tmp_path / "m.onnx", tmp_path / "m.hcb"
    onnx.save(helper.make_model(helper.make_graph([node], "g", ends[:1], ends[1:])), model)
    report = compile_model(model, bundle, devices="OPENCL,CPU", policy="measured", hints={"batch": (2,)})
    notes = [n for n in report.notes if n.startswith("policy measured")]
    assert len(notes) == 2 and notes[1].startswith("policy measured for variant main@any at batch="), report.notes
    for variant in ("main", "main@any"):
        timed = [plan for name, plan in report.timed if name == variant]
        assert len(timed) == 2 and all(plan.seconds is not None for plan in timed)
        (kept,) = [plan for plan in timed if plan.kept]
        assert kept.seconds == min(plan.seconds or 0.0 for plan in timed)
    with load(bundle) as session:
        for batch in (2, 5):
            assert session.run({"x": np.ones((batch, 8), np.float32)})["y"].shape == (batch, 8)

"""The pipeline shows its work: dumps, limits, timings, reproducers."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from heterocc.artifacts.errors import (
    FileMissingError,
    InputError,
    OutputFileError,
    PassError,
    UnsupportedOpError,
    UsageError,
)
from heterocc.compiler.placement.run_passes import STAGES, Trace, parse_stage, require_placed, rerun, run_pipeline
from heterocc.passes import base
from heterocc.passes.base import parse_pipeline, policy_pipeline
from heterocc.passes.cost import Machine, PlacementDevice
from heterocc.passes.graph import Graph, Node, Value
from heterocc.passes.merge import Merge
from heterocc.passes.plan import Plan
from heterocc.passes.show.printer import print_plan
from heterocc.passes.show.serialize import write_reproducer
from heterocc.passes.spec import SpecPass
from tests.passes.plan_text import parse_plan


def start(refusals: dict[str, dict[str, str]] | None = None) -> Plan:
    names = ["x", "v0", "v1", "v2"]
    nodes = tuple(Node(f"n{i}", "Relu", (names[i],), (names[i + 1],)) for i in range(3))
    graph = Graph("m", nodes, {v: Value(v, "float32", (4,)) for v in names}, ("x",), ("v2",))
    machine = Machine(
        (PlacementDevice("GPU", "opencl"), PlacementDevice("CPU")), refusals or {"GPU": {"n1": "no kernel"}}
    )
    return Plan.initial(graph, machine)


@dataclass(frozen=True, slots=True, repr=False)
class Crash(SpecPass):
    """Fails on any plan."""

    code: int = 7
    name: ClassVar[str] = "crash"

    def run(self, plan: Plan) -> Plan:
        raise ZeroDivisionError(f"division {self.code} by zero")


@pytest.fixture
def with_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "PASSES", {**base.PASSES, "crash": Crash})


def test_the_default_pipeline_places_everything() -> None:
    plan = run_pipeline(start(), policy_pipeline("merge"))
    assert [p.device for p in plan.partitions] == ["GPU", "CPU", "GPU"]


def test_every_pass_leaves_a_dump_that_reads_back(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "for it"
    plan = run_pipeline(start(), policy_pipeline("merge"), Trace(folder))
    assert sorted(f.name for f in folder.iterdir()) == ["00-greedy.plan", "01-manual.plan", "02-merge.plan"]
    text = (folder / "02-merge.plan").read_text()
    assert text == print_plan(plan)
    assert parse_plan(text, plan.graph, plan.machine) == plan


def test_dumps_of_variants_lie_side_by_side(tmp_path: Path) -> None:
    trace = Trace(tmp_path)
    run_pipeline(start(), policy_pipeline("greedy"), trace)
    run_pipeline(start({}), parse_pipeline("greedy"), trace, variant="cpu")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["00-greedy.plan", "01-manual.plan", "cpu-00-greedy.plan"]


def test_without_a_dump_directory_nothing_is_written_or_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    trace = Trace()
    run_pipeline(start(), policy_pipeline("merge"), trace)
    assert trace.dump("a", "b") is None
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_a_dump_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputFileError, match="cannot create the directory"):
        run_pipeline(start(), policy_pipeline("merge"), Trace(tmp_path / "file" / "dumps"))


@pytest.mark.parametrize(("limit", "dumps"), [(0, 0), (1, 1), (2, 2), (3, 3), (9, 3)])
def test_the_pass_limit_stops_after_so_many_passes(tmp_path: Path, limit: int, dumps: int) -> None:
    trace = Trace(tmp_path, pass_limit=limit)
    plan = run_pipeline(start(), policy_pipeline("merge"), trace)
    assert len(list(tmp_path.iterdir())) == len(trace.timings) == dumps
    assert ("?" in plan.device_of.values()) == (limit == 0)


def test_a_negative_pass_limit_is_refused() -> None:
    with pytest.raises(UsageError, match="number of passes is negative"):
        Trace(pass_limit=-1)


def test_every_pass_is_timed() -> None:
    trace = Trace()
    run_pipeline(start(), policy_pipeline("merge"), trace)
    assert [name for name, _ in trace.timings] == ["greedy", "manual", "merge"]
    assert all(seconds > 0 for _, seconds in trace.timings)


def test_a_pipeline_that_places_nothing_is_an_error() -> None:
    with pytest.raises(UsageError, match="no pass assigned a device to Relu 'n0' and 2 more"):
        run_pipeline(start(), parse_pipeline("manual,merge"))
    with pytest.raises(UsageError):
        require_placed(start())


def test_errors_of_the_users_input_go_through_and_leave_nothing(tmp_path: Path) -> None:
    refused = {"GPU": {"n1": "no"}, "CPU": {"n1": "no"}}
    with pytest.raises(UnsupportedOpError):
        run_pipeline(start(refused), policy_pipeline("merge"), Trace(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("with_crash")
def test_a_crash_leaves_a_reproducer_that_crashes_again(tmp_path: Path) -> None:
    passes = parse_pipeline("greedy,crash{code=3}")
    with pytest.raises(PassError, match="pass 'crash' failed: ZeroDivisionError: division 3 by zero") as caught:
        run_pipeline(start(), passes, Trace(tmp_path))
    path = tmp_path / "01-crash.repro.plan"
    assert caught.value.hint is not None
    assert str(path) in caught.value.hint
    assert path.read_text().startswith("# heterocc reproducer: the input of pass crash{code=3}\nplan m: 3 nodes")
    with pytest.raises(ZeroDivisionError, match="division 3 by zero"):
        rerun(path)


@pytest.mark.usefixtures("with_crash")
def test_without_a_dump_directory_the_reproducer_is_in_a_fresh_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(PassError) as caught:
        run_pipeline(start(), parse_pipeline("crash"))
    (path,) = tmp_path.glob("heterocc-*/00-crash.repro.plan")
    assert str(path) in str(caught.value)


@pytest.mark.usefixtures("with_crash")
def test_a_crash_is_reported_even_if_its_reproducer_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PassError, match="pass 'crash' failed") as caught:
        run_pipeline(start(), parse_pipeline("crash"), Trace(tmp_path / "file"))
    assert "its reproducer could not be written" in str(caught.value)


def test_a_reproducer_runs_its_pass_again(tmp_path: Path) -> None:
    before = run_pipeline(start(), parse_pipeline("greedy"))
    path = tmp_path / "a.repro.plan"
    path.write_text(write_reproducer(before, "merge{max-nodes=1}"))
    assert rerun(path) == Merge(max_nodes=1).run(before)


def test_a_reproducer_runs_from_the_command_line(tmp_path: Path) -> None:
    before = run_pipeline(start(), parse_pipeline("greedy"))
    path = tmp_path / "a.repro.plan"
    path.write_text(write_reproducer(before, "merge"))
    command = [sys.executable, "-m", "heterocc.compiler.placement.run_passes", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=dict(os.environ), check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout == print_plan(Merge().run(before))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plan m: 3 nodes\n",
        "x\n# data\nnot json\n",
        "x\n# data\n[]\n",
        'x\n# data\n{"pass": "merge"}\n',
        'x\n# data\n{"pass": "merge", "plan": {"format": 99}}\n',
    ],
)
def test_a_file_that_is_no_reproducer_is_an_input_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.repro.plan"
    path.write_text(text)
    with pytest.raises(InputError, match="the file is not a reproducer"):
        rerun(path)


def test_a_reproducer_that_is_missing_or_binary_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(FileMissingError):
        rerun(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not text"):
        rerun(tmp_path / "binary")


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_can_be_named(stage: str) -> None:
    assert parse_stage(stage) == stage


def test_stages_are_those_of_a_compile() -> None:
    assert STAGES == ("import", "partition", "lower", "pack")
    with pytest.raises(UsageError, match="there is no stage 'link'") as caught:
        parse_stage("link")
    assert caught.value.hint == "stages: import, partition, lower, pack"

"""Progress: plain lines without a terminal, counts of finished steps, no output for quick work."""

import re
import threading
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from heterocc.compiler import CompileOptions, compile_model
from heterocc.compiler.api.progress import Progress, Reporter
from heterocc.compiler.cli import progress
from heterocc.compiler.cli.main import app
from heterocc.compiler.cli.progress import Lines, Stage
from tests.compiler.small import conv_net


class Recorder(Reporter):
    """Keeps the stages and how far each phase of theirs came."""

    def __init__(self) -> None:
        super().__init__()
        self.phases: list[tuple[str, int, int | None]] = []

    def stage(self, title: str, total: int | None = None) -> "Recorded":  # type: ignore[override]
        return Recorded(self, title, total)


class Recorded(Stage):
    def __init__(self, owner: Recorder, title: str, total: int | None) -> None:
        super().__init__(title, total)
        self._owner = owner

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def phase(self, text: str, total: int | None = None) -> None:
        self._end()
        super().phase(text, total)

    def _end(self) -> None:
        self._owner.phases.append((self.text, self.done, self.total))


def lines_of(monkeypatch: pytest.MonkeyPatch, *arguments: object, seconds: float = 0.02) -> list[str]:
    monkeypatch.setattr(progress, "LINE_SECONDS", seconds)
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code == 0, done.output
    assert not re.search(r"… \d+ s$", done.stdout, re.MULTILINE)  # standard output has only results
    return [line for line in done.stderr.splitlines() if not line.startswith(("note:", "warning:"))]


def test_off_a_terminal_long_work_writes_plain_lines_with_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HETEROCC_CACHE", str(tmp_path / "cache"))  # code from the cache is not generated
    model = conv_net(tmp_path / "m.onnx")
    lines = lines_of(monkeypatch, "compile", model, "-d", "CPU", "-o", tmp_path / "m.hcb")
    assert lines and all(re.fullmatch(r"[^\x1b]+ … \d+ s", line) for line in lines), lines
    assert any(line.startswith("lowering p0 for CPU (8 nodes): ") for line in lines)


def test_quick_work_and_quiet_work_write_no_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = conv_net(tmp_path / "m.onnx")
    assert lines_of(monkeypatch, "partition", model, "-d", "CPU", seconds=60) == []
    assert lines_of(monkeypatch, "partition", model, "-d", "CPU", "--quiet") == []


def test_a_stage_without_progress_still_writes_lines_and_ends_its_thread(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.01)
    with Lines(Console(stderr=True)).stage("checking", None) as stage:
        stage.begin("p0 on GPU")
        threading.Event().wait(0.1)
    assert "checking p0 on GPU … 0 s\n" in capsys.readouterr().err
    assert not [t for t in threading.enumerate() if t.name == "heterocc-progress"]


def test_every_stage_counts_what_is_really_done_and_comes_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HETEROCC_CACHE", str(tmp_path / "cache"))
    recorder = Recorder()
    compile_model(conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb", reporter=recorder, devices="CPU")
    counted = {text: (done, total) for text, done, total in recorder.phases if total is not None}
    assert all(done == total for done, total in counted.values()), counted
    assert counted["lowering p0 for CPU (8 nodes): importing nodes"] == (8, 8)
    assert counted["lowering p0 for CPU (8 nodes): scheduling kernels"][1] > 1
    assert any(text.startswith("querying devices") and done == (8, 8) for text, done in counted.items())
    assert any(text.startswith("packing weights") for text in counted)


@pytest.mark.opencl
def test_partitions_are_checked_by_their_nodes(tmp_path: Path) -> None:
    recorder = Recorder()
    options = CompileOptions(devices=("OPENCL", "CPU"), affinity={"gate": "CPU"}, policy="greedy")
    compile_model(conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb", options, recorder)
    checks = [(done, total) for text, done, total in recorder.phases if text.startswith("checking")]
    assert (8, 8) in checks


def test_a_step_of_tuning_names_the_kernel_and_counting_goes_on() -> None:
    stage = Stage("lowering", None)
    stage.begin("p0 for GPU (67 nodes)")
    stage.phase("scheduling kernels", 28)
    stage.step()
    stage.item("timing conv1")
    assert stage.text == "lowering p0 for GPU (67 nodes): scheduling kernels: timing conv1" and stage.count == "1/28"

"""What `--help` shows, and what a shell completes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from heterocc.compiler.cli import completion
from heterocc.compiler.cli.main import app

COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def help_of(*words: str) -> str:
    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"})
    assert done.exit_code == 0
    return done.output


def completed(folder: Path, *words: str) -> list[str]:
    """What bash would offer for the last of the words after `heterocc`."""
    environment = {
        **os.environ,
        "_HETEROCC_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["heterocc", *words]),
        "COMP_CWORD": str(len(words)),
    }
    code = "import sys; sys.argv = ['heterocc']; from heterocc.compiler.cli.main import app; app(prog_name='heterocc')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_every_command_ends_with_two_examples(command: str) -> None:
    lines = [line.strip() for line in help_of(command).splitlines() if line.strip()]
    examples = lines[lines.index("Examples:") + 1 :]
    assert len(examples) >= 2 and all(line.startswith(f"heterocc {command}") for line in examples)


def test_the_options_of_compile_are_in_groups_and_those_that_most_people_need_come_first() -> None:
    text = help_of("compile")
    groups = re.findall(r"^╭─ (.*?) ─", text, re.MULTILINE)
    assert groups == [
        "Arguments", "Options", "Sizes", "Devices", "Placement", "Checks and measurements",
        "What else is printed or written",
    ]  # fmt: skip
    first = text.split("╭─ Options ")[1].split("╭─ ")[0]
    assert re.findall(r"^│ +(--[a-z-]+)", first, re.MULTILINE)[:5] == [
        "--output", "--devices", "--dim", "--hint", "--report",
    ]  # fmt: skip


def test_a_shell_completes_policies_device_lists_and_files_of_the_right_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("net.onnx", "net.hcb", "notes.txt", ".hidden.onnx"):
        (tmp_path / name).touch()
    (tmp_path / "only" / "deep").mkdir(parents=True)
    (tmp_path / "only" / "deep" / "far.onnx").touch()
    monkeypatch.chdir(tmp_path)
    models = completion.files(".onnx")
    assert models("n") == ["net.onnx"] and models("o") == ["only/deep/far.onnx"]
    assert completion.files(".hcb")("n") == ["net.hcb"]
    assert completion.policies("m") == ["merge", "measured"]
    assert completion.objectives("t") == ["throughput", "transfers"]
    assert completion.stages("l") == ["lower"]
    assert completion.devices("GPU,O") == ["GPU,OPENCL", "GPU,ORT"]
    assert completion.devices("AUTO:C") == ["AUTO:CPU", "AUTO:CUDA"]
    assert completion.peers("o") == ["onnxruntime", "openvino", "only/deep/far.onnx"]
    assert completion.peers("net.onnx,openvino,o") == ["net.onnx,openvino,onnxruntime"]
    # What bash asks for reaches them.
    assert completed(tmp_path, "compile", "net.onnx", "-d", "GPU,O") == ["GPU,OPENCL", "GPU,ORT"]
    assert completed(tmp_path, "bench", "net.onnx", "--against", "ope") == ["openvino"]
    assert completed(tmp_path, "bench", "net.onnx", "--hint", "l") == ["latency"]

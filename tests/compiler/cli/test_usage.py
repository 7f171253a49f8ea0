"""Usage errors of the command line, as typer finds them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heterocc.compiler.cli.main import app


@pytest.mark.parametrize(
    ("arguments", "words", "where"),
    [
        (["compile"], "missing argument 'model'", "heterocc compile"),
        (["compile", "m.onnx", "--devcies", "CPU"], "--devcies", "heterocc compile"),
        (["compile", "m.onnx", "--pass-limit", "x"], "--pass-limit': it must be a valid integer", "heterocc compile"),
        (["compile", "m.onnx", "--seed", "-1"], "--seed': it must be greater than or equal to 0", "heterocc compile"),
        (["compile", "m.onnx", "n.onnx"], "n.onnx", "heterocc compile"),
        (["bench", "m.hcb", "--devices"], "requires an argument", "heterocc bench"),
        (["devices", "--all"], "--all", "heterocc devices"),
        (["complie", "m.onnx"], "'complie'", "heterocc"),
    ],
)
def test_a_usage_error_is_one_of_ours_and_comes_as_json_if_that_is_asked(
    arguments: list[str], words: str, where: str
) -> None:
    plain = CliRunner().invoke(app, arguments)
    assert plain.exit_code == 2 and plain.stdout == "" and words in plain.stderr
    assert plain.stderr.startswith("error[HC120]: ") and "hint: " in plain.stderr
    # Before an option that lacks its value, which would take it for that.
    asked = CliRunner().invoke(app, [arguments[0], "--json", *arguments[1:]])
    assert asked.exit_code == 2
    error = json.loads(asked.stdout)["error"]
    assert error["code"] == "HC120" and words in error["message"] and error["where"] == where
    assert f"`{where} --help`" in error["hint"]


def test_a_process_with_a_usage_error_writes_json_on_standard_output_and_exits_with_2() -> None:
    command = [sys.executable, "-m", "heterocc.compiler.cli", "compile", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and json.loads(done.stdout)["error"]["code"] == "HC120"
    assert "Traceback" not in done.stderr


def test_json_after_two_dashes_is_an_argument() -> None:
    done = CliRunner().invoke(app, ["compile", "m.onnx", "--", "--json"])
    assert done.exit_code == 2 and done.stdout == ""


@pytest.mark.parametrize("command", ["compile", "run", "check"])
def test_a_file_that_may_not_be_read_is_a_matter_of_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    path = tmp_path / "m"
    path.touch()
    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # the superuser may read any file
    done = CliRunner().invoke(app, [command, str(path)])
    assert done.exit_code == 2
    assert "is not readable" in done.stderr and "hint: give your user the permission to read it" in done.stderr


def test_the_command_alone_prints_its_help() -> None:
    done = CliRunner().invoke(app, [])
    assert "Usage: heterocc" in done.output and "error[" not in done.output

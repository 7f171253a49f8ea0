from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heterocc.runtime.cli.main import run_command
from tests.fresh_process import fresh
from tests.runtime import standin


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "m.hcb"
    standin.write_bundle(path, standin.chain(1))
    return path


def test_run_reads_inputs_and_writes_outputs(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from heterocc.runtime import load

    with load(bundle) as session:
        feed = {i.name: np.full([d or 1 for d in i.shape or ()], 0.5, i.dtype) for i in session.inputs}
        expected = session.run(feed)
    np.savez(tmp_path / "in.npz", **feed)  # type: ignore[arg-type]
    given = ["-i", str(tmp_path / "in.npz")]
    assert run_command(["run", str(bundle), *given, "-o", str(tmp_path / "out.npz"), "--profile"]) == 0
    assert f"wrote {tmp_path / 'out.npz'}" in capsys.readouterr().out
    with np.load(tmp_path / "out.npz") as written:
        assert {name: written[name].tolist() for name in written} == {n: v.tolist() for n, v in expected.items()}
    assert run_command(["run", str(bundle), *given, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {name: entry["data"] for name, entry in report["outputs"].items()} == {
        name: value.tolist() for name, value in expected.items()
    }


def test_bench_check_and_inspect_answer_as_text_and_as_json(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(*arguments: str) -> str:
        command, *options = arguments
        assert run_command([command, str(bundle), *options]) == 0
        return capsys.readouterr().out

    assert "p99 ms" in answer("bench", "-n", "2", "--warmup", "0")
    assert json.loads(answer("bench", "-n", "2", "--json", "--profile"))["results"][0]["runs"] == 2
    assert "1 request at a time on CPU" in answer("bench", "-n", "2", "--hint", "latency")
    names, times = answer("bench", "-n", "4", "--csv", "--hint", "throughput", "--requests", "2").splitlines()
    assert names.startswith("name,devices,threads,requests,runs,min_ms") and times.startswith("heterocc,CPU,1,2,4,")
    assert answer("check").startswith("intact: all hashes match")
    assert json.loads(answer("check", "--json"))["runs"] is True
    assert "variant" in answer("inspect", "--members", "--plan", "--kernels")
    assert json.loads(answer("inspect", "--json"))["format"] == "heterocc-bundle"


def test_a_bundle_that_cannot_run_here_gives_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foreign = standin.CPU.model_copy(update={"arch": "riscv64"})
    standin.write_bundle(tmp_path / "m.hcb", replace(standin.chain(1), devices=(foreign,)))
    assert run_command(["check", str(tmp_path / "m.hcb")]) == 1
    assert "the code for CPU is for riscv64" in capsys.readouterr().out
    assert run_command(["run", str(tmp_path / "m.hcb")]) == 1
    assert "error[HC310]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), "HC120", "required: COMMAND"),
        (("play",), "HC120", "invalid choice"),
        (("run",), "HC120", "required: bundle"),
        (("run", "m.hcb", "--thread", "1"), "HC120", "unrecognized arguments"),
        (("run", "m.hcb", "-t", "0"), "HC120", "'0' is not an integer of at least 1"),
        (("bench", "m.hcb", "--time", "long"), "HC120", "'long' is not a number of at least 0"),
        (("bench", "m.hcb", "--hint", "speed"), "HC120", "invalid choice: 'speed'"),
        (("bench", "m.hcb", "--csv"), "HC120", "--csv cannot be combined with --json"),
        (("run", "/nonexistent/m.hcb"), "HC101", "m.hcb"),
    ],
)
def test_a_fault_of_the_user_is_an_error_with_a_code(
    arguments: tuple[str, ...], code: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([*arguments, "--json"]) == (2 if code == "HC120" else 1)
    said = capsys.readouterr()
    assert json.loads(said.out)["error"]["code"] == code
    assert f"error[{code}]" in said.err and message in said.err and "Traceback" not in said.err


def test_help_and_version_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in ((["--help"], "inspect"), (["bench", "--help"], "--iterations"), (["--version"], "0.2.0")):
        assert run_command(arguments) == 0
        assert words in capsys.readouterr().out


def test_a_closed_pipe_ends_the_command_quietly(bundle: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "heterocc.runtime.cli.main", "inspect", str(bundle)]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(writer)
    assert done.returncode == 0 and done.stderr == b""


def test_a_full_disk_is_an_error(bundle: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "heterocc.runtime.cli.main", "inspect", str(bundle)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "error[HC111]" in done.stderr


def test_the_command_loads_nothing_but_the_runtime(bundle: Path) -> None:
    program = f"""
import sys
from dataclasses import replace
from heterocc.runtime.cli.main import run_command
assert run_command(["run", {str(bundle)!r}]) == 0
banned = {{"typer", "rich", "pydantic", "onnx", "onnxruntime", "tvm", "click"}} | {{"heterocc.compiler"}}
print("loaded:", sorted(banned & set(sys.modules)))
"""
    assert fresh(program).splitlines()[-1] == "loaded: []"

"""The command as a separate process: full disks, narrow encodings, signals, leftover files."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from heterocc.artifacts.manifest import Manifest
from heterocc.artifacts.reader import open_bundle
from heterocc.artifacts.text.printable import printable, printable_json
from heterocc.compiler import compile_model
from heterocc.compiler.files.programs import kill_all, run_tool
from heterocc.compiler.files.scratch import remove_stale, scratch_folder
from tests.compiler.small import save

COMMAND = (sys.executable, "-m", "heterocc.compiler.cli")
FULL = "/dev/full"


def heterocc(*arguments: object, **options: object) -> "subprocess.CompletedProcess[str]":
    settings: dict[str, object] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.run([*COMMAND, *map(str, arguments)], check=False, timeout=60, **settings)  # type: ignore[call-overload,no-any-return]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    nodes = [helper.make_node("Relu", ["x"], ["größe"], name="n\x1b[31m")]
    model = save(folder / "m.onnx", nodes, {"x": [8]}, {"größe": [8]})
    compile_model(model, folder / "m.hcb", devices="CPU")
    return folder / "m.hcb"


@pytest.mark.skipif(not Path(FULL).is_char_device(), reason="there is no /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [
        ["devices", "--json"],
        ["run"],
        ["--help"],
        *(pytest.param([a], marks=pytest.mark.slow) for a in ("devices", "--version")),
    ],
)
def test_a_full_standard_output_is_an_explained_error(arguments: list[str], bundle: Path) -> None:
    with Path(FULL).open("w") as full:
        done = heterocc(*arguments, *([bundle] if "run" in arguments else []), stdout=full)
    assert done.returncode == 1
    assert done.stderr.startswith("error[HC111]: cannot write to standard output: No space left on device\n")
    assert done.stderr.count("error") == 1 and "bug" not in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", pytest.param("latin-1", marks=pytest.mark.slow)])
def test_output_is_escaped_if_the_encoding_lacks_a_character(encoding: str, bundle: Path) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    shown = heterocc("run", bundle, env=environment, encoding=encoding)
    assert shown.returncode == 0 and ("größe" if encoding == "latin-1" else "gr\\xf6\\xdfe") in shown.stdout
    assert "..." in shown.stdout and not shown.stderr
    data = heterocc("run", bundle, "--json", env=environment, encoding="ascii")
    assert list(json.loads(data.stdout)["outputs"]) == ["größe"]


def test_closed_streams_are_no_error_and_get_into_no_file(bundle: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.npz"
    done = subprocess.run(
        ["bash", "-c", '"$@" <&- >&- 2>&-', "bash", *COMMAND, "run", str(bundle), "-o", str(target)], check=False
    )
    assert done.returncode == 0
    with np.load(target) as archive:
        assert archive.files == ["größe"]


def test_no_command_prints_a_control_character(bundle: Path, tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x9b31m\u202e[red]"
    with open_bundle(bundle) as opened:
        text = opened.manifest.model_dump_json()
    data = json.loads(text)
    data["model"]["name"] = evil
    data["model"]["outputs"][0]["name"] = evil
    data["variants"][0]["notes"] = [evil]
    data["variants"][0]["summary"] = evil
    manifest = Manifest.model_validate_json(json.dumps(data))
    assert manifest.model.name == evil
    script = tmp_path / "show.py"
    script.write_text(
        "import json, sys\n"
        "from pathlib import Path\n"
        "from heterocc.artifacts.manifest import Manifest\n"
        "from heterocc.artifacts.errors import BundleError\n"
        "from heterocc.compiler.cli import console\n"
        "from heterocc.compiler.cli.shared import SCREEN\n"
        "from heterocc.compiler.cli.tables import rich_table\n"
        "from heterocc.runtime.cli import reports as cli_report\n"
        "class Opened:\n"
        "    manifest = Manifest.model_validate_json(Path(sys.argv[1]).read_text())\n"
        "    def text(self, name): return self.manifest.model.name\n"
        "evil = Opened.manifest.model.name\n"
        "cli_report.print_bundle(Opened(), plan=True, members=True, kernels=True)\n"
        "import numpy as np\n"
        "console.out.print(rich_table(cli_report.outputs_table({evil: np.zeros(2), '[/x]': np.array([evil])})))\n"
        "SCREEN.notes([evil, evil], None)\n"
        "console.print_json({evil: evil})\n"
        "reporter = console.ConsoleReporter()\n"
        "reporter.note(evil); reporter.warn(evil)\n"
        "def fail(): raise BundleError(evil, where=evil, hint=evil)\n"
        "console.run(fail)\n"
    )
    (tmp_path / "manifest.json").write_text(json.dumps(data))
    done = subprocess.run(
        [sys.executable, script, tmp_path / "manifest.json"], capture_output=True, text=True, check=False
    )
    assert "owned" in done.stdout and "owned" in done.stderr and "hint:" in done.stderr
    for shown in (done.stdout, done.stderr):
        assert shown.replace("\n", "") == printable(shown).replace("\n", "")
    assert "\\x1b]0;owned\\x07\\x9b31m\\u202e[red]" in done.stdout


def test_what_is_made_printable_is_the_same_json() -> None:
    data = {"a\x1b": ["\x9b", "\u202e", "é", "\x7f", "\n"]}
    text = printable_json(json.dumps(data, ensure_ascii=False))
    assert json.loads(text) == data and printable(text) == text


def left(temporary: Path) -> list[Path]:
    """The temporary files of heterocc, without those of ONNX Runtime and compilers."""
    return list(temporary.glob("heterocc-*"))


def started(bundle: Path, temporary: Path, target: Path) -> "subprocess.Popen[str]":
    """A compile that waits for its linker."""
    linker = temporary.parent / "linker"
    linker.write_text(f"#!/bin/sh\necho $$ > {temporary}/linking\nsleep 60\n")
    linker.chmod(0o755)
    process = subprocess.Popen(
        [*COMMAND, "compile", str(bundle.with_suffix(".onnx")), "-d", "CPU", "-o", str(target)],
        env={**os.environ, "TMPDIR": str(temporary), "CXX": str(linker)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (temporary / "linking").exists():
        assert process.poll() is None and time.monotonic() < deadline, "the linker was not started"
        time.sleep(0.02)
    return process


def wait_for_end(pid: int) -> None:
    status = Path(f"/proc/{pid}/stat")
    deadline = time.monotonic() + 10
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "the program is still running"
        time.sleep(0.02)


@pytest.fixture
def temporary(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "tmp"
    folder.mkdir()
    yield folder


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(s, marks=pytest.mark.slow) for s in (signal.SIGTERM, signal.SIGHUP))]
)
def test_a_signal_ends_a_compile_and_nothing_is_left(
    number: signal.Signals, bundle: Path, temporary: Path, tmp_path: Path
) -> None:
    process = started(bundle, temporary, tmp_path / "m.hcb")
    process.send_signal(number)
    _, messages = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert messages.splitlines()[-1] == ("interrupted" if number == signal.SIGINT else f"ended by {number.name}")
    assert "Traceback" not in messages
    assert left(temporary) == [] and not list(tmp_path.glob("*.hcb")) and not list(tmp_path.glob(".heterocc*"))
    wait_for_end(int((temporary / "linking").read_text()))


def test_a_program_that_is_just_being_started_is_ended_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            while not (tmp_path / "pid").exists():
                time.sleep(0.01)
            running.set()
            time.sleep(0.2)  # it runs, and its caller does not know it yet

    running = threading.Event()
    monkeypatch.setattr(subprocess, "Popen", Slow)
    command = ["/bin/sh", "-c", f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; sleep 60"]
    thread = threading.Thread(target=run_tool, args=(command,))
    thread.start()
    assert running.wait(20)
    kill_all()
    thread.join(20)
    assert not thread.is_alive()
    wait_for_end(int((tmp_path / "pid").read_text()))


def test_what_a_killed_compile_leaves_is_removed_by_the_next(
    bundle: Path, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = started(bundle, temporary, tmp_path / "m.hcb")
    process.kill()
    process.communicate(timeout=20)
    os.killpg(int((temporary / "linking").read_text()), signal.SIGKILL)
    assert left(temporary)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with scratch_folder("code") as folder:
        assert left(temporary) == [folder]
    assert left(temporary) == []


def test_folders_in_use_and_those_of_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    stale, foreign = tmp_path / "heterocc-work-link-abcd_123", tmp_path / "heterocc-abcd_123"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "heterocc-work-code-abcd_123").symlink_to(tmp_path / "elsewhere")
    stale.mkdir()
    foreign.mkdir()
    with scratch_folder("check") as used:
        remove_stale(tmp_path)
        assert used.is_dir() and foreign.is_dir() and (tmp_path / "elsewhere").is_dir() and not stale.exists()


def test_a_folder_that_another_process_holds_stays(tmp_path: Path) -> None:
    held = tmp_path / "heterocc-work-link-abcd_123"
    held.mkdir()
    handle = os.open(held, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    remove_stale(tmp_path)
    assert held.is_dir()
    os.close(handle)
    remove_stale(tmp_path)
    assert not held.exists()


def test_a_tool_ends_with_all_that_it_started(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_tool(["bash", "-c", "sleep 60 & echo $! > child; wait"], tmp_path, timeout=1)
    wait_for_end(int((tmp_path / "child").read_text()))

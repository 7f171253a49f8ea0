"""The plug-in of pytest: golden files are written on request, compared, and differences can be read."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
from click import Command
from typer.main import get_command

from heterocc.compiler.cli.main import app
from heterocc.compiler.regression.golden import GoldenCheck, check_golden
from tests.artifacts.bundle_forge import contents, edited, pack
from tests.runtime import standin

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[3]
TEST = """
def test_it(heterocc_golden):
    bundle = heterocc_golden.check("m.hcb", kernels=True)
    assert bundle.name == "m.hcb"
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that ran once: pytester unloads what a test loads, and TVM's libraries cannot be loaded twice."""
    folder = tmp_path_factory.mktemp("bundle")
    path = standin.write_bundle(folder / "m.hcb", standin.chain(2))
    check_golden(GoldenCheck(folder, False), path, "x", folder, plan=True, numbers=True, kernels=True)
    return path


@pytest.fixture
def project(bundle: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A directory with a bundle and a test of it."""
    monkeypatch.setenv("PYTEST_ADDOPTS", "")
    shutil.copy(bundle, pytester.path)
    pytester.makepyfile(TEST)
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.runpytest_inprocess("-q", "-p", "no:cacheprovider", *arguments)


def test_golden_files_are_written_on_request_fail_once_and_hold_afterwards(project: pytest.Pytester) -> None:
    first = run(project)
    first.assert_outcomes(failed=1)
    first.stdout.fnmatch_lines(["*test_it.plan is missing", "*if this is intended: pytest --heterocc-bless"])
    assert not (project.path / "golden").exists()
    blessed = run(project, "--heterocc-bless")
    blessed.assert_outcomes(failed=1)
    blessed.stdout.fnmatch_lines(["blessed test_it.plan, test_it.kernels, test_it.inputs.npz, test_it.outputs.npz:*"])
    assert "add_w: node_add_w -> v0" in (project.path / "golden" / "test_it.kernels").read_text()
    run(project).assert_outcomes(passed=1)
    run(project, "--heterocc-bless").assert_outcomes(passed=1)


def test_a_changed_plan_kernel_and_number_are_shown_together(project: pytest.Pytester) -> None:
    run(project, "--heterocc-bless")
    bundle = project.path / "m.hcb"
    pack(bundle, edited(bundle, lambda m: m["variants"][0]["partitions"][0]["kernels"][0].update(symbol="other")))
    plan = project.path / "golden" / "test_it.plan"
    plan.write_text(plan.read_text() + "p9 CPU: 1 node\n")
    outputs = project.path / "golden" / "test_it.outputs.npz"
    with np.load(outputs) as stored:
        changed = {name: array + 1 for name, array in stored.items()}
    np.savez(outputs, **changed)
    failed = run(project)
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(
        ["-p9 CPU: 1 node", "-  add_w: *", "+  other: *", "output 'v1' differs from *max error 1,*SNR*"]
    )
    assert "Traceback" not in failed.stdout.str()


def test_inputs_that_the_model_no_longer_accepts_are_drawn_anew_when_blessed(project: pytest.Pytester) -> None:
    run(project, "--heterocc-bless")
    np.savez(project.path / "golden" / "test_it.inputs.npz", x=np.ones(8, np.float32))
    failed = run(project)
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(["the model does not accept *test_it.inputs.npz*"])
    run(project, "--heterocc-bless").assert_outcomes(failed=1)
    run(project).assert_outcomes(passed=1)


def test_an_error_of_the_model_fails_the_test_without_a_traceback(project: pytest.Pytester) -> None:
    members = contents(project.path / "m.hcb")
    pack(project.path / "m.hcb", {**members, "manifest.json": b"{}"})
    failed = run(project)
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(["error?HC303?: *"])
    assert "Traceback" not in failed.stdout.str() and "def check" not in failed.stdout.str()


def test_names_and_the_directory_can_be_chosen(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\nheterocc_golden_dir = kept/here\n")
    project.makepyfile(
        'def test_it(heterocc_golden):\n    heterocc_golden.check("m.hcb", name="a b", numbers=False, atol=0.1)\n'
    )
    run(project, "--heterocc-bless").assert_outcomes(failed=1)
    (file,) = (project.path / "kept" / "here").iterdir()
    assert file.name.startswith("a_b-") and file.suffix == ".plan"
    run(project).assert_outcomes(passed=1)


@pytest.mark.slow
def test_a_model_is_compiled_and_its_bundle_compared(project: pytest.Pytester) -> None:
    from tests.compiler.small import conv_net

    conv_net(project.path / "m.onnx")
    project.makepyfile(
        'def test_it(heterocc_golden):\n    heterocc_golden.check("m.onnx", devices="CPU", check=False)\n'
    )
    project.runpytest_subprocess("--heterocc-bless").assert_outcomes(failed=1)
    project.runpytest_subprocess().assert_outcomes(passed=1)
    assert "conv1: Conv" in (project.path / "golden" / "test_it.plan").read_text()


@pytest.mark.parametrize("document", ["docs/regression.md", "examples/regression.yml", "docs/security.md"])
def test_the_commands_of_the_documents_exist_with_their_options(document: str) -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    text = (ROOT / document).read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if document.endswith(".md") else [text]
    found = re.findall(r"^\s*heterocc (.*)$", "\n".join(blocks), re.MULTILINE)
    assert found
    for line in found:
        words = shlex.split(line.split("|")[0].split(" >")[0].split(" 2>")[0], comments=True)
        command: Command = commands[words[0]]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert {word for word in words[1:] if word.startswith("-")} <= known, line

"""A bundle that was compiled with simulated failures says so wherever it is looked at or loaded."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.compiler.cli.main import app
from heterocc.runtime import load
from heterocc.runtime.fault_variables import WRONG_KERNEL
from tests.compiler.small import chain, conv_net
from tests.fresh_process import fresh, stderr_of

SENTENCE = f"the bundle was compiled with simulated failures ({WRONG_KERNEL}): its results may be wrong"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """One model compiled without, with, and again without a wrong kernel, in one process."""
    folder = tmp_path_factory.mktemp("simulated")
    model = conv_net(folder / "m.onnx")
    paths = folder / "before.hcb", folder / "wrong.hcb", folder / "after.hcb"
    with pytest.MonkeyPatch.context() as patch:
        for path in paths:
            if path.stem == "wrong":
                patch.setenv(WRONG_KERNEL, "gate")
            else:
                patch.delenv(WRONG_KERNEL, raising=False)
            compile_model(model, path, devices="CPU", check=False)
    return paths


def test_the_manifest_names_the_variable_and_only_then_has_the_field(bundles: tuple[Path, Path, Path]) -> None:
    before, wrong, after = bundles
    found = open_bundle(wrong).manifest
    assert found.faults == (WRONG_KERNEL,) and (found.version.major, found.version.minor) == (1, 2)
    plain = open_bundle(before)
    assert plain.manifest.faults == () and (plain.manifest.version.major, plain.manifest.version.minor) == (1, 2)
    assert b'"faults"' not in plain.manifest.to_bytes() and b'"faults"' in found.to_bytes()
    assert before.read_bytes() == after.read_bytes()


def test_load_warns_of_it(bundles: tuple[Path, Path, Path], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), load(bundles[1]) as session:
        assert SENTENCE in session.notes
    assert [r.getMessage() for r in caplog.records] == [f"{bundles[1]}: {SENTENCE}"]
    caplog.clear()
    with load(bundles[0]) as session:
        assert SENTENCE not in session.notes
    assert not caplog.records


def test_inspect_and_check_show_it(bundles: tuple[Path, Path, Path]) -> None:
    for path, warned in zip(bundles[:2], (False, True), strict=True):
        for command in ("inspect", "check"):
            text, data = (CliRunner().invoke(app, [command, str(path), *more]).stdout for more in ((), ("--json",)))
            assert (SENTENCE in " ".join(text.split())) == warned
            assert (WRONG_KERNEL in data) == warned
        assert json.loads(data)["warning"] == (SENTENCE if warned else None)


COMPILE = """
import sys
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
compile_model({model!r}, {bundle!r}, devices="{device}", check=False)
print(open_bundle({bundle!r}).manifest.faults)
"""


@pytest.mark.opencl
def test_a_bundle_compiled_for_a_device_with_simulated_failures_names_its_variable(tmp_path: Path) -> None:
    program = COMPILE.format(model=str(conv_net(tmp_path / "m.onnx")), bundle=str(tmp_path / "m.hcb"), device="OPENCL")
    assert fresh(program, HETEROCC_OPENCL_FAULT="discrete") == "('HETEROCC_OPENCL_FAULT',)\n"


TWICE = """
from heterocc.compiler import compile_model
for name in ("one", "two"):
    compile_model({model!r}, {folder!r} + "/" + name + ".hcb", devices="CPU", check=False)
"""


def test_a_process_that_compiles_a_wrong_kernel_warns_once_on_stderr_and_once_in_python(tmp_path: Path) -> None:
    model = chain(tmp_path / "m.onnx", 2)
    printed = stderr_of(TWICE.format(model=str(model), folder=str(tmp_path)), **{WRONG_KERNEL: "n1"})
    lines = [line for line in printed.splitlines() if "is set: " in line]
    assert len(lines) == 2
    plain, python = sorted(lines, key=lambda line: "RuntimeWarning" in line)
    assert plain.startswith("warning: HETEROCC_TEST_WRONG_KERNEL is set: this process simulates failures ('n1')")
    assert "RuntimeWarning: HETEROCC_TEST_WRONG_KERNEL is set" in python

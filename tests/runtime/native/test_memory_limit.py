"""The limit on values that the environment sets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from heterocc.artifacts.errors import UsageError
from heterocc.compiler import compile_model
from heterocc.runtime import load
from heterocc.runtime.native import cpu_api

MODEL = '<ir_version: 9, opset_import: ["" : 18]> agraph (float[2] x) => (float[2] y) { y = Neg(x) }'


@pytest.mark.parametrize("given", ["abc", "-1", "0", "1e3", "64 MB", "6.5", "9" * 30, "٣"])
def test_a_malformed_limit_is_an_error_that_names_the_variable(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cpu_api.MEMORY_LIMIT, given)
    with pytest.raises(UsageError, match="HETEROCC_MEMORY_MB is"):
        cpu_api.require_limit()


@pytest.mark.parametrize("given", ["", "1", "4096"])
def test_a_number_or_no_limit_is_accepted(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cpu_api.MEMORY_LIMIT, given)
    cpu_api.require_limit()


def test_a_session_with_code_for_the_cpu_does_not_load_with_a_malformed_limit(tmp_path: Path) -> None:
    bundle = tmp_path / "m.hcb"
    compile_model(onnx.parser.parse_model(MODEL), bundle, devices="CPU", cpu_variant=False)
    with load(bundle) as session:
        np.testing.assert_array_equal(session.run({"x": np.ones(2, np.float32)})["y"], [-1, -1])
    command = [sys.executable, "-m", "heterocc.runtime.cli.main", "run", str(bundle)]
    done = subprocess.run(
        command, env={"PATH": "", cpu_api.MEMORY_LIMIT: "lots"}, capture_output=True, text=True, check=False, timeout=60
    )
    assert "error[HC120]" in done.stderr and "HETEROCC_MEMORY_MB is 'lots'" in done.stderr

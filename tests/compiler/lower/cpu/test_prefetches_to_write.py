"""Prefetches of lines to write, in machine code for AVX2 and AVX-512."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from heterocc.compiler import compile_model
from tests.compiler.small import save


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
def test_outputs_are_prefetched_to_be_written(level: str, tmp_path: Path) -> None:
    """The instruction needs no feature that a bundle asks for."""
    weight = np.zeros((64, 5, 5, 5), np.float32)
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[2] * 4)]
    path = save(tmp_path / "m.onnx", nodes, {"x": (1, 5, 55, 55)}, {"y": (1, 64, 55, 55)}, {"w": weight})
    compile_model(path, tmp_path / "m.hcb", devices="CPU", cpu_targets=[level])
    with zipfile.ZipFile(tmp_path / "m.hcb") as archive:
        libraries = [archive.read(name) for name in archive.namelist() if name.endswith(".so")]
    assert libraries
    for content in libraries:
        (tmp_path / "code.so").write_bytes(content)
        command = ["objdump", "-d", str(tmp_path / "code.so")]
        assert "prefetchw" in subprocess.run(command, capture_output=True, text=True, check=True).stdout

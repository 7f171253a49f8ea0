"""heterocc leaves no file of ONNX Runtime's telemetry behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fresh_process import fresh

COMPILE = """
from onnx import TensorProto, helper
from heterocc.compiler import compile_model
x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy")
graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
compile_model(made, OUT, devices="ORT")
"""
RUN = """
import numpy as np
from heterocc.runtime import load
with load(OUT) as session:
    session.run({"x": np.zeros(2, np.float32)})
"""


def test_a_compile_and_a_run_leave_nothing_in_the_folder_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    for program in (COMPILE, RUN):
        fresh(f"OUT = {str(tmp_path / 'm.hcb')!r}\n{program}", TMPDIR=str(temporary))
        assert list(temporary.iterdir()) == []

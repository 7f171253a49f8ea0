"""ONNX Runtime's own log stays off standard error."""

import logging
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.compiler import compile_model
from heterocc.runtime.execute.ort_session import session_options, severity

ROOT = Path(__file__).parents[3]


def gather(path: Path) -> Path:
    graph = helper.make_graph(
        [helper.make_node("Gather", ["w", "i"], ["y"])],
        "g",
        [helper.make_tensor_value_info("i", TensorProto.INT64, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [numpy_helper.from_array(np.ones(7, np.float32), "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_a_run_that_onnx_runtime_refuses_writes_our_error_and_nothing_of_its_log(tmp_path: Path) -> None:
    compile_model(gather(tmp_path / "m.onnx"), tmp_path / "m.hcb", devices="ORT")
    np.savez(tmp_path / "in.npz", i=np.array([9, 100]))
    command = [sys.executable, "-m", "heterocc.compiler.cli", "run", str(tmp_path / "m.hcb"), "-i"]
    done = subprocess.run([*command, str(tmp_path / "in.npz")], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("error[HC401]")
    assert "idx=9" in done.stderr and "\x1b" not in done.stderr and "[E:onnxruntime" not in done.stderr


def test_all_sessions_come_from_one_place() -> None:
    made = re.compile(r"\b(SessionOptions|InferenceSession)\(")
    sources = [path for folder in ("compiler", "runtime") for path in (ROOT / folder).rglob("*.py")]
    assert [p.name for p in sources if made.search(p.read_text())] == ["ort_session.py"]
    imported = re.compile(r"^ *(import|from) onnxruntime\b", re.MULTILINE)
    assert [p.name for p in sources if imported.search(p.read_text())] == ["ort_session.py"]


@pytest.mark.parametrize(
    ("level", "expected"),
    [(logging.NOTSET, 4), (logging.CRITICAL, 4), (logging.ERROR, 3), (logging.WARNING, 2), (logging.DEBUG, 0)],
)
def test_the_log_is_had_by_the_level_of_a_python_logger(level: int, expected: int) -> None:
    logger = logging.getLogger("heterocc.onnxruntime")
    before = logger.level
    logger.setLevel(level)
    try:
        assert severity() == expected == session_options().log_severity_level
    finally:
        logger.setLevel(before)
        if level == logging.DEBUG:
            logger.setLevel(logging.CRITICAL)
            session_options()  # the default logger is the process's: quiet again
            logger.setLevel(before)

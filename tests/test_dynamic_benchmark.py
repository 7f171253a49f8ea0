"""benchmarks/networks/dynamic.py: its list of models, its limits, and a run on a small model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks.dynamic_sizes.limits import run_limited
from benchmarks.dynamic_sizes.models import catalogue

ROOT = Path(__file__).parents[1]


def test_at_least_forty_models_have_three_sets_of_sizes_and_one_source_each() -> None:
    models = catalogue()
    assert len(models) >= 40
    assert len({model.source for model in models}) == len(models)
    for model in models:
        assert len({tuple(sizes.values()) for sizes in model.sizes}) == 3, model.name
        assert all(value in model.sizes[0] for value in model.values.values() if isinstance(value, str)), model.name


def test_a_process_that_takes_too_long_is_ended_and_its_reason_says_so() -> None:
    ended = run_limited([sys.executable, "-c", "import time; time.sleep(60)"], 0.5, 4)
    assert ended.output is None
    assert ended.reason == "not ended in time"
    assert ended.seconds < 30


def test_a_process_that_wants_too_much_memory_fails_alone() -> None:
    ended = run_limited([sys.executable, "-c", "bytearray(2**31)"], 60, 1)
    assert ended.output is None
    assert "MemoryError" in ended.reason


def test_output_seconds_and_memory_of_a_process_are_kept() -> None:
    ended = run_limited([sys.executable, "-c", "b = bytearray(2**27); print('done')"], 60, 4)
    assert (ended.output, ended.reason) == ("done\n", "")
    assert ended.megabytes > 128


@pytest.mark.slow
def test_rows_that_are_done_are_kept_and_results_compared(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Softmax", ["x"], ["y"], axis=-1)],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "length"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "length"])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    command = [sys.executable, "benchmarks/networks/dynamic.py", str(tmp_path / "m.onnx"), "batch=2,length=9"]
    command += ["--bundles", "CPU,fixed", "--threads", "1", "--seconds", "0.01", "--keep", str(tmp_path / "kept")]
    command += ["--json", str(tmp_path / "out.json")]
    seen = []
    for _ in range(2):
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
        found = json.loads((tmp_path / "out.json").read_text())
        seen.append(found["rows"])
    assert seen[0] == seen[1]
    (row,) = seen[0]
    assert set(row["ms"]) == {"CPU", "fixed", "onnxruntime"}
    assert row["different"] == row["failed"] == {}
    assert set(found["compiles"]) == {"m-CPU", "m-fixed-batch=2,length=9"}

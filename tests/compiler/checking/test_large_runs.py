"""A run that this machine has no memory for is not tried."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heterocc.compiler import compile_model
from heterocc.compiler.checking import run_memory
from heterocc.compiler.pipeline.timing.timed_runs import TimedRuns
from heterocc.runtime import load
from tests.compiler.onnx_build import model, node, value


def test_a_model_with_large_tensors_is_compiled_unchecked_and_untimed_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_memory, "_installed_memory", lambda: 1 << 16)
    nodes = [node("ConstantOfShape", "shape", "zeros"), node("ReduceSum", "zeros", "sum", keepdims=0)]
    nodes.append(node("Add", "x sum", "y"))
    proto = model(nodes, [value("x", [3])], [value("y", [3])], {"shape": np.array([1 << 12, 1 << 12])})
    report = compile_model(proto, tmp_path / "m.hcb")
    assert any("a run needs 671" in warning and "half of this machine" in warning for warning in report.warnings)
    assert not any(plan.seconds for _, plan in report.timed)
    with load(tmp_path / "m.hcb") as session:
        np.testing.assert_array_equal(session.run({"x": np.ones(3, np.float32)})["y"], np.ones(3))


def test_a_comparison_of_plans_of_which_none_runs_has_no_times() -> None:
    assert TimedRuns(None, None)._on_threads({}, None) == {}  # type: ignore[arg-type]

"""Large results of constants, of which the import has stored none: a run computes them, and the bundle stays small."""

from __future__ import annotations

import numpy as np
from onnx import helper

from heterocc.compiler.lower.cpu.lowering import CpuLowering
from tests.compiler.lower.lowered import execute, job, model, run_ort

N = helper.make_node
SIDE = 300


def test_a_small_model_of_large_results_makes_little_code_and_few_weights() -> None:
    nodes = [
        N("Range", ["first", "last", "step"], ["range"]),
        N("ConstantOfShape", ["shape"], ["zeros"]),
        N("EyeLike", ["zeros"], ["eye"], k=1),
        N("Gather", ["row", "places"], ["rows"]),
        N("Reshape", ["range", "shape"], ["square"]),
        N("Add", ["eye", "square"], ["sum"]),
        N("Add", ["rows", "sum"], ["more"]),
        N("Add", ["x", "more"], ["y"]),
    ]
    constants = {
        "first": np.array(0, np.float32),
        "last": np.array(SIDE * SIDE, np.float32),
        "step": np.array(1, np.float32),
        "shape": np.array([SIDE, SIDE]),
        "row": np.arange(SIDE, dtype=np.float32).reshape(1, SIDE),
        "places": np.zeros(SIDE, np.int64),
    }
    feeds = {"x": np.ones(1, np.float32)}
    made = model(nodes, feeds, ["y"], constants)
    work = job(made)
    lowered = CpuLowering().lower(work)
    assert sum(np.asarray(p).nbytes for p in lowered.params) + len(lowered.code) < SIDE * SIDE
    np.testing.assert_array_equal(execute(work, lowered, feeds)["y"], run_ort(made, feeds)["y"])

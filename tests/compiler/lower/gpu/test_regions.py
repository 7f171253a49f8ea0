"""Kernels whose blocks read a part of a tensor twice, as that of x + x does after fusion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from heterocc.runtime.native import opencl_unavailable_reason
from heterocc.runtime.native.vulkan_api import vulkan_unavailable_reason
from tests.compiler.lower import gpu_run, opencl_run, vulkan_run

RUNNERS = [
    pytest.param(
        runner, id=name, marks=[getattr(pytest.mark, name), pytest.mark.skipif(reason is not None, reason=str(reason))]
    )
    for name, runner, reason in (
        ("opencl", opencl_run, opencl_unavailable_reason()),
        ("vulkan", vulkan_run, vulkan_unavailable_reason()),
    )
]


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("shape", [(2, 1), (2, 3), (9, 40)])
@pytest.mark.parametrize("twice", ["Add", "Mul"])
def test_a_result_that_is_read_twice_by_one_operator_is_right(
    runner: Any, shape: tuple[int, int], twice: str, tmp_path: Path
) -> None:
    nodes = [
        helper.make_node("Clip", ["x", "low", "high"], ["c"]),
        helper.make_node("ReduceMax", ["c"], ["d"], axes=[0], keepdims=1),
        helper.make_node(twice, ["d", "d"], ["y"]),
    ]
    bounds = {"low": np.array(-0.5, np.float32), "high": np.array(0.75, np.float32)}
    x = np.random.default_rng(shape[1]).standard_normal(shape).astype(np.float32)
    graph = gpu_run.Graph({"x": x}, nodes, bounds)
    (found,) = runner.run(*runner.lower(graph, tmp_path), graph.inputs)
    np.testing.assert_array_equal(found, graph.reference()[0])

"""Normalizer of rows by their lengths in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.compiler import compile_model
from heterocc.runtime import load


@pytest.mark.parametrize(("devices", "check"), [("CPU", True), ("ORT", True), ("ORT", False)])
def test_a_normaliser_between_other_nodes_keeps_signs(devices: str, check: bool, tmp_path: Path) -> None:
    """ONNX Runtime, with which results are compared, loses them where it writes over what it reads."""
    rng = np.random.default_rng(0)
    weight, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 5), (3, 8)))
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"]),
        helper.make_node("Normalizer", ["t"], ["z"], domain="ai.onnx.ml", norm="L2"),
        helper.make_node("MatMul", ["z", "weight"], ["y"]),
    ]
    given, wanted = [info("x", TensorProto.FLOAT, ["rows", 8])], [info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", given, wanted, [numpy_helper.from_array(weight, "weight")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    compile_model(made, tmp_path / "m.hcb", devices=devices, check=check)
    rows = np.tanh(x)
    with load(tmp_path / "m.hcb") as session:
        found = session.run({"x": x})["y"]
    np.testing.assert_allclose(found, rows / np.linalg.norm(rows, axis=1, keepdims=True) @ weight, rtol=0, atol=1e-6)

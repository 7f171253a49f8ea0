"""A model of one product of matrices, large enough for its kernel to be timed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

WEIGHT = np.random.default_rng(4).standard_normal((96, 80), dtype=np.float32)


def save_product(folder: Path) -> Path:
    """The path of the model, whose output `y` is the product of `x` (64 x 96) and WEIGHT."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "m",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [64, 96])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [64, 80])],
        [numpy_helper.from_array(WEIGHT, "w")],
    )
    path = folder / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path

"""Small ONNX models built in code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Sequence[int | str]],
    outputs: dict[str, Sequence[int | str]],
    constants: dict[str, np.ndarray] | None = None,
    opset: int = 17,
) -> Path:
    """Save a float32 model of `nodes`; inputs and outputs by name → shape."""
    graph = helper.make_graph(
        list(nodes),
        path.stem,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9), path)
    return path


def conv_net(path: Path) -> Path:
    """Convolution, ReLU, convolution, residual sum, pooling, matrix product: x[1,4,8,8] → y[1,5]."""
    rng = np.random.default_rng(0)
    constants = {
        "w1": rng.standard_normal((4, 4, 3, 3)).astype(np.float32) / 6,
        "w2": rng.standard_normal((4, 4, 3, 3)).astype(np.float32) / 6,
        "m": rng.standard_normal((4, 5)).astype(np.float32),
        "shape": np.array([1, 4], np.int64),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="relu1"),
        helper.make_node("Conv", ["b", "w2"], ["c"], name="conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c", "b"], ["d"], name="sum"),
        helper.make_node("Sigmoid", ["d"], ["e"], name="gate"),
        helper.make_node("GlobalAveragePool", ["e"], ["f"], name="pool"),
        helper.make_node("Reshape", ["f", "shape"], ["g"], name="flat"),
        helper.make_node("MatMul", ["g", "m"], ["y"], name="fc"),
    ]
    return save(path, nodes, {"x": [1, 4, 8, 8]}, {"y": [1, 5]}, constants)


def chain(path: Path, length: int) -> Path:
    """`length` one-input nodes in a row on x[4,64]."""
    ops = ("Relu", "Sigmoid", "Tanh", "Neg")
    nodes = [
        helper.make_node(ops[i % 4], ["x" if i == 0 else f"v{i - 1}"], [f"v{i}"], name=f"n{i}") for i in range(length)
    ]
    return save(path, nodes, {"x": [4, 64]}, {f"v{length - 1}": [4, 64]})

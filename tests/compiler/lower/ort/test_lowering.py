from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.lower.ort.lowering import OrtLowering
from heterocc.passes.graph import Graph, Node, Value
from tests.compiler.lower.lowered import Model, job, model

ORT = TargetDevice("ORT", "ort")
X = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
WEIGHTS = {"w": np.random.default_rng(1).standard_normal((32, 16)).astype(np.float32), "b": np.ones(16, np.float32)}
NODES = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "b"], ["y"])]


def test_large_initializers_are_given_from_outside_and_the_result_is_right() -> None:
    made = model(NODES, {"x": X}, ["y"], WEIGHTS)
    lowered = OrtLowering().lower(job(made, ORT))
    assert lowered.kind == "onnx" and lowered.param_names == ("w",)
    assert np.shares_memory(lowered.params[0], WEIGHTS["w"])
    options = onnxruntime.SessionOptions()
    options.add_external_initializers(
        list(lowered.param_names), [onnxruntime.OrtValue.ortvalue_from_numpy(p) for p in lowered.params]
    )
    session = onnxruntime.InferenceSession(lowered.code, options, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": X})[0], X @ WEIGHTS["w"] + 1, rtol=1e-4, atol=1e-5)


def test_the_same_partition_gives_the_same_bytes() -> None:
    codes = {OrtLowering().lower(job(model(NODES, {"x": X}, ["y"], WEIGHTS), ORT)).code for _ in range(3)}
    assert len(codes) == 1
    assert onnx.load_from_string(codes.pop()).graph.node[0].op_type == "MatMul"


def test_trial_decides_what_onnx_runtime_can_run() -> None:
    made = model(NODES, {"x": X}, ["y"], WEIGHTS)
    assert OrtLowering().trial(made, "n0", ORT) is None
    values = {"x": Value("x", "float32", (2,)), "y": Value("y", "float32", (2,))}
    proto = helper.make_model(
        helper.make_graph(
            [helper.make_node("Fancy", ["x"], ["y"], name="n0", domain="example")],
            "g",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])],
        ),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("example", 1)],
    )
    graph = Graph("g", (Node("n0", "example::Fancy", ("x",), ("y",)),), values, ("x",), ("y",))
    reason = OrtLowering().trial(Model("g", "0" * 64, graph, proto, {}, {}, {"": 18}), "n0", ORT)
    assert reason is not None and "Fancy" in reason

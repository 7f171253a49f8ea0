from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.lower.ort.lowering import OrtLowering
from heterocc.passes.graph import Graph, Node, Value
from heterocc.runtime.execute.ort_session import open_session, session_options
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


def test_dequantised_weights_that_several_nodes_read_are_no_obstacle() -> None:
    rng = np.random.default_rng(2)
    constants = {
        "w": rng.integers(-127, 128, (32, 64)).astype(np.int8),
        "s": np.array(0.01, np.float32),
        "z": np.array(0, np.int8),
        "xs": np.array(0.05, np.float32),
        "xz": np.array(119, np.uint8),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "xs", "xz"], ["f"]),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["v"]),
        helper.make_node("MatMul", ["f", "v"], ["a"]),
        helper.make_node("Mul", ["f", "xs"], ["g"]),
        helper.make_node("MatMul", ["g", "v"], ["b"]),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["u"]),
        helper.make_node("Transpose", ["u"], ["t"], perm=[1, 0]),
        helper.make_node("Transpose", ["v"], ["y"], perm=[1, 0]),
    ]
    made = model(nodes, {"x": X}, ["a", "b", "t", "y"], constants)
    lowered = OrtLowering().lower(job(made, ORT))
    options = session_options()
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(p) for p in lowered.params]
    options.add_external_initializers(list(lowered.param_names), values)
    found = open_session(lowered.code, options).run(["a", "b", "t", "y"], {"x": X})
    f = (np.clip(np.round(X / constants["xs"]) + 119, 0, 255) - 119) * constants["xs"]
    weight = constants["w"] * constants["s"]
    for got, right in zip(found, (f @ weight, f * constants["xs"] @ weight, weight.T, weight.T), strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5)

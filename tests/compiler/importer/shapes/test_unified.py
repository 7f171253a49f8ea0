"""Dimensions that an operator needs to be a certain number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.small import save


def packed_attention(path: Path) -> Path:
    """GroupQueryAttention of packed queries, keys and values; the cache has heads of a named size, as genai has it."""
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.standard_normal((8, 4 * 16 + 2 * 2 * 16)).astype(np.float32),
        "one": np.array([1]),
        "last": np.array(1),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["packed"]),
        helper.make_node("ReduceSum", ["mask", "one"], ["count"], keepdims=0),
        helper.make_node("Sub", ["count", "one"], ["ends"]),
        helper.make_node("Cast", ["ends"], ["lengths"], to=TensorProto.INT32),
        helper.make_node("Shape", ["mask"], ["shape"]),
        helper.make_node("Gather", ["shape", "last"], ["longest"], axis=0),
        helper.make_node("Cast", ["longest"], ["total"], to=TensorProto.INT32),
        helper.make_node(
            "GroupQueryAttention",
            ["packed", "", "", "past_k", "past_v", "lengths", "total"],
            ["y", "present_k", "present_v"],
            domain="com.microsoft",
            num_heads=4,
            kv_num_heads=2,
        ),
    ]
    cache, present = ["batch", 2, "past", "cache_dim"], ["batch", 2, "total", "cache_dim"]
    real, whole = TensorProto.FLOAT, TensorProto.INT64
    inputs = [("x", real, ["batch", "new", 8]), ("mask", whole, ["batch", "total"])]
    inputs += [("past_k", real, cache), ("past_v", real, cache)]
    outputs = [("y", real, ["batch", "new", 64]), ("present_k", real, present), ("present_v", real, present)]
    graph = helper.make_graph(
        nodes,
        "attention",
        [helper.make_tensor_value_info(*i) for i in inputs],
        [helper.make_tensor_value_info(*o) for o in outputs],
        [numpy_helper.from_array(a, n) for n, a in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def test_the_size_of_a_head_in_a_cache_follows_from_packed_queries_and_shapes_are_found(tmp_path: Path) -> None:
    model = import_model(packed_attention(tmp_path / "m.onnx"), keep_dims=True)
    assert model.input_shape("past_k") == model.input_shape("past_v") == ("batch", 2, "past", 16)
    assert "needs the dimension 'cache_dim' to be 16" in " ".join(model.notes)
    new, past = model.samples["x"][1], model.samples["past_k"][2]
    assert model.samples["past_k"][3] == 16 and model.samples["mask"] == (1, new + past)


def test_a_dimension_along_which_a_constant_matrix_is_multiplied_is_its_size(tmp_path: Path) -> None:
    constants = {"w": np.ones((6, 5), np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = save(tmp_path / "m.onnx", nodes, {"x": ["rows", "width"]}, {"y": ["rows", 5]}, constants)
    assert import_model(path, keep_dims=True).input_shape("x") == ("rows", 6)

"""Attributes and ranges of constants, as a report shows them."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from heterocc.compiler.importer.details import details_of
from heterocc.compiler.importer.pipeline import import_model
from heterocc.passes.explain.details import Details


def details(folder: Path, nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray]) -> Details:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("x", "y")]
    graph = helper.make_graph(
        nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(a, n) for n, a in weights.items()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, folder / "m.onnx")
    return details_of(import_model(folder / "m.onnx"))


def test_attributes_are_text_of_any_kind_and_long_ones_are_cut(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("LeakyRelu", ["x"], ["a"], name="leaky", alpha=0.1),
        helper.make_node("Transpose", ["a"], ["b"], name="turn", perm=[1, 0]),
        helper.make_node("Transpose", ["b"], ["c"], name="back", perm=[1, 0]),
        helper.make_node("Gelu", ["c"], ["y"], name="gelu", approximate="tanh"),
    ]
    found = {name: dict(named) for name, named in details(tmp_path, nodes, {}).attributes.items()}
    assert {"alpha": "0.1"} in found.values() and {"approximate": "tanh"} in found.values()


def test_modules_are_those_of_the_exporters_metadata(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="relu"), helper.make_node("Neg", ["a"], ["b"], name="neg")]
    nodes += [helper.make_node("Abs", ["b"], ["c"], name="abs"), helper.make_node("Exp", ["c"], ["y"], name="exp")]
    for node, scopes in zip(
        nodes, ("['', 'encoder', 'encoder.layer.3', 'relu']", "['relu']", "__import__('os')"), strict=False
    ):
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    assert list(details(tmp_path, nodes, {}).modules.values()) == ["encoder/layer/3"]


def test_values_that_the_import_renames_keep_their_names_in_the_model(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["x", "onnx::Add_7"], ["/encoder/layer.0/out:0"], name="add"),
        helper.make_node("Exp", ["/encoder/layer.0/out:0"], ["y"], name="exp"),
    ]
    found = details(tmp_path, nodes, {"onnx::Add_7": np.ones((2, 3), np.float32)})
    assert set(found.values.values()) == {"onnx::Add_7", "/encoder/layer.0/out:0"}


def test_ranges_are_those_of_the_weights_with_what_is_not_a_number(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"]),
        helper.make_node("Mul", ["a", "n"], ["b"]),
        helper.make_node("Cast", ["h"], ["hf"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["b", "hf"], ["y"]),
    ]
    weights = {
        "w": np.array([[-1.5, 0.25, 3.0]], np.float32),
        "n": np.array([[np.nan, 1, 2]], np.float32),
        "h": np.array([[1, -2, 3]], ml_dtypes.bfloat16),
    }
    found = set(details(tmp_path, nodes, weights).ranges.values())
    assert {("-1.5", "3"), ("nan", "nan"), ("-2", "3")} <= found

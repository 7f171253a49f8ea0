"""Inlining of model-local functions, and of operators that ONNX defines as functions."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.onnx_build import (
    assert_close,
    branch,
    imported_like,
    model,
    node,
    noise,
    op_types,
    run_imported,
    save,
    value,
)


def scaled_relu(opset: int = 17) -> onnx.FunctionProto:
    """`relu(x) * factor`, the factor being the call's attribute; calls another function."""
    factor = node("Constant", "", "k")
    factor.attribute.add(name="value_float", type=onnx.AttributeProto.FLOAT, ref_attr_name="factor")
    nodes = [node("Positive", "a", "p", domain="ours"), factor, node("Mul", "p k", "b", "product")]
    made = helper.make_function("ours", "Scaled", ["a"], ["b"], nodes, [helper.make_opsetid("", opset)], ["factor"])
    made.opset_import.add(domain="ours", version=1)
    return made


def positive() -> onnx.FunctionProto:
    return helper.make_function(
        "ours", "Positive", ["a"], ["b"], [node("Relu", "a", "b")], [helper.make_opsetid("", 17)]
    )


@pytest.mark.parametrize("opset", [17, 13])
def test_calls_of_model_local_functions_become_their_bodies(tmp_path: Path, opset: int) -> None:
    calls = [
        node("Scaled", "x", "m", "first", domain="ours", factor=2.0),
        node("Scaled", "m", "y", "second", domain="ours", factor=0.5),
    ]
    calls[1].metadata_props.add(key="affinity", value="CPU")
    functions = [scaled_relu(opset), positive()]
    proto = model(calls, [value("x", [3])], [value("y")], domains=[("ours", 1)], functions=functions)
    found = imported_like(save(tmp_path, proto), {"x": noise(3)})
    assert op_types(found) == ["Relu", "Mul", "Relu", "Mul"]
    assert [n.original for n in found.graph.nodes] == [("first",), ("first",), ("second",), ("second",)]
    assert [n.affinity for n in found.graph.nodes] == [None, None, "CPU", "CPU"]
    assert set(found.opsets) == {""}


def test_a_function_called_inside_a_branch_is_expanded(tmp_path: Path) -> None:
    choose = node(
        "If",
        "c",
        "y",
        then_branch=branch("t", node("Positive", "x", "r", domain="ours")),
        else_branch=branch("e", node("Neg", "x", "r")),
    )
    inputs = [value("x", [3]), value("c", [], TensorProto.BOOL)]
    proto = model([choose], inputs, [value("y")], domains=[("ours", 1)], functions=[positive()])
    found = imported_like(save(tmp_path, proto), {"x": noise(3), "c": np.array(True)})
    assert not found.proto.functions


@pytest.mark.parametrize(
    ("nodes", "opset"),
    [
        ([node("Celu", "x", "y", "f", alpha=0.7)], 17),
        ([node("Swish", "x", "y", "f", alpha=1.5)], 24),
        ([node("CenterCropPad", "x size", "y", "f", axes=[0, 1])], 18),
        ([node("Celu", "x", "y", "f")], 17),
        ([node("HannWindow", "length", "y", "f")], 17),
        ([node("SoftmaxCrossEntropyLoss", "x label", "y", "f")], 17),
    ],
    ids=lambda v: v[0].op_type if isinstance(v, list) else None,
)
def test_an_operator_that_only_its_definition_makes_available_is_expanded(
    tmp_path: Path, nodes: list[onnx.NodeProto], opset: int
) -> None:
    used = set(nodes[0].input)
    constants = {"size": np.array([4, 6]), "length": np.array(6), "g": noise(5), "label": np.array([0, 3])}
    outputs = [value(name) for name in nodes[0].output]
    proto = model(nodes, [value("x", [2, 5])], outputs, {k: v for k, v in constants.items() if k in used}, opset=opset)
    path = save(tmp_path, proto)
    feeds = {"x": noise(2, 5)}
    found = import_model(path)
    assert nodes[0].op_type not in op_types(found)
    assert all(n.original == ("f",) for n in found.graph.nodes)
    reference = ReferenceEvaluator(proto).run(None, feeds)
    assert_close(run_imported(found, feeds), [np.asarray(r) for r in reference])


def test_an_operator_without_one_of_its_first_inputs_is_expanded(tmp_path: Path) -> None:
    call = helper.make_node("CausalConvWithState", ["x", "w", "", "past"], ["y", "present"], name="f")
    inputs = [value("x", [2, 4, 8]), value("w", [4, 1, 4]), value("past", [2, 4, 3])]
    proto = model([call], inputs, [value("y", [2, 4, 8]), value("present", [2, 4, 3])], opset=27)
    assert "CausalConvWithState" not in op_types(import_model(save(tmp_path, proto)))


def test_a_function_attribute_left_to_its_default_has_it(tmp_path: Path) -> None:
    factor = node("Constant", "", "k")
    factor.attribute.add(name="value_float", type=onnx.AttributeProto.FLOAT, ref_attr_name="factor")
    made = helper.make_function(
        "ours", "Scaled", ["a"], ["b"], [factor, node("Mul", "a k", "b")], [helper.make_opsetid("", 17)]
    )
    made.attribute_proto.append(helper.make_attribute("factor", 3.0))
    call = node("Scaled", "x", "y", "call", domain="ours")
    proto = model([call], [value("x", [3])], [value("y")], domains=[("ours", 1)], functions=[made])
    assert op_types(imported_like(save(tmp_path, proto), {"x": noise(3)})) == ["Mul"]


@pytest.mark.parametrize("op_type", ["Softmax", "Gelu", "LayerNormalization", "HardSwish"])
def test_an_operator_that_tvm_knows_is_not_expanded(tmp_path: Path, op_type: str) -> None:
    nodes = [node(op_type, "x g" if op_type == "LayerNormalization" else "x", "y")]
    constants = {"g": noise(5)} if op_type == "LayerNormalization" else {}
    path = save(tmp_path, model(nodes, [value("x", [2, 5])], [value("y")], constants, opset=20))
    assert op_types(imported_like(path, {"x": noise(2, 5)})) == [op_type]


def test_a_function_of_an_older_operator_set_whose_operators_have_not_changed_is_expanded_as_it_is() -> None:
    text = """
    <ir_version: 9, opset_import: ["" : 18, "local" : 1]>
    agraph (float[n] x, bool c) => (float[n] y) { y = local.outer(x, c) }
    <domain: "local", opset_import: ["" : 16, "local" : 1]>
    outer (x, c) => (y) {
        h = If (c) <then_branch = yes () => (a) { a = local.inner(x) }, else_branch = no () => (b) { b = Neg(x) }>
        y = Relu(h)
    }
    <domain: "local", opset_import: ["" : 14]>
    inner (x) => (y) { y = Abs(x) }
    """
    model = import_model(onnx.parser.parse_model(text), keep_dims=True)
    assert {node.op_type for node in model.graph.nodes} == {"If", "Relu"}

"""The import of subgraphs and functions: branches, loops, calls."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.onnx_build import (
    I64,
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

BOOL = TensorProto.BOOL


# ---- control flow ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_whose_condition_is_known_is_taken(tmp_path: Path, taken: bool) -> None:
    choose = node(
        "If",
        "c",
        "y",
        "choice",
        then_branch=branch("t", node("Add", "x k", "r"), constants={"k": noise(3)}),
        else_branch=branch("e", node("Mul", "x k", "r"), constants={"k": noise(3, seed=1)}),
    )
    proto = model([choose], [value("x", [3])], [value("y")], {"c": np.array(taken)})
    found = imported_like(save(tmp_path, proto), {"x": noise(3)})
    assert op_types(found) == ["Add" if taken else "Mul"]
    assert found.graph.nodes[0].original == ("choice",)


def test_a_branch_that_returns_an_outer_value_twice_can_be_taken(tmp_path: Path) -> None:
    def body(name: str) -> onnx.GraphProto:
        nodes = [node("Identity", "x", "r"), node("Identity", "r", "q")]
        return helper.make_graph(nodes, name, [], [onnx.ValueInfoProto(name="r"), onnx.ValueInfoProto(name="q")])

    choose = node("If", "c", "y z", then_branch=body("t"), else_branch=body("e"))
    proto = model([choose], [value("x", [3])], [value("y"), value("z")], {"c": np.array(True)})
    found = imported_like(save(tmp_path, proto), {"x": noise(3)})
    assert found.graph.outputs == ("y", "z")


def test_captured_values_are_inputs_of_the_node_and_of_its_subgraph(tmp_path: Path) -> None:
    choose = node(
        "If",
        "c",
        "y",
        "choice",
        then_branch=branch("t", node("Add", "a w", "r")),
        else_branch=branch("e", node("Neg", "a", "r")),
    )
    proto = model(
        [node("Relu", "x", "a"), choose],
        [value("x", [400]), value("c", [], BOOL)],
        [value("y")],
        {"w": noise(400)},
    )
    found = imported_like(save(tmp_path, proto), {"x": noise(400), "c": np.array(True)})
    name = found.graph.nodes[1].name
    assert found.graph.nodes[1].inputs == ("c", "a", "w")
    part = found.subgraph([name], ["c", "a"], ["y"])
    assert [i.name for i in part.graph.input] == ["c", "a"]
    assert [t.name for t in part.graph.initializer] == ["w"]


def loop_model(folder: Path) -> Path:
    """Three times `state = state * k + x`, with a small and a large constant inside the body."""
    inputs = [value("i", [], I64), value("go", [], BOOL), value("state", [300])]
    body = helper.make_graph(
        [
            node("Mul", "state k", "m"),
            node("Add", "m big", "s"),
            node("Add", "s x", "next"),
            node("Identity", "go", "on"),
        ],
        "body",
        inputs,
        [value("on", [], BOOL), value("next", [300])],
        [numpy_helper.from_array(np.array([0.5], np.float32), "k"), numpy_helper.from_array(noise(300), "big")],
    )
    nodes = [node("Relu", "x", "start"), node("Loop", "n - start", "y", "loop", body=body)]
    return save(folder, model(nodes, [value("x", [300])], [value("y")], {"n": np.array(3)}))


def test_a_loop_keeps_its_body_and_its_large_constants_are_the_models(tmp_path: Path) -> None:
    found = imported_like(loop_model(tmp_path), {"x": noise(300)})
    loop = found.graph.nodes[-1]
    assert loop.op_type == "Loop"
    assert "x" in loop.inputs and "big" in loop.inputs and "k" not in loop.inputs


def test_shape_arithmetic_inside_a_branch_is_folded(tmp_path: Path) -> None:
    inner = node(
        "If",
        "flag",
        "r",
        then_branch=branch("tt", node("Neg", "x", "r2"), output="r2"),
        else_branch=branch("ee", node("Abs", "x", "r2"), output="r2"),
    )
    nodes = [node("Shape", "x", "s"), node("Size", "s", "rank"), node("Equal", "rank two", "flag"), inner]
    choose = node(
        "If",
        "c",
        "y",
        then_branch=branch("t", *nodes, constants={"two": np.array(2)}),
        else_branch=branch("e", node("Relu", "x", "r")),
    )
    proto = model([choose], [value("x", ["n", 3]), value("c", [], BOOL)], [value("y")])
    found = imported_like(save(tmp_path, proto), {"x": noise(2, 3), "c": np.array(True)}, {"x": [2, 3]})
    body = next(a.g for a in found.proto.graph.node[0].attribute if a.name == "then_branch")
    assert [n.op_type for n in body.node] == ["Neg"]


def test_a_branch_that_the_shapes_contradict_is_left_to_the_run_and_noted(tmp_path: Path) -> None:
    choose = node(
        "If",
        "c",
        "y",
        "choice",
        then_branch=branch("t", node("MatMul", "x w", "r"), constants={"w": noise(4, 4)}),
        else_branch=branch("e", node("Relu", "x", "r")),
    )
    proto = model([choose], [value("x", ["n", "m"]), value("c", [], BOOL)], [value("y")])
    found = imported_like(save(tmp_path, proto), {"x": noise(2, 3), "c": np.array(False)}, {"x": [2, 3]})
    assert any("'choice'" in note for note in found.notes)
    with pytest.raises(Exception, match="MatMul"):
        run_imported(found, {"x": noise(2, 3), "c": np.array(True)})


# ---- functions ------------------------------------------------------------------------------------------------------


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
    proto = model(
        [choose], [value("x", [3]), value("c", [], BOOL)], [value("y")], domains=[("ours", 1)], functions=[positive()]
    )
    found = imported_like(save(tmp_path, proto), {"x": noise(3), "c": np.array(True)})
    assert not found.proto.functions


@pytest.mark.parametrize(
    ("nodes", "opset"),
    [
        ([node("Celu", "x", "y", "f", alpha=0.7)], 17),
        ([node("Swish", "x", "y", "f", alpha=1.5)], 24),
        ([node("CenterCropPad", "x size", "y", "f", axes=[0, 1])], 18),
        ([node("LayerNormalization", "x g", "y mean", "f")], 17),
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

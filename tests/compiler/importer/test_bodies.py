"""The import of subgraphs: branches and loops."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.compiler.onnx_build import (
    I64,
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

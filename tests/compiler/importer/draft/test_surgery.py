"""A graph taken apart into linked nodes of onnx-graphsurgeon, changed and put together again."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from heterocc.compiler.importer.draft.draft import Draft
from heterocc.compiler.importer.draft.surgery import open_branch, put_together, replace, take_apart
from tests.compiler.onnx_build import branch, model, node, noise, value
from tests.fresh_process import fresh

UNSUPPORTED = {
    "a type": helper.make_attribute("a", helper.make_tensor_type_proto(TensorProto.FLOAT, [2])),
    "tensors": helper.make_attribute("a", [numpy_helper.from_array(noise(2))]),
    "an empty list": helper.make_attribute("a", [], attr_type=AttributeProto.INTS),
    "bytes that are not text": helper.make_attribute("a", b"\xff\xfe"),
    "four-bit numbers": helper.make_attribute("a", helper.make_tensor("t", TensorProto.INT4, [3], [1, -2, 3])),
    "texts": helper.make_attribute("a", helper.make_tensor("t", TensorProto.STRING, [2], [b"x", b"y"])),
}


def draft(*nodes: onnx.NodeProto, outputs: str = "y", constants: dict[str, np.ndarray] | None = None) -> Draft:
    made = model(nodes, [value("x", [2]), value("c", [], TensorProto.BOOL)], [value(o) for o in outputs.split()])
    return Draft(made, dict(constants or {}))


@pytest.mark.parametrize("what", UNSUPPORTED)
def test_what_graphsurgeon_has_no_form_for_comes_through_unchanged(what: str) -> None:
    kept = node("Ours", "x", "k", "kept", domain="ours")
    kept.overload = "second"
    kept.attribute.append(UNSUPPORTED[what])
    before = draft(kept, node("Relu", "k", "dead", "dead"), node("Neg", "k", "y", "last"))
    graph = take_apart(before)
    put_together(graph, before)
    assert list(before.graph.node) == [kept, node("Neg", "k", "y", "last")]


def test_a_replaced_value_is_replaced_in_bodies_of_bodies_and_in_their_outputs() -> None:
    inner = branch("inner", output="old")
    other = branch("other", node("Neg", "old", "r", "deep"))
    outer = branch("outer", node("If", "c", "r1", "middle", then_branch=inner, else_branch=other), output="r1")
    plain = branch("plain", node("Abs", "x", "r2", "abs"), output="r2")
    before = draft(
        node("Relu", "x", "old", "first"),
        node("If", "c", "y", "top", then_branch=outer, else_branch=plain),
    )
    graph = take_apart(before)
    replace(graph.nodes[0].outputs[0], gs.Variable("new"))
    put_together(graph, before)
    first, top = before.graph.node
    middle = top.attribute[0].g.node[0] if top.attribute[0].name == "then_branch" else top.attribute[1].g.node[0]
    names = {a.name: a.g for a in middle.attribute}
    assert list(first.output) == ["new"]
    assert names["then_branch"].output[0].name == "new"
    assert list(names["else_branch"].node[0].input) == ["new"]


def test_what_only_a_body_returns_is_needed() -> None:
    given = branch("given", output="kept")
    other = branch("other", node("Abs", "w", "r", "abs"))
    before = draft(
        node("Relu", "x", "kept", "first"),
        node("If", "c", "y", "top", then_branch=given, else_branch=other),
        constants={"w": noise(2), "unused": noise(2)},
    )
    put_together(take_apart(before), before)
    assert [n.name for n in before.graph.node] == ["first", "top"]
    assert list(before.weights) == ["w"]


def test_a_branch_is_linked_with_what_took_the_place_of_the_values_that_it_captures() -> None:
    deep = branch("deep", node("Neg", "old", "r", "neg"))
    same = branch("same", output="old")
    taken = branch("taken", node("If", "c", "r1", "inner", then_branch=deep, else_branch=same), output="r1")
    plain = branch("plain", node("Abs", "x", "r2", "abs"), output="r2")
    before = draft(node("Relu", "x", "old", "first"), node("If", "c", "y", "top", then_branch=taken, else_branch=plain))
    graph = take_apart(before)
    first, top = graph.nodes
    assert [t.name for t in top.inputs] == ["c", "x", "old"]
    replace(first.outputs[0], gs.Variable("new"))
    inner, end = open_branch(top, "then_branch").nodes
    assert [t.name for t in inner.inputs] == ["c", "new"]
    assert inner.inputs[1] is first.outputs[0] and end.inputs[0] is inner.outputs[0]
    assert inner.returned == {"new"} and top.returned == set()


def test_nodes_are_removed_without_comparing_what_others_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(left: object, right: object) -> bool:
        raise AssertionError("the contents of nodes are compared")

    monkeypatch.setattr(gs.Node, "__eq__", compare)
    readers = [node("Add", "x w", f"v{i}", f"n{i}") for i in range(300)]
    before = draft(
        *readers, node("Sum", " ".join(f"v{i}" for i in range(0, 300, 2)), "y", "sum"), constants={"w": noise(2)}
    )
    put_together(take_apart(before), before)
    assert len(before.graph.node) == 151


def test_graphsurgeon_prints_nothing() -> None:
    program = """
import numpy as np
from onnx import helper
import heterocc.compiler.importer.draft.surgery
import onnx_graphsurgeon as gs
twice = [gs.Node("Relu", "n", {}, [gs.Variable("x")], [gs.Variable("y")]) for _ in range(2)]
gs.Graph(twice, [], []).tensors()
"""
    assert fresh(program) == ""

"""Concatenations of parts without elements in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler import compile_model
from heterocc.compiler.importer.onnx_tools.joins import with_counted_parts
from heterocc.runtime import load
from tests.compiler.onnx_build import model, node, save, value
from tests.reference import reference_session

X = value("x", ["n", "w"])
TWO = np.full((2, 3), 2, np.float32)


def untyped(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], **constants: np.ndarray) -> onnx.ModelProto:
    made = model(nodes, inputs, [value("y")], constants)
    made.graph.output[0].ClearField("type")
    return made


def in_if(nodes: list[onnx.NodeProto], output: str) -> onnx.NodeProto:
    zero = helper.make_node("Constant", [], ["zero"], value=numpy_helper.from_array(np.zeros(1, np.float32)))
    branches = [
        helper.make_graph(made, name, [], [onnx.ValueInfoProto(name=name)])
        for made, name in ((nodes, output), ([zero], "zero"))
    ]
    return helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])


PARTS = [node("Compress", "x kept", "part", axis=0), node("Concat", "part two", "joined", axis=1)]
SEQUENCE = [
    node("SplitToSequence", "x lengths", "parts", axis=0),
    node("SequenceInsert", "parts two", "more"),
    node("ConcatFromSequence", "more", "joined", axis=0, new_axis=1),
]
KEPT, LENGTHS = value("kept", ["n"], TensorProto.BOOL), value("lengths", ["l"], TensorProto.INT64)


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("sequence", [False, True])
def test_a_part_without_elements_is_an_error_where_other_parts_have_some(
    tmp_path: Path, sequence: bool, within: bool
) -> None:
    nodes, given = (SEQUENCE, LENGTHS) if sequence else (PARTS, KEPT)
    condition = [value("c", [], TensorProto.BOOL)] if within else []
    end = in_if(nodes, "joined") if within else None
    made = untyped(
        [end] if end is not None else [*nodes, node("Identity", "joined", "y")], [X, given, *condition], two=TWO
    )
    compile_model(save(tmp_path, made), tmp_path / "m.hcb", devices="ORT", check=False)
    right, wrong = ([2, 2], [2, 2, 0]) if sequence else ([True, False, False, True], [False] * 4)
    dtype = np.int64 if sequence else bool

    def feed(chosen: list[int]) -> dict[str, np.ndarray]:
        more = {"c": np.array(True)} if within else {}
        return {"x": np.ones((4, 3), np.float32), given.name: np.array(chosen, dtype), **more}

    with load(tmp_path / "m.hcb") as session:
        found = session.run(feed(right))["y"]
        assert found.shape == ((3, 2, 3) if sequence else (2, 6)) and found.sum() == (24 if sequence else 18)
        with pytest.raises(HeteroccError, match=r"Concat.* '.*': the parts do not have all elements"):
            session.run(feed(wrong))


def test_parts_without_elements_along_the_axis_are_joined(tmp_path: Path) -> None:
    nodes = [node("Compress", "x kept", "part", axis=0), node("Concat", "part two", "joined", axis=0)]
    made = untyped([in_if(nodes, "joined")], [X, KEPT, value("c", [], TensorProto.BOOL)], two=TWO)
    compile_model(save(tmp_path, made), tmp_path / "m.hcb", devices="ORT", check=False)
    with load(tmp_path / "m.hcb") as session:
        feed = {"x": np.ones((4, 3), np.float32), "kept": np.zeros(4, bool), "c": np.array(True)}
        assert session.run(feed)["y"].tolist() == TWO.tolist()


def test_a_body_has_one_check_of_all_its_concatenations() -> None:
    nodes = [
        *PARTS,
        node("Compress", "two kept", "rest", axis=0),
        node("Concat", "joined rest", "wide", axis=1),
        node("Concat", "rest rest", "unused", axis=0),
    ]
    made = untyped(
        [in_if(nodes, "wide")], [X, value("kept", ["k"], TensorProto.BOOL), value("c", [], TensorProto.BOOL)], two=TWO
    )
    with_counted_parts(made, ())
    body = next(a.g for a in made.graph.node[0].attribute if a.name == "then_branch")
    assert [n.op_type for n in body.node].count("Div") == 1
    assert [n.op_type for n in body.node].count("Size") == 6
    session = reference_session(made)

    def feed(*kept: bool) -> dict[str, np.ndarray]:
        return {"x": np.ones((2, 3), np.float32), "kept": np.array(kept), "c": np.array(True)}

    assert session.run(None, feed(True, True))[0].shape == (2, 9)
    with pytest.raises(Exception, match=r"Concat.* '.*': the parts do not have all elements"):
        session.run(None, feed(False, False))

"""Sizes of 0 that ONNX Runtime cannot compute with, in places where no condition of a bundle reaches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.artifacts.errors import HeteroccError, InputValueError
from heterocc.compiler import compile_model
from heterocc.compiler.importer.onnx_tools.filled import with_filled_sizes
from heterocc.runtime import load
from tests.compiler.onnx_build import model, node, save, value
from tests.reference import reference_session

RNG = np.random.default_rng(0)
W, R = RNG.random((1, 12, 3), np.float32), RNG.random((1, 12, 4), np.float32)
BOOL, INT64, UINT8 = TensorProto.BOOL, TensorProto.INT64, TensorProto.UINT8
GRU = node("GRU", "x w r", "- last", hidden_size=4)
X = value("x", ["steps", "batch", 3])


def graph(nodes: list[onnx.NodeProto], output: str, inputs: tuple[onnx.ValueInfoProto, ...] = ()) -> onnx.GraphProto:
    return helper.make_graph(nodes, output, list(inputs), [onnx.ValueInfoProto(name=output)])


def untyped(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], **constants: np.ndarray) -> onnx.ModelProto:
    made = model(nodes, inputs, [value("y")], constants)
    made.graph.output[0].ClearField("type")
    return made


def in_if(nodes: list[onnx.NodeProto], output: str) -> onnx.NodeProto:
    zero = helper.make_node("Constant", [], ["zero"], value=numpy_helper.from_array(np.zeros(1, np.float32)))
    return helper.make_node("If", ["c"], ["y"], then_branch=graph(nodes, output), else_branch=graph([zero], "zero"))


def in_loop(nodes: list[onnx.NodeProto], output: str) -> onnx.NodeProto:
    ends = (value("i", [], INT64), value("before", [], BOOL))
    body = graph([*nodes, node("Identity", "before", "after")], "after", ends)
    body.output.append(onnx.ValueInfoProto(name=output))
    return helper.make_node("Loop", ["n", ""], ["y"], body=body)


FEEDS = {"c": np.array(True), "n": np.array(2)}
ENDS = {"c": value("c", [], BOOL), "n": value("n", [], INT64)}


@pytest.mark.parametrize(("place", "given"), [(in_if, "c"), (in_loop, "n")])
def test_a_recurrent_layer_in_a_body_has_steps_and_a_batch(tmp_path: Path, place, given: str) -> None:  # type: ignore[no-untyped-def]
    made = untyped([place([GRU], "last")], [ENDS[given], X], w=W, r=R)
    compile_model(save(tmp_path, made), tmp_path / "m.hcb", devices="ORT")

    def feed(*sizes: int) -> dict[str, np.ndarray]:
        return {given: FEEDS[given], "x": np.ones((*sizes, 3), np.float32)}

    with load(tmp_path / "m.hcb") as session:
        expected = reference_session(made).run(None, feed(2, 1))[0]
        np.testing.assert_allclose(session.run(feed(2, 1))["y"], expected, rtol=1e-5)
        for sizes in ((0, 1), (2, 0)):
            with pytest.raises(InputValueError, match=r"GRU '.*': input 0 needs sizes of 1 or more"):
                session.run(feed(*sizes))


def test_a_size_that_only_the_run_knows_is_checked_by_it(tmp_path: Path) -> None:
    nodes = [node("Compress", "x kept", "some", axis=1), node("GRU", "some w r", "- y", hidden_size=4)]
    made = untyped(nodes, [X, value("kept", ["batch"], BOOL)], w=W, r=R)
    compile_model(save(tmp_path, made), tmp_path / "m.hcb", devices="ORT")
    x = np.ones((2, 3, 3), np.float32)
    with load(tmp_path / "m.hcb") as session:
        assert session.run({"x": x, "kept": np.array([True, False, True])})["y"].shape == (1, 2, 4)
        with pytest.raises(InputValueError, match=r"GRU '.*': input 0 needs sizes of 1 or more"):
            session.run({"x": x, "kept": np.zeros(3, bool)})


@pytest.mark.parametrize("fixed", [True, False])
def test_a_layer_without_steps_does_not_end_the_compile(tmp_path: Path, fixed: bool) -> None:
    """It is in the graph at a fixed size, or of constants, which the import computes."""
    x, nodes = np.ones((0, 1, 3), np.float32), [node("GRU", "x w r", "- last", hidden_size=4)]
    if fixed:
        made = untyped([*nodes, node("Identity", "last", "y")], [value("x", x.shape)], w=W, r=R)
    else:
        made = untyped([*nodes, node("Add", "last a", "y")], [value("a", ["n"])], w=W, r=R, x=x)
    with pytest.raises(HeteroccError, match=r"sizes of 1 or more|refuses"):
        compile_model(save(tmp_path, made), tmp_path / "m.hcb", devices="ORT", check=not fixed)
        load(tmp_path / "m.hcb").run({"x": x})


@pytest.mark.parametrize("operator", ["MatMul", "Gemm"])
def test_a_product_that_onnx_runtime_computes_with_bytes_has_terms(tmp_path: Path, operator: str) -> None:
    scales = {"s": np.array(0.1, np.float32), "z": np.array(3, np.uint8)}
    nodes = [
        *(node("DequantizeLinear", f"{name} s z", f"{name}_float") for name in "ab"),
        node(operator, "a_float b_float", "product"),
        node("QuantizeLinear", "product s z", "y"),
    ]
    made = untyped(nodes, [value("a", ["n", "k"], UINT8), value("b", ["k", 4], UINT8)], **scales)
    compile_model(save(tmp_path, made), tmp_path / "m.hcb", devices="ORT")
    with load(tmp_path / "m.hcb") as session:
        feed = {"a": np.full((3, 2), 5, np.uint8), "b": np.full((2, 4), 7, np.uint8)}
        assert session.run(feed)["y"].tolist() == [[5] * 4] * 3
        with pytest.raises(HeteroccError, match="1 or more"):
            session.run({"a": np.ones((3, 0), np.uint8), "b": np.ones((0, 4), np.uint8)})


def test_sizes_that_constants_give_need_no_check() -> None:
    """Names of one branch say nothing of the other one's."""
    weights = numpy_helper.from_array(np.ones((2, 4), np.uint8), "b")
    branches = [graph([node("MatMulInteger", "a b", f"y{place}")], f"y{place}") for place in range(2)]
    branches[0].initializer.append(weights)
    branches[1].node.insert(0, node("Identity", "c", "b"))
    choice = helper.make_node("If", ["is"], ["y"], then_branch=branches[0], else_branch=branches[1])
    bytes_of = [value(name, None, UINT8) for name in ("a", "c")]
    made = untyped([choice], [value("is", [], BOOL), *bytes_of])
    with_filled_sizes(made)
    first, second = (
        a.g for name in ("then_branch", "else_branch") for a in made.graph.node[0].attribute if a.name == name
    )
    assert [n.op_type for n in first.node] == ["MatMulInteger"]
    assert {"Identity", "Div", "Reshape", "MatMulInteger"} < {n.op_type for n in second.node}
    session = reference_session(made)
    feed = {"is": np.array(False), "a": np.ones((3, 0), np.uint8), "c": np.ones((0, 4), np.uint8)}
    with pytest.raises(Exception, match=r"MatMulInteger '.*': input 0 needs sizes of 1 or more"):
        session.run(None, feed)
    filled = {**feed, "a": np.ones((3, 2), np.uint8), "c": np.ones((2, 4), np.uint8)}
    assert session.run(None, filled)[0].tolist() == [[2] * 4] * 3


def test_sizes_in_a_function_are_checked() -> None:
    imports = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "F", ["x", "w", "r"], ["last"], [GRU], imports)
    made = model(
        [node("F", "x w r", "y", domain="own")],
        [X],
        [value("y")],
        {"w": W, "r": R},
        domains=[("own", 1)],
        functions=[function],
    )
    with_filled_sizes(made)
    session = reference_session(made)
    assert session.run(None, {"x": np.ones((2, 1, 3), np.float32)})[0].shape == (1, 1, 4)
    with pytest.raises(Exception, match=r"GRU '.*': input 0 needs sizes of 1 or more"):
        session.run(None, {"x": np.ones((0, 1, 3), np.float32)})

"""A whole model in ONNX Runtime is the model as it was given, where nothing has to be replaced in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.compiler.importer.estimates.work import FLOPS_PER_BYTE
from heterocc.compiler.lower.ort.left_constants import left_constants
from heterocc.passes.graph import Value
from heterocc.runtime import load
from tests.compiler.onnx_build import noise
from tests.compiler.small import save
from tests.reference import reference_session

NODE = helper.make_node


def operators(bundle: Path) -> list[str]:
    """The operators of the only partition, as ONNX Runtime gets it."""
    with open_bundle(bundle) as opened:
        (part,) = opened.manifest.variants[0].partitions
        return [node.op_type for node in onnx.load_model_from_string(bytes(opened.member(part.code))).graph.node]


def normalised(path: Path) -> Path:
    """A product of a large weight whose result is scaled and shifted, which the import writes into the weight."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((8, 4, 3, 3), dtype=np.float32)}
    weights |= {name: rng.random(8, dtype=np.float32) for name in ("scale", "shift", "mean", "variance")}
    nodes = [
        NODE("Conv", ["x", "w"], ["c"]),
        NODE("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["b"]),
        NODE("Sub", ["b", "less"], ["y"]),
    ]
    return save(path, nodes, {"less": ["n", 8, 1, 1], "x": ["n", 4, 6, 6]}, {"y": None}, weights)


def test_nodes_that_the_import_joins_are_left_to_onnx_runtime(tmp_path: Path) -> None:
    path = normalised(tmp_path / "m.onnx")
    compile_model(path, tmp_path / "m.hcb", devices="ORT")
    assert operators(tmp_path / "m.hcb") == ["Conv", "BatchNormalization", "Sub"]
    feed = {"x": noise(2, 4, 6, 6), "less": noise(2, 8, 1, 1)}
    (right,) = reference_session(path).run(None, feed)
    with load(tmp_path / "m.hcb") as session:
        for _ in range(3):
            np.testing.assert_allclose(session.run(feed)["y"], right, rtol=1e-4, atol=1e-5)


def test_a_constant_that_only_a_node_left_to_the_run_reads_is_given_once(tmp_path: Path) -> None:
    ones = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    nodes = [
        NODE("ConstantOfShape", ["s"], ["w"], value=ones),
        NODE("NonZero", ["w"], ["z"]),
        NODE("Cast", ["z"], ["f"], to=1),
        NODE("ReduceSum", ["f"], ["r"], keepdims=0),
        NODE("Mul", ["x", "r"], ["y"]),
    ]
    save(tmp_path / "m.onnx", nodes, {"x": [2]}, {"y": None}, {"s": np.array([2_100_000, 1, 1])})
    compile_model(tmp_path / "m.onnx", tmp_path / "m.hcb", devices="ORT", check=False)
    with load(tmp_path / "m.hcb") as session:
        np.testing.assert_allclose(session.run({"x": np.ones(2, np.float32)})["y"], 2_100_000**2 / 2, rtol=1e-2)


def test_onnx_runtime_does_not_compute_a_long_constant_when_it_loads_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    product = NODE("MatMul", ["w", "w"], ["w2"])
    values = {name: Value(name, "float32", (64, 64)) for name in ("w", "w2")}
    assert not list(left_constants([product], {"w"}, values))
    monkeypatch.setattr("heterocc.compiler.lower.ort.left_constants.LONG", 2 * 64**3 // FLOPS_PER_BYTE)
    assert list(left_constants([product], {"w"}, values)) == [product]


def test_the_import_takes_the_place_of_a_model_with_an_input_that_nothing_reads(tmp_path: Path) -> None:
    nodes = [NODE("Mul", ["x", "zero"], ["z"]), NODE("Shape", ["unread"], ["s"]), NODE("Add", ["x", "z"], ["y"])]
    save(tmp_path / "m.onnx", nodes, {"unread": [3], "x": ["n", 4]}, {"y": None}, {"zero": np.zeros(4, np.float32)})
    compile_model(tmp_path / "m.onnx", tmp_path / "m.hcb", devices="ORT")
    with load(tmp_path / "m.hcb") as session:
        x = noise(2, 4)
        np.testing.assert_array_equal(session.run({"x": x, "unread": noise(3)})["y"], x)


@pytest.mark.parametrize("typed", [True, False])
def test_quotients_that_would_end_the_process_are_replaced(tmp_path: Path, typed: bool) -> None:
    nodes = [NODE("Identity", ["a"], ["c"]), NODE("Div", ["c", "b"], ["q"]), NODE("Identity", ["q"], ["y"])]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT32, ["n"]) for name in "ab"]
    output = helper.make_tensor_value_info("y", TensorProto.INT32, ["n"] if typed else None)
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, [output]), opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    compile_model(model, tmp_path / "m.hcb", devices="ORT")
    assert "Neg" in operators(tmp_path / "m.hcb")
    least = np.iinfo(np.int32).min
    with load(tmp_path / "m.hcb") as session:
        found = session.run({"a": np.array([least, 7], np.int32), "b": np.array([-1, 2], np.int32)})["y"]
        assert found.tolist() == [least, 3]

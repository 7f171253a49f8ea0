"""Folding of constants, and of operations after a convolution, by the import."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.onnx_build import (
    F32,
    conv_chain,
    imported_like,
    model,
    node,
    noise,
    op_types,
    save,
    value,
)

BOOL = TensorProto.BOOL


# ---- folding --------------------------------------------------------------------------------------------------------


def test_shape_arithmetic_becomes_a_constant(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n"),
        node("Unsqueeze", "n axes", "n1"),
        node("Concat", "n1 minus", "shape", axis=0),
        node("Reshape", "x shape", "y"),
    ]
    constants = {"zero": np.array(0), "axes": np.array([0]), "minus": np.array([-1])}
    proto = model(nodes, [value("x", ["n", 3, 4])], [value("y")], constants)
    found = imported_like(save(tmp_path, proto), {"x": noise(2, 3, 4)}, {"x": [2, 3, 4]})
    assert op_types(found) == ["Reshape"]
    assert found.graph.values["y"].shape == (2, 12)
    assert found.weights["shape"].tolist() == [2, -1]


def test_every_form_of_constant_node_becomes_a_constant(tmp_path: Path) -> None:
    forms = {
        "value": numpy_helper.from_array(noise(2)),
        "value_float": 0.5,
        "value_floats": [1.0, 2.0],
        "value_int": 3,
        "value_ints": [4, 5],
    }
    nodes = [node("Constant", "", f"c{i}", **{k: v}) for i, (k, v) in enumerate(forms.items())]
    nodes += [node("Cast", "c3", "d3", to=F32), node("Cast", "c4", "d4", to=F32)]
    nodes += [node("Sum", "x c0 c1 c2 d3 d4", "y")]
    found = imported_like(save(tmp_path, model(nodes, [value("x", [2])], [value("y")])), {"x": noise(2)})
    assert op_types(found) == ["Sum"]


def test_what_has_no_elements_is_a_constant_and_nothing_computes_it(tmp_path: Path) -> None:
    nodes = [
        node("Slice", "x two two", "none"),
        node("MatMul", "none w", "product"),
        node("TopK", "none one", "best index", axis=1),
        node("Concat", "product y0", "y", axis=0),
        node("Cast", "index", "i", to=F32),
    ]
    constants = {"two": np.array([2]), "one": np.array([1]), "w": noise(3, 5), "y0": noise(2, 5)}
    outputs = [value("y"), value("best"), value("i"), value("product")]
    proto = model(nodes, [value("x", [4, 3]), value("unread", [0, 3])], outputs, constants)
    found = imported_like(save(tmp_path, proto), {"x": noise(4, 3), "unread": noise(0, 3)})
    assert op_types(found) == []
    assert found.weights["best"].shape == (0, 1) and found.weights["i"].dtype == np.float32


def test_an_input_without_elements_is_a_constant_to_its_readers(tmp_path: Path) -> None:
    nodes = [node("ReduceSum", "x axes", "y", keepdims=1)]
    proto = model(nodes, [value("x", [2, 3]), value("axes", [0], TensorProto.INT64)], [value("y")], opset=18)
    feeds = {"x": noise(2, 3), "axes": np.zeros(0, np.int64)}
    found = imported_like(save(tmp_path, proto), feeds)
    assert found.graph.inputs == ("x", "axes")
    assert found.graph.values["y"].shape == (1, 1)


def test_large_constants_are_folded_without_entering_a_proto(tmp_path: Path) -> None:
    proto = model(
        [node("Transpose", "w", "t"), node("MatMul", "x t", "y")],
        [value("x", [1, 300])],
        [value("y")],
        {"w": noise(200, 300)},
    )
    found = imported_like(save(tmp_path, proto), {"x": noise(1, 300)})
    assert op_types(found) == ["MatMul"]
    assert found.weights["t"].shape == (300, 200) and "w" not in found.weights
    assert len(found.proto.SerializeToString()) < 2000


def test_a_small_file_that_asks_for_a_huge_constant_is_not_folded(tmp_path: Path) -> None:
    proto = model(
        [node("ConstantOfShape", "s", "big"), node("ReduceSum", "big", "r", keepdims=0), node("Add", "x r", "y")],
        [value("x", [1])],
        [value("y")],
        {"s": np.array([2**20, 2**20])},
    )
    assert "ConstantOfShape" in op_types(import_model(save(tmp_path, proto)))


@pytest.mark.parametrize("op_type", ["RandomNormal", "RandomUniform"])
def test_random_numbers_are_drawn_at_run_time(tmp_path: Path, op_type: str) -> None:
    proto = model([node(op_type, "", "r", shape=[4]), node("Add", "x r", "y")], [value("x", [4])], [value("y")])
    assert op_types(import_model(save(tmp_path, proto))) == [op_type, "Add"]


def test_quantised_weights_stay_quantised(tmp_path: Path) -> None:
    constants = {"q": np.arange(12, dtype=np.int8).reshape(3, 4), "s": np.float32(0.1), "z": np.int8(0)}
    constants = {k: np.asarray(v) for k, v in constants.items()}
    proto = model(
        [node("DequantizeLinear", "q s z", "w"), node("MatMul", "x w", "y")],
        [value("x", [1, 3])],
        [value("y")],
        constants,
    )
    found = imported_like(save(tmp_path, proto), {"x": noise(1, 3)})
    assert op_types(found) == ["DequantizeLinear", "MatMul"]


def test_what_onnx_runtime_cannot_fold_is_left_and_the_rest_is_folded(tmp_path: Path) -> None:
    # a bad Reshape fails only when it is computed
    nodes = [node("Neg", "a", "b"), node("Reshape", "a shape", "bad"), node("Add", "x b", "y"), node("Abs", "bad", "z")]
    proto = model(nodes, [value("x", [3])], [value("y"), value("z")], {"a": noise(3)})
    proto.graph.node.insert(0, node("Range", "lo hi step", "shape"))
    for name, number in (("lo", 2), ("hi", 5), ("step", 2)):
        proto.graph.initializer.append(numpy_helper.from_array(np.array(number), name))
    assert op_types(import_model(save(tmp_path, proto))) == ["Reshape", "Add", "Abs"]


def test_identity_and_inference_dropout_vanish_and_outputs_keep_their_names(tmp_path: Path) -> None:
    nodes = [
        node("Identity", "x", "a"),
        node("Dropout", "a", "b -"),
        node("Relu", "b", "c"),
        node("Identity", "c", "d"),
        node("Identity", "d", "y"),
    ]
    found = imported_like(save(tmp_path, model(nodes, [value("x", [3])], [value("y")])), {"x": noise(3)})
    assert op_types(found) == ["Relu"]
    assert found.graph.outputs == ("y",)


@pytest.mark.parametrize("op", ["Concat", "Max", "Mean", "Min", "Sum"])
def test_operators_of_several_inputs_vanish_if_they_have_one(op: str, tmp_path: Path) -> None:
    axis = {"axis": 1} if op == "Concat" else {}
    nodes = [node(op, "x", "a", **axis), node(op, "a x", "b", **axis), node(op, "b", "y", **axis)]
    found = imported_like(save(tmp_path, model(nodes, [value("x", [2, 3])], [value("y")])), {"x": noise(2, 3)})
    assert op_types(found) == [op]
    assert found.graph.outputs == ("y",)


def test_two_outputs_of_one_value_both_survive(tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "a"), node("Identity", "a", "y"), node("Identity", "a", "z")]
    proto = model(nodes, [value("x", [3])], [value("y"), value("z")])
    found = imported_like(save(tmp_path, proto), {"x": noise(3)})
    assert found.graph.outputs == ("y", "z")


def test_what_contributes_to_no_output_is_dropped(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y"), node("Abs", "x", "dead")], [value("x", [3])], [value("y")], {"w": noise(9)})
    found = import_model(save(tmp_path, proto))
    assert op_types(found) == ["Relu"] and not found.weights


# ---- fusing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
def test_what_follows_a_convolution_goes_into_its_weights_and_keeps_its_names(tmp_path: Path, bias: bool) -> None:
    nodes, constants = conv_chain(bias=bias)
    proto = model(nodes, [value("x", [1, 3, 8, 8])], [value("y")], constants)
    found = imported_like(save(tmp_path, proto), {"x": noise(1, 3, 8, 8)})
    assert op_types(found) == ["Conv"]
    assert found.graph.nodes[0].original == ("conv", "norm", "scale", "shift")


def test_a_convolution_that_others_read_is_left_alone(tmp_path: Path) -> None:
    nodes, constants = conv_chain()
    proto = model([*nodes, node("Relu", "c", "z")], [value("x", [1, 3, 8, 8])], [value("y"), value("z")], constants)
    found = imported_like(save(tmp_path, proto), {"x": noise(1, 3, 8, 8)})
    assert op_types(found) == ["Conv", "BatchNormalization", "Mul", "Add", "Relu"]


def test_a_convolution_pinned_elsewhere_is_left_alone(tmp_path: Path) -> None:
    nodes, constants = conv_chain()
    nodes[1].metadata_props.add(key="affinity", value="CPU")
    proto = model(nodes, [value("x", [1, 3, 8, 8])], [value("y")], constants)
    found = imported_like(save(tmp_path, proto), {"x": noise(1, 3, 8, 8)})
    assert op_types(found)[:2] == ["Conv", "BatchNormalization"]


def test_a_factor_that_is_not_per_channel_is_left_alone(tmp_path: Path) -> None:
    nodes = [node("Conv", "x w", "c"), node("Mul", "c k", "y")]
    proto = model(nodes, [value("x", [1, 3, 8, 8])], [value("y")], {"w": noise(6, 3, 3, 3), "k": noise(6)})
    assert op_types(imported_like(save(tmp_path, proto), {"x": noise(1, 3, 8, 8)})) == ["Conv", "Mul"]

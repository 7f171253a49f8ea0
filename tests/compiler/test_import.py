import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_build import (
    F32,
    I64,
    assert_close,
    imported_like,
    model,
    node,
    noise,
    op_types,
    run_imported,
    run_original,
    save,
    value,
)

from heterocc.compiler.onnx_import import import_model
from heterocc.compiler.onnx_names import MAX_LENGTH, Namer

BOOL = TensorProto.BOOL

# ---- shapes -------------------------------------------------------------------------------------------------------


def test_a_symbol_fixed_in_one_input_is_fixed_in_all(tmp_path: Path) -> None:
    proto = model([node("Add", "a b", "y")], [value("a", ["n", 3]), value("b", ["n", 3])], [value("y")])
    found = import_model(save(tmp_path, proto), shapes={"a": [2, 3]})
    assert found.graph.values["b"].shape == found.graph.values["y"].shape == (2, 3)


def test_question_marks_are_no_symbol(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")], [value("x", ["?", "?"])], [value("y")])
    assert import_model(save(tmp_path, proto), shapes={"x": [2, 5]}).graph.values["y"].shape == (2, 5)


def test_stale_shapes_in_the_file_are_not_believed(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "a"), node("Abs", "a", "y")], [value("x", ["n"])], [value("y", [7])])
    proto.graph.value_info.append(value("a", [7]))
    found = imported_like(save(tmp_path, proto), {"x": noise(3)}, {"x": [3]})
    assert found.graph.values["a"].shape == found.graph.values["y"].shape == (3,)


def test_a_value_that_only_a_run_can_size_keeps_an_open_dimension(tmp_path: Path) -> None:
    proto = model([node("NonZero", "x", "y")], [value("x", [2, 3])], [value("y", None, I64)])
    found = imported_like(save(tmp_path, proto), {"x": np.eye(2, 3, dtype=np.float32)})
    assert found.graph.values["y"].shape == (2, None)


def test_shapes_are_those_of_onnx_runtime_where_the_two_differ(tmp_path: Path) -> None:
    # ONNX's inference gives 512 instead of 257 frequencies when the attribute onesided is left to its default
    proto = model(
        [node("STFT", "x step window", "f"), node("Shape", "f", "y")],
        [value("x", [1, 8512, 1])],
        [value("y", None, I64)],
        {"step": np.array(160), "window": noise(512)},
    )
    found = imported_like(save(tmp_path, proto), {"x": noise(1, 8512, 1)})
    assert found.weights["y"].tolist() == [1, 51, 257, 2]


# ---- folding ------------------------------------------------------------------------------------------------------


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
    try:
        found = import_model(save(tmp_path, proto))
    except Exception as error:
        assert getattr(error, "code", "") == "HC103"
    else:
        assert "Reshape" in op_types(found) and "Neg" not in op_types(found)


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


def test_two_outputs_of_one_value_both_survive(tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "a"), node("Identity", "a", "y"), node("Identity", "a", "z")]
    proto = model(nodes, [value("x", [3])], [value("y"), value("z")])
    found = imported_like(save(tmp_path, proto), {"x": noise(3)})
    assert found.graph.outputs == ("y", "z")


def test_what_contributes_to_no_output_is_dropped(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y"), node("Abs", "x", "dead")], [value("x", [3])], [value("y")], {"w": noise(9)})
    found = import_model(save(tmp_path, proto))
    assert op_types(found) == ["Relu"] and not found.weights


# ---- fusing -------------------------------------------------------------------------------------------------------


def conv_chain(*, bias: bool = True, dtype: type = np.float32) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    constants = {
        "w": noise(4, 3, 3, 3),
        "b": noise(4, seed=1),
        "gamma": noise(4, seed=2),
        "beta": noise(4, seed=3),
        "mean": noise(4, seed=4),
        "var": np.abs(noise(4, seed=5)) + 0.1,
        "m": noise(4, 1, 1, seed=6),
        "a": noise(1, seed=7),
    }
    nodes = [
        node("Conv", "x w b" if bias else "x w", "c", "conv"),
        node("BatchNormalization", "c gamma beta mean var", "n", "norm"),
        node("Mul", "m n", "p", "scale"),
        node("Add", "p a", "y", "shift"),
    ]
    if not bias:
        del constants["b"]
    return nodes, {k: v.astype(dtype) for k, v in constants.items()}


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


# ---- control flow -------------------------------------------------------------------------------------------------


def branch(
    name: str, *nodes: onnx.NodeProto, output: str = "r", constants: dict[str, np.ndarray] | None = None
) -> object:
    tensors = [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()]
    return helper.make_graph(list(nodes), name, [], [onnx.ValueInfoProto(name=output)], tensors)


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


# ---- functions ----------------------------------------------------------------------------------------------------


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


# ---- operator sets ------------------------------------------------------------------------------------------------

OLD = {
    "upsample-9": (
        [node("Upsample", "x scales", "y", mode="nearest")],
        9,
        {"scales": np.array([1, 1, 2, 2], np.float32)},
    ),
    "upsample-linear-9": (
        [node("Upsample", "x scales", "y", mode="linear")],
        9,
        {"scales": np.array([1, 1, 2, 2], np.float32)},
    ),
    "upsample-7": ([node("Upsample", "x", "y", mode="nearest", scales=[1.0, 1.0, 2.0, 3.0])], 7, {}),
    "resize-10": (
        [node("Resize", "x scales", "y", mode="nearest")],
        10,
        {"scales": np.array([1, 1, 2, 2], np.float32)},
    ),
    "softmax-11": ([node("Softmax", "x", "y", axis=1)], 11, {}),
    "log-softmax-11": ([node("LogSoftmax", "x", "y")], 11, {}),
    "dropout-7": ([node("Dropout", "x", "y", ratio=0.5)], 7, {}),
    "slice-9": ([node("Slice", "x", "y", axes=[2, 3], starts=[1, -3], ends=[4, 9223372036854775807])], 9, {}),
    "pad-10": ([node("Pad", "x", "y", pads=[0, 0, 1, 2, 0, 0, 1, 0], value=0.5)], 10, {}),
    "clip-6": ([node("Clip", "x", "y", min=-0.5, max=0.5)], 9, {}),
    "reduce-sum-11": ([node("ReduceSum", "x", "y", axes=[1, 2], keepdims=0)], 11, {}),
    "squeeze-11": ([node("Unsqueeze", "x", "u", axes=[0]), node("Squeeze", "u", "y", axes=[0, 1])], 11, {}),
    "split-11": ([node("Split", "x", "a y", axis=1, split=[1, 2])], 11, {}),
    "top-k-9": ([node("TopK", "x", "y i", k=3)], 9, {}),
    "batch-norm-8": (
        [node("BatchNormalization", "x s s s v", "y")],
        8,
        {"s": noise(3), "v": np.abs(noise(3)) + 0.1},
    ),
    "cast-9": ([node("Cast", "x", "c", to=I64), node("Cast", "c", "y", to=F32)], 9, {}),
    "gemm-9": (
        [node("Flatten", "x", "f"), node("Gemm", "f w b", "y", transB=1)],
        9,
        {"w": noise(4, 75), "b": noise(4)},
    ),
    "max-pool-8": ([node("MaxPool", "x", "y", kernel_shape=[2, 2], auto_pad="SAME_UPPER")], 8, {}),
    "p-relu-9": ([node("PRelu", "x s", "y")], 9, {"s": noise(3, 1, 1)}),
    "scan-of-means-12": ([node("ReduceMean", "x", "m", axes=[-1]), node("Sub", "x m", "y")], 12, {}),
    "hard-swish-14": ([node("HardSwish", "x", "y")], 14, {}),
    "dynamic-quantize-11": (
        [node("DynamicQuantizeLinear", "x", "q s z"), node("DequantizeLinear", "q s z", "y")],
        11,
        {},
    ),
    "instance-norm-7": ([node("InstanceNormalization", "x s b", "y")], 7, {"s": noise(3), "b": noise(3)}),
    "equal-9": (
        [
            node("Floor", "x", "f"),
            node("Cast", "f", "c", to=I64),
            node("Equal", "c c", "e"),
            node("Cast", "e", "y", to=F32),
        ],
        9,
        {},
    ),
}


@pytest.mark.parametrize("case", OLD)
def test_older_operator_sets_are_raised_and_mean_the_same(tmp_path: Path, case: str) -> None:
    nodes, opset, constants = OLD[case]
    for index, made in enumerate(nodes):
        made.name = f"n{index}"
    proto = model(nodes, [value("x", [1, 3, 5, 5])], [value("y")], constants, opset=opset, ir_version=4)
    found = imported_like(save(tmp_path, proto), {"x": noise(1, 3, 5, 5)})
    assert found.opsets[""] == 17 and not found.notes
    assert all(set(n.original) <= {m.name for m in nodes} for n in found.graph.nodes)


@pytest.mark.parametrize(
    ("made", "settled"), [(node("Relu", "x", "y"), 17), (node("Gelu", "x", "y"), 20), (node("Swish", "x", "y"), 17)]
)
def test_newer_operator_sets_are_lowered_as_far_as_nothing_changes(
    tmp_path: Path, made: onnx.NodeProto, settled: int
) -> None:
    proto = model([made], [value("x", [3])], [value("y")], opset=24, ir_version=12)
    found = import_model(save(tmp_path, proto))
    assert found.opsets[""] == settled and found.proto.ir_version == 10
    expected = [np.asarray(r) for r in ReferenceEvaluator(proto).run(None, {"x": noise(3)})]
    assert_close(run_imported(found, {"x": noise(3)}), expected)


def test_a_model_that_cannot_be_raised_stays_as_it_is_and_says_so(tmp_path: Path) -> None:
    choose = node(
        "If",
        "c",
        "y",
        then_branch=branch("t", node("Softmax", "x", "r", axis=1)),
        else_branch=branch("e", node("Relu", "x", "r")),
    )
    proto = model([choose], [value("x", [2, 3, 4]), value("c", [], BOOL)], [value("y")], opset=11)
    found = imported_like(save(tmp_path, proto), {"x": noise(2, 3, 4), "c": np.array(True)})
    assert found.opsets[""] == 11
    assert any("operator set 11" in note and "Softmax" in note for note in found.notes)


def test_affinity_survives_a_raised_operator_set_and_fused_neighbours(tmp_path: Path) -> None:
    nodes, constants = conv_chain()
    for made in nodes:
        made.metadata_props.add(key="affinity", value="OPENCL")
    nodes.append(node("Softmax", "y", "z", "last"))
    nodes[-1].metadata_props.add(key="affinity", value="CPU")
    proto = model(nodes, [value("x", [1, 3, 8, 8])], [value("z")], constants, opset=11)
    found = imported_like(save(tmp_path, proto), {"x": noise(1, 3, 8, 8)})
    assert found.graph.nodes[0].affinity == "OPENCL"
    assert {n.affinity for n in found.graph.nodes[1:]} == {"CPU"}


def test_initializers_listed_as_inputs_are_constants(tmp_path: Path) -> None:
    proto = model(
        [node("Add", "x w", "y")], [value("x", [3]), value("w", [3])], [value("y")], {"w": noise(3)}, ir_version=3
    )
    found = import_model(save(tmp_path, proto))
    assert found.graph.inputs == ("x",) and found.graph.constants == {"w"}


# ---- odd graphs ---------------------------------------------------------------------------------------------------


def test_constants_inputs_and_one_value_twice_may_be_outputs_and_inputs_unused(tmp_path: Path) -> None:
    proto = model(
        [node("Relu", "x", "y")],
        [value("x", [3]), value("spare", [2])],
        [value("y"), value("x", [3]), value("k", [300])],
        {"k": noise(300)},
    )
    found = imported_like(save(tmp_path, proto), {"x": noise(3), "spare": noise(2)})
    assert found.graph.inputs == ("x", "spare") and found.graph.outputs == ("y", "x", "k")


def test_an_output_listed_twice_is_given_once_and_noted(tmp_path: Path) -> None:
    proto = model([node("Relu", "x", "y")], [value("x", [3])], [value("y"), value("y")])
    found = import_model(save(tmp_path, proto))
    assert found.graph.outputs == ("y",) and "more than once" in found.notes[0]


def test_nodes_in_any_order_come_out_sorted(tmp_path: Path) -> None:
    nodes = [node("Abs", "b", "y"), node("Neg", "a", "b"), node("Relu", "x", "a")]
    found = import_model(save(tmp_path, model(nodes, [value("x", [3])], [value("y")])))
    assert op_types(found) == ["Relu", "Neg", "Abs"]
    assert_close(run_imported(found, {"x": noise(3)}), [-np.maximum(noise(3), 0) * -1])


def test_absent_optional_inputs_are_skipped_in_the_graph_and_kept_in_the_model(tmp_path: Path) -> None:
    proto = model([node("Clip", "x - hi", "y")], [value("x", [3])], [value("y")], {"hi": np.array(0.1, np.float32)})
    found = imported_like(save(tmp_path, proto), {"x": noise(3)})
    assert found.graph.nodes[0].inputs == ("x", "hi")
    assert list(found.proto.graph.node[0].input) == ["x", "", "hi"]


def test_sparse_initializers_become_dense(tmp_path: Path) -> None:
    proto = model([node("MatMul", "x w", "y")], [value("x", [1, 2])], [value("y")])
    values = numpy_helper.from_array(np.array([2, 3], np.float32), "w")
    indices = numpy_helper.from_array(np.array([[0, 1], [1, 2]]), "i")
    proto.graph.sparse_initializer.add(values=values, indices=indices, dims=[2, 3])
    found = import_model(save(tmp_path, proto))
    assert found.weights["w"].tolist() == [[0, 2, 0], [0, 0, 3]]


def test_sequences_maps_and_strings_stay_as_opaque_values(tmp_path: Path) -> None:
    nodes = [
        node("SplitToSequence", "x", "s", "split"),
        node("SequenceLength", "s", "n", "count"),
        node("LabelEncoder", "n", "y", "label", domain="ai.onnx.ml", keys_int64s=[3], values_strings=["three"]),
    ]
    proto = model(nodes, [value("x", [3])], [value("y", None, TensorProto.STRING)], domains=[("ai.onnx.ml", 2)])
    found = imported_like(save(tmp_path, proto), {"x": noise(3)})
    assert op_types(found) == ["SplitToSequence", "SequenceLength", "ai.onnx.ml::LabelEncoder"]
    assert found.graph.values["s"].dtype == "seq(tensor(float))" and found.graph.values["s"].is_opaque
    assert found.graph.values["y"].dtype == "string"
    part = found.subgraph(["count"], ["s"], ["n"])
    assert part.graph.input[0].type.HasField("sequence_type")


def test_operators_of_onnx_runtime_keep_their_domain_and_get_shapes(tmp_path: Path) -> None:
    nodes = [node("FusedMatMul", "x w", "a", "fused", domain="com.microsoft", alpha=2.0), node("Shape", "a", "y")]
    proto = model(
        nodes, [value("x", [2, 3])], [value("y", None, I64)], {"w": noise(3, 4)}, domains=[("com.microsoft", 1)]
    )
    found = imported_like(save(tmp_path, proto), {"x": noise(2, 3)})
    assert found.weights["y"].tolist() == [2, 4]
    proto.graph.node.pop()
    proto.graph.output[0].CopyFrom(value("a"))
    found = import_model(save(tmp_path, proto))
    assert op_types(found) == ["com.microsoft::FusedMatMul"] and found.graph.values["a"].shape == (2, 4)


# ---- names --------------------------------------------------------------------------------------------------------


def test_names_are_identifiers_unique_without_case_and_short(tmp_path: Path) -> None:
    originals = ["a/b", "a.b", "A_B", "0", "", "float", "main", "é", "_x", "n" * 200, "n" * 201, "a b"]
    nodes, previous = [], "x"
    for index, name in enumerate(originals):
        output = f"{name}:out" if index < len(originals) - 1 else "y/0"
        nodes.append(helper.make_node("Relu" if index % 2 else "Neg", [previous], [output], name=name))
        previous = output
    found = imported_like(save(tmp_path, model(nodes, [value("x", [3])], [value("y/0")])), {"x": noise(3)})
    for names in ([n.name for n in found.graph.nodes], list(found.graph.values)):
        assert len({n.lower() for n in names}) == len(names)
        assert all(re.fullmatch(r"[A-Za-z]\w*", n, re.ASCII) and len(n) <= MAX_LENGTH for n in names)
    assert [n.original for n in found.graph.nodes] == [(name,) if name else () for name in originals]
    assert found.sources == {"x": "x", "y_0": "y/0"}
    assert [n.name for n in found.proto.graph.node] == [n.name for n in found.graph.nodes]
    assert not {"float", "main"} & {n.name for n in found.graph.nodes}


def test_names_stay_as_they_are_where_they_can(tmp_path: Path) -> None:
    proto = model(
        [node("Relu", "x", "act_out", "act"), node("Neg", "act_out", "y", "negate")], [value("x", [3])], [value("y")]
    )
    found = import_model(save(tmp_path, proto))
    assert [n.name for n in found.graph.nodes] == ["act", "negate"]
    assert list(found.graph.values) == ["x", "y", "act_out"]


def test_a_namer_gives_the_same_names_to_the_same_requests() -> None:
    requests = ["a", "A", "a_2", "a", "conv/1"]
    assert [Namer().give(r, "n") for r in requests] == ["a", "A", "a_2", "a", "conv_1"]
    one = Namer()
    assert [one.give(r, "n") for r in requests] == ["a", "A_2", "a_2_2", "a_3", "conv_1"]


# ---- weights and subgraphs ----------------------------------------------------------------------------------------


def test_weights_are_read_only_and_large_ones_are_outside_the_proto(tmp_path: Path) -> None:
    proto = model(
        [node("MatMul", "x w", "m"), node("Add", "m b", "y")],
        [value("x", [1, 20])],
        [value("y")],
        {"w": noise(20, 30), "b": noise(30)},
    )
    found = imported_like(save(tmp_path, proto), {"x": noise(1, 20)})
    assert not any(w.flags.writeable for w in found.weights.values())
    tensors = {t.name: t for t in found.proto.graph.initializer}
    assert tensors["w"].data_location == TensorProto.EXTERNAL and not tensors["w"].raw_data
    assert tensors["w"].external_data[0].value == "heterocc"
    assert tensors["b"].raw_data == found.weights["b"].tobytes()


def test_external_data_is_mapped_and_counts_in_the_digest(tmp_path: Path) -> None:
    def write(folder: str, seed: int) -> Path:
        (tmp_path / folder).mkdir()
        proto = model([node("Add", "x w", "y")], [value("x", [2000])], [value("y")], {"w": noise(2000, seed=seed)})
        path = tmp_path / folder / "m.onnx"
        onnx.save_model(proto, path, save_as_external_data=True, location="m.data", size_threshold=0)
        return path

    first, same, other = (import_model(write(f, s)) for f, s in (("a", 0), ("b", 0), ("c", 1)))
    np.testing.assert_array_equal(first.weights["w"], noise(2000))
    base = first.weights["w"]
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    assert type(base).__name__ in ("mmap", "memoryview")
    assert first.sha256 == same.sha256 != other.sha256


@pytest.mark.slow
def test_external_data_larger_than_two_gigabytes_is_mapped_not_read(tmp_path: Path) -> None:
    rows = 2**31 // 4096 + 1
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(rows * 4096)  # sparse: takes no room on the disk
    proto = model([node("Gather", "w i", "y")], [value("i", [1], I64)], [value("y")])
    tensor = proto.graph.initializer.add(name="w", data_type=F32, dims=[rows, 1024], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="w.bin")
    found = import_model(save(tmp_path, proto))
    assert found.weights["w"].nbytes > 2**31
    assert found.graph.values["y"].shape == (1, 1024)
    assert len(found.proto.SerializeToString()) < 1000


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int4"])
def test_external_data_of_narrow_types_is_read(tmp_path: Path, dtype: str) -> None:
    import ml_dtypes

    array = np.arange(-4, 4).astype(np.dtype(getattr(ml_dtypes, dtype)))
    proto = model([node("Cast", "w", "f", to=F32), node("Add", "x f", "y")], [value("x", [8])], [value("y")], opset=21)
    tensor = numpy_helper.from_array(array, "w")
    (tmp_path / "w.bin").write_bytes(b"pad" + tensor.raw_data)
    raw = len(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, text in {"location": "w.bin", "offset": "3", "length": str(raw)}.items():
        tensor.external_data.add(key=key, value=text)
    proto.graph.initializer.append(tensor)
    found = import_model(save(tmp_path, proto))
    assert_close(run_imported(found, {"x": np.zeros(8, np.float32)}), [np.arange(-4, 4).astype(np.float32)])


def test_partitions_run_one_after_the_other_give_the_whole(tmp_path: Path) -> None:
    proto = model(
        [node("MatMul", "x w", "a", "one"), node("Relu", "a", "b", "two"), node("Add", "b a", "y", "three")],
        [value("x", [2, 40])],
        [value("y")],
        {"w": noise(40, 40)},
    )
    path = save(tmp_path, proto)
    found = import_model(path)
    known = {"x": noise(2, 40), "w": found.weights["w"]}
    for name, inputs, outputs in (("one", ["x"], ["a"]), ("three", ["b", "a"], ["y"]), ("two", ["a"], ["b"])):
        part = found.subgraph([name], inputs, outputs)
        onnx.checker.check_model(_inlined(part, found.weights))
        assert [n.name for n in part.graph.node] == [name]
    both = found.subgraph(["three", "two"], ["a"], ["y"])
    assert [n.name for n in both.graph.node] == ["two", "three"]
    a = ReferenceEvaluator(_inlined(found.subgraph(["one"], ["x"], ["a"]), found.weights)).run(None, {"x": known["x"]})[
        0
    ]
    y = ReferenceEvaluator(both).run(None, {"a": a})
    assert_close(y, run_original(path, {"x": known["x"]}))


def _inlined(proto: onnx.ModelProto, weights: object) -> onnx.ModelProto:
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    for tensor in copy.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.CopyFrom(numpy_helper.from_array(weights[tensor.name], tensor.name))  # type: ignore[index]
    return copy


def test_a_subgraph_of_what_the_model_does_not_have_is_a_key_error(tmp_path: Path) -> None:
    found = import_model(save(tmp_path, model([node("Relu", "x", "y", "act")], [value("x", [3])], [value("y")])))
    for arguments in (["absent"], ["x"], ["y"]), (["act"], ["absent"], ["y"]):
        with pytest.raises(KeyError):
            found.subgraph(*arguments)

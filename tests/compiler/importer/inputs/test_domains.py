"""Seeded inputs are in the domains that the model's nodes require."""

import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.compiler import compile_model
from heterocc.compiler.importer.inputs.domains import Domains
from heterocc.compiler.importer.inputs.seeded import draw_inputs
from heterocc.compiler.importer.pipeline import import_model
from heterocc.passes.graph import Value
from heterocc.runtime import load
from heterocc.runtime.files.inputs import read_inputs
from tests.compiler.onnx_build import model, node, save, value

TEN, SCALE, HALF, MEANS, POINT = (np.array(v, np.float32) for v in (10, 1 / 255, 0.5, [[[123]], [[117]], [[104]]], 3))


def draw(
    nodes: list[onnx.NodeProto],
    given: Value,
    constants: dict[str, np.ndarray] | None = None,
    others: dict[str, tuple[int, ...]] | None = None,
    source: str | None = None,
) -> np.ndarray:
    infos = [
        helper.make_tensor_value_info(given.name, TensorProto.FLOAT, given.shape),
        *(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (others or {}).items()),
    ]
    proto = helper.make_model(helper.make_graph(nodes, "g", infos, []))
    sources = {given.name: source or given.name}
    return draw_inputs(proto, {given.name: given}, constants or {}, 0, sources=sources)[given.name]


REALS = {
    "logarithm": ([node("Reshape", "x s", "r"), node("Log", "r", "y")], {}, (0.0, 3.0)),
    "logarithm of other blocks": ([node("DepthToSpace", "x", "d", blocksize=2), node("Log", "d", "y")], {}, (0.0, 3.0)),
    "logarithm of choices": ([node("Where", "c x x", "w"), node("Log", "w", "y")], {}, (0.0, 3.0)),
    "root": ([node("Sqrt", "x", "y")], {}, (0.0, 3.0)),
    "negated": ([node("Neg", "x", "n"), node("Sqrt", "n", "y")], {}, (-3.0, 0.0)),
    "moved": ([node("Sub", "x k", "a"), node("Log", "a", "y")], {"k": TEN}, (10.0, 13.0)),
    "from a constant": ([node("Sub", "k x", "a"), node("Log", "a", "y")], {"k": TEN}, (7.0, 10.0)),
    "power": ([node("Pow", "x k", "y")], {"k": HALF}, (0.0, 3.0)),
    "denominator": ([node("Div", "one x", "y")], {"one": TEN}, (0.25, 2.0)),
    "sine's inverse": ([node("Asin", "x", "y")], {}, (-1.0, 1.0)),
    "pixels": ([node("Mul", "x k", "y")], {"k": SCALE}, (0.0, 255.0)),
    "pixels less their means": ([node("Sub", "x k", "y")], {"k": MEANS}, (0.0, 255.0)),
    "eight bits": ([node("QuantizeLinear", "x k z", "y")], {"k": POINT, "z": np.array(0, np.uint8)}, (0.0, 765.0)),
}


@pytest.mark.parametrize("case", REALS)
def test_real_numbers_lie_if_the_nodes_that_read_them_take_them(case: str) -> None:
    nodes, constants, (low, high) = REALS[case]
    found = draw(nodes, Value("x", "float32", (64, 64)), constants)
    assert low <= found.min() < found.max() <= high
    assert found.max() - found.min() > 0.5 * (high - low)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Relu", "x", "y")],
        [node("Exp", "x", "e"), node("Log", "e", "y")],
        [node("Pow", "x two", "p"), node("ReduceMean", "p", "m"), node("Sqrt", "m", "s"), node("Div", "x s", "y")],
        [node("Log", "x", "y"), node("Neg", "x", "n"), node("Log", "n", "z")],
    ],
    ids=["nothing asked", "nothing asked of the input", "a norm", "a contradiction"],
)
def test_what_nothing_is_known_of_is_standard_normal_as_ever(nodes: list[onnx.NodeProto]) -> None:
    value, two = Value("x", "float32", (3, 5)), {"two": np.array(2, np.float32)}
    plain = draw([], value)
    np.testing.assert_array_equal(draw(nodes, value, two), plain)
    assert plain.min() < 0


def test_audio_is_known_by_its_name() -> None:
    found = draw([node("Relu", "x", "y")], Value("x", "float32", (1, 16000)), source="input_audio")
    assert -1 <= found.min() < -0.9 and 0.9 < found.max() <= 1


def test_a_mask_by_its_name_is_ones_and_then_zeros() -> None:
    found = draw([node("Cast", "m", "y")], Value("m", "int64", (8, 32)), source="attention_mask")
    assert set(found.ravel()) == {0, 1} and np.all(found[:, 0] == 1) and np.all(np.diff(found) <= 0)


def test_the_length_of_a_sequence_is_at_most_that_of_the_sequences() -> None:
    lstm = [node("LSTM", "x w r - n", "y", hidden_size=2)]
    found = draw(lstm, Value("n", "int32", (64,)), others={"x": (9, 64, 3)})
    assert found.min() == 1 and found.max() == 9


def test_an_index_counts_what_is_added_to_it() -> None:
    nodes = [node("Add", "i two", "j"), node("Gather", "table j", "y")]
    found = draw(
        nodes, Value("i", "int64", (256,)), {"table": np.zeros((7, 3), np.float32), "two": np.array(2, np.int64)}
    )
    assert found.min() == 0 and found.max() == 4


def test_a_token_of_an_embedding_layer_lies_within_its_table() -> None:
    nodes = [node("EmbedLayerNormalization", "i s w p t g b", "y m", domain="com.microsoft")]
    found = draw(nodes, Value("i", "int32", (4, 64)), {"w": np.zeros((30, 8), np.float32)})
    assert found.min() == 0 and 20 < found.max() < 30


@pytest.mark.parametrize("op_type", ["RoiAlign", "MaxRoiPool"])
def test_drawn_regions_are_of_images_of_the_batch(op_type: str, tmp_path: Path) -> None:
    """Nothing was checked before: ONNX Runtime refuses the number of an image that there is not."""
    sizes = {"output_height": 2, "output_width": 2} if op_type == "RoiAlign" else {"pooled_shape": [2, 2]}
    inputs = [value("x", [1, 2, 9, 7]), value("regions", [3, 4 if op_type == "RoiAlign" else 5])]
    if op_type == "RoiAlign":
        inputs.append(value("images", [3], TensorProto.INT64))
    made = helper.make_node(op_type, [i.name for i in inputs], ["y"], **sizes)
    path = save(tmp_path, model([made], inputs, [value("y", [3, 2, 2, 2])]))
    report = compile_model(path, tmp_path / "m.hcb", devices="CPU", cpu_variant=False)
    assert not report.warnings


def test_another_seed_of_a_run_draws_from_what_the_model_is_known_to_accept(tmp_path: Path) -> None:
    path = save(tmp_path, model([node("Log", "x", "y")], [value("x", [64])], [value("y", [64])]))
    compile_model(path, tmp_path / "m.hcb", devices="CPU")
    with load(tmp_path / "m.hcb") as session:
        feeds = [read_inputs(tmp_path / "m.hcb", session, (), seed)["x"] for seed in (0, 3)]
        assert np.isfinite(session.run({"x": feeds[1]})["y"]).all()
    assert not np.array_equal(*feeds)


def test_indices_of_a_graph_network_are_below_the_number_of_its_nodes(tmp_path: Path) -> None:
    """`edges` [2, E] has the sources and targets of messages between the rows of `x`; nothing was checked before."""
    nodes = [
        helper.make_node("Gather", ["edges", "first"], ["source"], axis=0),
        helper.make_node("Gather", ["edges", "second"], ["target"], axis=0),
        helper.make_node("Cast", ["source"], ["s"], to=TensorProto.INT64),
        helper.make_node("Gather", ["x", "s"], ["message"], axis=0),
        helper.make_node("Unsqueeze", ["target", "one"], ["column"]),
        helper.make_node("Mul", ["x", "zero"], ["empty"]),
        helper.make_node("Expand", ["column", "like"], ["t"]),
        helper.make_node("ScatterElements", ["empty", "t", "message"], ["y"], axis=0, reduction="add"),
    ]
    constants = {
        "first": np.array(0),
        "second": np.array(1),
        "one": np.array([1]),
        "zero": np.zeros(1, np.float32),
        "like": np.array([1, 4]),
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["nodes", 4]),
            helper.make_tensor_value_info("edges", TensorProto.INT64, [2, "edges"]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["nodes", 4])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    values = {"x": Value("x", "float32", (3, 4)), "edges": Value("edges", "int64", (2, 500))}
    feed = draw_inputs(proto, values, constants, 0)
    assert set(np.unique(feed["edges"])) == {0, 1, 2}
    onnx.save(proto, tmp_path / "m.onnx")
    assert import_model(tmp_path / "m.onnx", keep_dims=True).samples


def test_a_node_of_many_inputs_is_not_searched_for_each_of_them() -> None:
    names = [f"x{i}" for i in range(8000)]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in names]
    nodes = [helper.make_node("Sum", names, ["s"]), helper.make_node("Concat", names, ["c"], axis=0)]
    proto = helper.make_model(helper.make_graph(nodes, "g", infos, []))
    domains = Domains(proto, {})
    start = time.process_time()
    assert all(domains.of(Value(name, "float32", (1,)), name) is None for name in names)
    assert time.process_time() - start < 2.0  # 0.2 s; with the search, more than 5 s

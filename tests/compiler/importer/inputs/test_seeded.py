import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from heterocc.artifacts.errors import InputError
from heterocc.compiler.importer.inputs.seeded import draw_inputs
from heterocc.passes.graph import Value


def draw(nodes: list[onnx.NodeProto], value: Value, constants: dict[str, np.ndarray] | None = None) -> np.ndarray:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(value.name, TensorProto.INT64, value.shape)], []
    )
    return draw_inputs(helper.make_model(graph), {value.name: value}, constants or {}, 0)[value.name]


IDS = Value("ids", "int64", (64, 64))


def test_an_index_stays_below_the_size_of_what_it_indexes() -> None:
    table = {"table": np.zeros((7, 3), np.float32)}
    nodes = [
        helper.make_node("Cast", ["ids"], ["c"], to=TensorProto.INT32),
        helper.make_node("Gather", ["table", "c"], ["y"], axis=0),
    ]
    found = draw(nodes, IDS, table)
    assert found.min() == 0 and found.max() == 6


def test_an_integer_that_is_compared_takes_the_constant() -> None:
    found = draw([helper.make_node("Equal", ["ids", "k"], ["y"])], IDS, {"k": np.array(16000, np.int64)})
    assert set(found.ravel()) == {16000}


def test_any_other_integer_is_one() -> None:
    assert set(draw([helper.make_node("Add", ["ids", "ids"], ["y"])], IDS).ravel()) == {1}


def test_the_same_seed_gives_the_same_values_and_another_seed_others() -> None:
    value = Value("x", "float32", (3, 5))
    model = helper.make_model(helper.make_graph([], "g", [], []))
    first, again, other = (draw_inputs(model, {"x": value}, {}, seed)["x"] for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert first.dtype == np.float32


def test_text_cannot_be_drawn_and_the_error_says_what_to_do() -> None:
    with pytest.raises(InputError, match="cannot be drawn") as caught:
        draw([], Value("s", "string", (1,)))
    assert "hint: give it with --inputs" in caught.value.command_text()

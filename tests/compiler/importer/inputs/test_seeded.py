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


def ml(operator: str, **attributes: list[str] | list[int] | list[float]) -> onnx.NodeProto:
    return helper.make_node(operator, ["s"], ["y"], domain="ai.onnx.ml", **attributes)


TEXTS = Value("s", "string", (64,))
CITIES = ["Paris", "London"]
KEYS: dict[str, tuple[list[onnx.NodeProto], str, set[object]]] = {
    "labels": ([ml("LabelEncoder", keys_strings=CITIES, values_floats=[1.0, 2.0])], "string", {*CITIES}),
    "classes": ([ml("LabelEncoder", classes_strings=CITIES)], "string", {*CITIES}),
    "numbers of labels": ([ml("LabelEncoder", keys_int64s=[5, 9], values_strings=CITIES)], "int64", {5, 9}),
    "reals of labels": ([ml("LabelEncoder", keys_floats=[0.5], values_strings=["half"])], "float32", {0.5}),
    "categories": ([ml("OneHotEncoder", cats_strings=CITIES)], "string", {*CITIES}),
    "numbers of categories": ([ml("CategoryMapper", cats_int64s=[5, 9], cats_strings=CITIES)], "int64", {5, 9}),
    "sequences of words": (
        [
            helper.make_node("StringNormalizer", ["s"], ["n"]),
            helper.make_node("TfIdfVectorizer", ["n"], ["y"], pool_strings=CITIES, ngram_counts=[0]),
        ],
        "string",
        {*CITIES},
    ),
    "compared": (
        [helper.make_node("Reshape", ["s", "n"], ["r"]), helper.make_node("Equal", ["k", "r"], ["y"])],
        "string",
        {*CITIES},
    ),
    "numerals": ([helper.make_node("Cast", ["s"], ["y"], to=TensorProto.INT32)], "string", {"1", "2", "3"}),
}


@pytest.mark.parametrize("case", KEYS)
def test_an_input_takes_the_keys_that_its_nodes_look_for(case: str) -> None:
    nodes, dtype, keys = KEYS[case]
    found = draw(nodes, Value("s", dtype, (64,)), {"k": np.array(CITIES, object)})
    assert {*found.tolist()} == keys and (found.dtype == object) == (dtype == "string")


def test_texts_that_the_model_does_not_tell_are_short_words() -> None:
    found = draw([], TEXTS)
    assert found.dtype == object and len({*found}) > 1 and all(isinstance(text, str) for text in found)


def test_a_map_cannot_be_drawn_and_the_error_says_what_to_do() -> None:
    with pytest.raises(InputError, match="cannot be drawn") as caught:
        draw([], Value("s", "map(int64,tensor(float))", (1,)))
    assert "hint: give it with --inputs" in caught.value.command_text()

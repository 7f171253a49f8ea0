"""The texts of a run: what a model without texts has none of."""

from __future__ import annotations

import itertools

import onnx
import onnx.defs
from onnx import TensorProto, helper

from heterocc.compiler.importer.inputs.texts import longest_text
from heterocc.compiler.operators.table import named


def test_settings_of_arithmetic_are_not_texts_however_often_a_network_branches() -> None:
    nodes = []
    for n in range(64):
        nodes += [
            helper.make_node("MaxPool", [f"v{n}"], [f"p{n}"], kernel_shape=[3, 3], auto_pad="SAME_UPPER"),
            helper.make_node("Add", [f"v{n}", f"p{n}"], [f"v{n + 1}"]),
        ]
    x, y = (helper.make_tensor_value_info(v, TensorProto.FLOAT, [1, 1, "h", "w"]) for v in ("v0", "v64"))
    assert longest_text(helper.make_graph(nodes, "g", [x], [y]), {}) == 0


def joined(graph_inputs: list[str], count: int, prefix: str) -> list[onnx.NodeProto]:
    """Texts that double in length in each node."""
    names = [graph_inputs[0], *(f"{prefix}{n}" for n in range(count))]
    return [helper.make_node("StringConcat", [a, a], [b]) for a, b in itertools.pairwise(names)]


def text(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.STRING, [1])


def test_texts_that_a_branch_joins_count() -> None:
    then = helper.make_graph(joined(["a"], 30, "t"), "then", [], [text("t29")])
    other = helper.make_graph([helper.make_node("Identity", ["a"], ["o"])], "else", [], [text("o")])
    nodes = [
        helper.make_node("Constant", [], ["a"], value_string="1234"),
        helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other),
    ]
    c = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    assert longest_text(helper.make_graph(nodes, "g", [c], [text("y")]), {}) >= 4 << 30


def test_the_length_of_texts_that_a_function_joins_is_unknown() -> None:
    opsets = [helper.make_opsetid("", 20)]
    function = helper.make_function("own", "Double", ["a"], ["b30"], joined(["a"], 31, "b"), opsets)
    graph = helper.make_graph([helper.make_node("Double", ["x"], ["y"], domain="own")], "g", [text("x")], [text("y")])
    assert longest_text(graph, {}, [function]) >= 1 << 40


def test_the_modes_of_a_forest_are_not_texts() -> None:
    modes = {"nodes_modes": ["BRANCH_LEQ"] * 10_000, "classlabels_strings": ["cat", "mouse"]}
    node = helper.make_node("TreeEnsembleClassifier", ["x"], ["y", "z"], domain="ai.onnx.ml", **modes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])
    assert longest_text(helper.make_graph([node], "g", [x], [text("y")]), {}) == len("mouse")


_SETTINGS = (
    "round_mode mode padding_mode coordinate_transformation_mode nearest_mode keep_aspect_ratio_policy reduction "
    "stopwords case_change_action locale delimiter map_form cast_to string_vocabulary keys_tensor keys_strings "
    "post_transform kernel_type base_values_as_tensor nodes_modes class_weights_as_tensor nodes_hitrates_as_tensor "
    "nodes_values_as_tensor sparse_value"
).split()
"""Attributes of operators with texts as results that are not among these."""


def test_each_attribute_that_may_be_a_text_of_results_is_in_the_record_of_its_operator() -> None:
    kinds = onnx.defs.OpSchema.AttrType
    unknown = set()
    for schema in onnx.defs.get_all_schemas_with_history():
        if any("string" in kind for output in schema.outputs for kind in output.types):
            stated = {*named(schema.name, schema.domain).texts.split(), *_SETTINGS}
            texts = {n for n, a in schema.attributes.items() if a.type in (kinds.STRING, kinds.STRINGS, kinds.TENSOR)}
            unknown |= {f"{schema.name}.{name}" for name in texts - stated}
    assert not unknown


def test_texts_of_constants_and_of_operators_on_texts_count() -> None:
    nodes = [
        helper.make_node("Constant", [], ["a"], value_string="12345"),
        helper.make_node("LabelEncoder", ["x"], ["b"], domain="ai.onnx.ml", keys_int64s=[1], values_strings=["123"]),
        helper.make_node("StringConcat", ["a", "b"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.INT64, [1])
    y = helper.make_tensor_value_info("y", TensorProto.STRING, [1])
    assert longest_text(helper.make_graph(nodes, "g", [x], [y]), {}) >= 8

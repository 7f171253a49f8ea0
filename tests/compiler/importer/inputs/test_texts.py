"""The texts of a run: what a model without texts has none of."""

from __future__ import annotations

from onnx import TensorProto, helper

from heterocc.compiler.importer.inputs.texts import longest_text


def test_settings_of_arithmetic_are_not_texts_however_often_a_network_branches() -> None:
    nodes = []
    for n in range(64):
        nodes += [
            helper.make_node("MaxPool", [f"v{n}"], [f"p{n}"], kernel_shape=[3, 3], auto_pad="SAME_UPPER"),
            helper.make_node("Add", [f"v{n}", f"p{n}"], [f"v{n + 1}"]),
        ]
    x, y = (helper.make_tensor_value_info(v, TensorProto.FLOAT, [1, 1, "h", "w"]) for v in ("v0", "v64"))
    assert longest_text(helper.make_graph(nodes, "g", [x], [y]), {}) == 0


def test_texts_of_constants_and_of_operators_on_texts_count() -> None:
    nodes = [
        helper.make_node("Constant", [], ["a"], value_string="12345"),
        helper.make_node("LabelEncoder", ["x"], ["b"], domain="ai.onnx.ml", keys_int64s=[1], values_strings=["123"]),
        helper.make_node("StringConcat", ["a", "b"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.INT64, [1])
    y = helper.make_tensor_value_info("y", TensorProto.STRING, [1])
    assert longest_text(helper.make_graph(nodes, "g", [x], [y]), {}) >= 8

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper

from heterocc.artifacts.errors import InternalError, InvalidGraphError
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.operators import table
from tests.symbolic_models import convolutions, dynamic_model, transformer

N = helper.make_node
X = {"x": ("float32", ("batch", 6, "seq"))}


def dims(nodes: list[object], constants: dict[str, object], inputs: object = None) -> tuple[int | str | None, ...]:
    arrays = {name: np.array(value, np.int64) for name, value in constants.items()}
    model = import_model(dynamic_model(nodes, inputs or X, ["y"], arrays), keep_dims=True)  # type: ignore[arg-type]
    return model.graph.values[model.graph.outputs[0]].shape or ()


def test_a_computed_shape_becomes_a_constant_that_copies_and_infers_dimensions() -> None:
    model = import_model(convolutions(), keep_dims=True)
    assert {node.op_type for node in model.graph.nodes} == {
        *("Conv", "Relu", "MaxPool", "Add", "GlobalAveragePool", "Reshape", "Gemm")
    }
    reshape = next(n for n in model.graph.nodes if n.op_type == "Reshape")
    assert model.weights[reshape.inputs[1]].tolist() == [0, 16]
    assert model.graph.values[model.graph.outputs[0]].shape == ("batch", 10)


def test_shapes_are_expressions_of_the_models_names() -> None:
    model = import_model(transformer(), keep_dims=True)
    shapes = [v.shape for v in model.graph.values.values()]
    assert ("batch", 2, "seq", "seq") in shapes
    assert all(shape is not None and None not in shape for shape in shapes)
    assert model.symbols is not None and model.symbols.names == ("batch", "seq")


def test_the_longest_sequence_follows_from_a_table_of_positions() -> None:
    model = import_model(transformer(longest=40), keep_dims=True)
    assert model.symbols is not None
    assert [(limit.size.text, limit.most) for limit in model.symbols.limits.values()] == [("seq", 40)]


def test_sides_of_images_are_expressions() -> None:
    model = import_model(convolutions("side"), keep_dims=True)
    shapes = [model.graph.values[n.outputs[0]].shape for n in model.graph.nodes]
    assert shapes[0] == ("batch", 16, "(side + 1)//2", "(side + 1)//2")


def test_unnamed_dimensions_are_called_by_input_and_axis() -> None:
    inputs = {"x": ("float32", (None, 3)), "z": ("float32", (None, 3))}
    assert dims([N("Relu", ["x"], ["y"])], {}, inputs) == ("x_0", 3)


@pytest.mark.parametrize(
    ("node", "constants", "expected"),
    [
        (N("Flatten", ["x"], ["y"], axis=2), {}, ("6*batch", "seq")),
        (N("Concat", ["x", "x"], ["y"], axis=2), {}, ("batch", 6, "2*seq")),
        (N("Reshape", ["x", "c"], ["y"]), {"c": [-1, 3]}, ("2*batch*seq", 3)),
        (N("Slice", ["x", "c", "d", "a"], ["y"]), {"c": [1], "d": [2**40], "a": [2]}, ("batch", 6, "max(0, seq - 1)")),
        (N("Tile", ["x", "c"], ["y"]), {"c": [2, 1, 3]}, ("2*batch", 6, "3*seq")),
        (N("Pad", ["x", "c"], ["y"]), {"c": [0, 0, 1, 0, 0, 2]}, ("batch", 6, "seq + 3")),
        (N("AveragePool", ["x"], ["y"], kernel_shape=[3], strides=[2]), {}, ("batch", 6, "(seq + 1)//2 - 1")),
        (N("MaxPool", ["x"], ["y"], kernel_shape=[3], pads=[1, 1], ceil_mode=1), {}, ("batch", 6, "seq")),
        (N("MaxPool", ["x"], ["y"], kernel_shape=[2], strides=[3], ceil_mode=1), {}, ("batch", 6, "(seq + 2)//3")),
    ],
    ids=lambda value: value.op_type if hasattr(value, "op_type") else "",
)
def test_shape_of(node: object, constants: dict[str, object], expected: tuple[int | str, ...]) -> None:
    assert dims([node], constants) == expected


def test_an_input_of_unknown_rank_stays_so() -> None:
    model = dynamic_model([N("Relu", ["x"], ["y"])], X, ["y"], {})
    model.graph.input[0].type.tensor_type.ClearField("shape")
    imported = import_model(model, keep_dims=True)
    assert imported.graph.values[imported.graph.outputs[0]].shape is None


def test_a_sequence_beside_dynamic_dimensions_is_imported() -> None:
    nodes = [
        N("SequenceConstruct", ["x"], ["s"]),
        N("Size", ["x"], ["p"]),
        N("SequenceInsert", ["s", "x", "p"], ["t"]),
        N("SequenceAt", ["t", "c"], ["y"]),
    ]
    model = import_model(dynamic_model(nodes, X, ["y"], {"c": np.array(0)}), keep_dims=True)
    assert [n.op_type for n in model.graph.nodes] == ["SequenceConstruct", "Size", "SequenceInsert", "SequenceAt"]


def test_a_convolution_of_one_place_too_many_that_is_cut_has_the_length_of_its_input() -> None:
    # As wav2vec 2.0 does after a window of even length.
    weight = np.zeros((6, 6, 4), np.float32)
    nodes = [
        N("Conv", ["x", "w"], ["c"], pads=[2, 2]),
        N("Slice", ["c", "first", "last", "axis"], ["s"]),
        N("Add", ["s", "x"], ["y"]),
    ]
    model = import_model(
        dynamic_model(
            nodes, X, ["y"], {"w": weight, **{k: np.array([v]) for k, v in (("first", 0), ("last", -1), ("axis", 2))}}
        ),
        keep_dims=True,
    )
    assert model.graph.values[model.graph.outputs[0]].shape == ("batch", 6, "seq")


def test_a_rule_that_fails_for_a_valid_node_is_a_bug_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(given: object) -> None:
        raise IndexError("no such axis")

    monkeypatch.setitem(table._TABLE, ("", "Flatten"), replace(table.named("Flatten"), shapes=broken))
    with pytest.raises(InternalError, match="IndexError: no such axis") as caught:
        import_model(dynamic_model([N("Flatten", ["x"], ["y"], name="flat")], X, ["y"], {}), keep_dims=True)
    assert caught.value.where is not None and "node 'flat' (Flatten)" in caught.value.where


def test_a_rule_that_fails_for_an_invalid_node_leaves_the_error_to_the_check_of_the_model() -> None:
    model = dynamic_model([N("Concat", ["x", "w"], ["y"], axis=0)], X, ["y"], {"w": np.ones(3, np.float32)})
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    with pytest.raises(InvalidGraphError, match="rank"):
        import_model(model, keep_dims=True)


def test_a_length_behind_convolutions_that_the_exporter_divides_again_is_the_same() -> None:
    """(n // 5 - 5) // 4 + 1: the dividend is negative only for inputs shorter than the windows."""
    nodes = [
        N("Conv", ["x", "wide"], ["a"], strides=[5]),
        N("Conv", ["a", "narrow"], ["b"], strides=[4]),
        N("Shape", ["x"], ["shape"]),
        N("Gather", ["shape", "two"], ["n"], axis=0),
        N("Div", ["n", "five"], ["fifth"]),
        N("Sub", ["fifth", "five"], ["less"]),
        N("Div", ["less", "four"], ["quarter"]),
        N("Add", ["quarter", "one"], ["length"]),
        N("Concat", ["ones", "length"], ["wanted"], axis=0),
        N("Expand", ["row", "wanted"], ["rows"]),
        N("Add", ["b", "rows"], ["y"]),
    ]
    numbers = {"two": [2], "five": [5], "four": [4], "one": [1], "ones": [1, 1]}
    constants = {name: np.array(value, np.int64) for name, value in numbers.items()}
    constants |= {"wide": np.ones((3, 2, 10), np.float32), "narrow": np.ones((3, 3, 4), np.float32)}
    constants["row"] = np.ones((1, 3, 1), np.float32)
    model = import_model(
        dynamic_model(nodes, {"x": ("float32", ("batch", 2, "n"))}, ["y"], constants), keep_dims=True, assume=True
    )
    assert model.symbols is not None and not model.symbols.fresh
    assert model.graph.values[model.graph.outputs[0]].shape == ("batch", 3, "(n + 15)//20 - 1")
    assert model.bounds["n"].min == 25

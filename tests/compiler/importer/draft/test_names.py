"""Names of nodes without a usable name in the model."""

from pathlib import Path

import pytest
from onnx import helper

from heterocc.compiler import import_model
from heterocc.compiler.importer.draft.names import Namer
from tests.compiler.small import save


def names_of(path: Path, given: list[str]) -> list[tuple[str, str]]:
    ops = ["Relu", "Neg", "Abs", "Tanh", "Exp"]
    values = ["x", *(f"v{i}" for i in range(len(given) - 1)), "y"]
    nodes = [
        helper.make_node(ops[i % len(ops)], [values[i]], [values[i + 1]], name=name) for i, name in enumerate(given)
    ]
    graph = import_model(save(path, nodes, {"x": [3]}, {"y": [3]})).graph
    return [(node.name, node.label) for node in graph.nodes]


def test_nodes_without_a_name_are_called_by_operator_and_number(tmp_path: Path) -> None:
    assert names_of(tmp_path / "m.onnx", ["", "", ""]) == [(n, n) for n in ("Relu_0", "Neg_1", "Abs_2")]


def test_nodes_called_by_a_number_or_signs_get_their_operator_before_it_and_keep_their_label(tmp_path: Path) -> None:
    found = names_of(tmp_path / "m.onnx", ["24", "/", "卷积_3"])
    assert found == [("Relu_24", "24"), ("Neg", "/"), ("Abs_3", "卷积_3")]


def test_such_names_do_not_clash_with_given_ones_and_are_the_same_every_time(tmp_path: Path) -> None:
    given = ["Relu_0", "Neg_1", "", "24", "Tanh_24"]
    found = [name for name, _ in names_of(tmp_path / "m.onnx", given)]
    assert len({name.lower() for name in found}) == 5 and found[:2] == ["Relu_0", "Neg_1"] and found[2] == "Abs_2"
    assert [name for name, _ in names_of(tmp_path / "m.onnx", given)] == found
    unnamed = [name for name, _ in names_of(tmp_path / "n.onnx", ["", "Relu_0"])]
    assert len(set(unnamed)) == 2 and "Relu_0" in unnamed


@pytest.mark.parametrize("names", [["x", "y_2", "Conv_10"], ["a", "A"], ["if"], ["a__b"], ["v" * 61], ["1"], [""], []])
def test_names_are_kept_together_exactly_if_each_would_be_kept_alone(names: list[str]) -> None:
    kept, alone = Namer(), Namer()
    assert kept.keep(names, "v") == bool(names and [alone.give(name, "v") for name in names] == names)
    if names[:1] == ["x"]:
        assert kept.give("X", "v") == alone.give("X", "v") == "X_2"

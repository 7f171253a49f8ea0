"""The order of nodes, and the text of a cycle."""

from __future__ import annotations

import re

import pytest
from onnx import helper

from heterocc.artifacts.errors import InvalidGraphError
from heterocc.compiler.importer.draft.order import cycle_text, sort_nodes
from tests.compiler.onnx_build import node


def test_what_a_node_needs_comes_just_before_it() -> None:
    nodes = [
        node("Relu", "x", "a", "first"),
        node("Add", "b c", "y", "sum"),
        node("Abs", "a", "d", "other"),
        node("Neg", "c", "b", "left"),
        node("Exp", "a", "c", "right"),
    ]
    graph = helper.make_graph(nodes, "g", [], [])
    sort_nodes(graph, "here")
    assert [n.name for n in graph.node] == ["first", "right", "left", "sum", "other"]


def test_a_cycle_is_named_from_its_first_node_on() -> None:
    nodes = [node("Add", "x b", "a", "A"), node("Abs", "a", "b", "B"), node("Relu", "b", "y", "C")]
    message = re.escape("needs its own result: 'A' → 'B' → 'A'")
    with pytest.raises(InvalidGraphError, match=message):
        sort_nodes(helper.make_graph(nodes, "g", [], []), "here")


def test_the_middle_of_a_long_cycle_is_left_out() -> None:
    names = [f"n{i}" for i in range(20)]
    assert cycle_text(names) == "'n0' → 'n1' → 'n2' → 'n3' → … 13 more … → 'n17' → 'n18' → 'n19' → 'n0'"
    assert cycle_text(names[:8]).count("→") == 8
    assert "more" not in cycle_text(names[:8])


def test_a_long_chain_in_the_wrong_order_is_sorted_without_recursion() -> None:
    nodes = [node("Relu", f"v{i}", f"v{i + 1}", f"n{i}") for i in range(5_000)]
    graph = helper.make_graph(nodes[::-1], "g", [], [])
    sort_nodes(graph, "here")
    assert [n.name for n in graph.node] == [n.name for n in nodes]

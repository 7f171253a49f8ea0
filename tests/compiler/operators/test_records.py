"""What records say, and that all who look a fact up get the same one."""

from __future__ import annotations

import pytest

from heterocc.compiler.lower.half.policy import reads_float32
from heterocc.compiler.lower.magnitudes import may_exceed
from heterocc.compiler.operators import table
from heterocc.compiler.operators.applied import requirements_of, shapes_of
from heterocc.compiler.symbolic.contents import array
from heterocc.compiler.symbolic.given import Given
from heterocc.compiler.symbolic.sizes import named, number
from heterocc.passes.graph import Graph, Node, Value
from tests.compiler.onnx_build import node


@pytest.mark.parametrize(
    ("op_type", "outputs", "choice"),
    [("Sign", 1, True), ("MaxPool", 1, False), ("MaxPool", 2, True), ("TopK", 2, True), ("Relu", 1, False)],
)
def test_inputs_of_a_choice_stay_float32(op_type: str, outputs: int, choice: bool) -> None:
    made = Node("n", op_type, ("x",), tuple(f"y{n}" for n in range(outputs)))
    assert table.makes_choice(made) is choice
    assert reads_float32(made) is choice


@pytest.mark.parametrize("op_type", ["MaxPool", "Gather", "DepthToSpace", "ReduceMean", "Add"])
def test_what_is_computed_from_large_values_may_be_large(op_type: str) -> None:
    values = {name: Value(name, "float32", (4, 4)) for name in ("x", "e", "y")}
    nodes = (Node("exp", "Exp", ("x",), ("e",)), Node("n", op_type, ("e",), ("y",)))
    graph = Graph("g", nodes=nodes, values=values, inputs=("x",), outputs=("y",))
    assert may_exceed(graph) == {"e", "y"}


def test_an_operator_of_onnx_runtime_is_found_by_the_type_of_a_graphs_node() -> None:
    assert table.of_type("com.microsoft::QLinearAdd").quantised == "rounds"
    assert table.of_type("QLinearAdd").quantised == table.of_type("Relu").quantised == ""


def test_an_operator_without_a_record_is_taken_for_the_usual() -> None:
    unknown = table.named("Unheard", "com.example")
    assert (unknown.flops, unknown.needs, unknown.shapes, unknown.convert) == (1.0, None, None, None)


def test_sizes_that_a_run_computes_have_a_rule_and_requirements() -> None:
    sized = [operator for operator in table.operators() if operator.sized]
    assert len(sized) >= 7
    assert [o.name for o in sized if o.shapes is None or o.needs is None] == []


def test_the_sizes_of_a_grid_are_positive() -> None:
    size = array([number(1), number(2), named("h"), named("w")], (4,))
    shapes = [(number(1), number(2), number(3)), (number(4),)]
    given = Given(node("AffineGrid", "theta size", "y"), 20, shapes, [None, size])
    assert shapes_of(given) == [(number(1), named("h"), named("w"), number(2))]
    found = {(r.left.text, r.relation, r.right.number) for r in requirements_of(given, None)}
    assert found == {("h", "at_least", 1), ("w", "at_least", 1)}

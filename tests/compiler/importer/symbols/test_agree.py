"""Sizes that a node needs to be equal, of nodes that a malformed model may have."""

from __future__ import annotations

import pytest

from heterocc.compiler.importer.symbols.agree import ask
from heterocc.compiler.symbolic.given import Given
from heterocc.compiler.symbolic.sizes import number
from tests.compiler.onnx_build import node

OPERATORS = "Add Concat MatMul Gemm Conv ConvTranspose LayerNormalization BatchNormalization InstanceNormalization"


def given(operator: str, ranks: tuple[int, int]) -> Given:
    """The operator with inputs of these numbers of dimensions, each of another size."""
    attributes = {"axis": 0} if operator == "Concat" else {}
    shapes = [tuple(number(10 * which + place) for place in range(rank)) for which, rank in enumerate(ranks, 1)]
    return Given(node(operator, "a b", "y", **attributes), 22, shapes, [None, None])


@pytest.mark.parametrize("operator", OPERATORS.split())
@pytest.mark.parametrize("ranks", [(0, 0), (0, 2), (2, 0), (1, 1)])
def test_too_few_dimensions_are_left_to_the_checks_of_the_model(operator: str, ranks: tuple[int, int]) -> None:
    asked = ask(given(operator, ranks), ())
    pairs = [*asked.equal, *asked.broadcast]
    assert len(pairs) <= 1


def test_the_factors_of_a_product_share_a_dimension() -> None:
    assert ask(given("MatMul", (2, 2)), None).equal == [(number(20), number(11))]
    assert ask(given("MatMul", (1, 1)), None).equal == [(number(20), number(10))]

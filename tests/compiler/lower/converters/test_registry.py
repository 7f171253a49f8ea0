"""Every operator has one converter of ours at most."""

from __future__ import annotations

import pytest
from onnx import defs

from heterocc.compiler.lower.converters import own_converter
from heterocc.compiler.lower.converters.registry import MICROSOFT, converter
from heterocc.compiler.operators.table import operators


def test_a_second_converter_of_an_operator_is_an_error() -> None:
    with pytest.raises(ValueError, match="operator 'ReduceMax' of domain '' already has a converter"):
        converter("ReduceMax")(lambda ctx: None)


def test_both_names_of_the_standard_domain_mean_one_converter() -> None:
    assert own_converter("ai.onnx", "Resize") is own_converter("", "Resize") is not None
    assert own_converter(MICROSOFT, "QGemm") is not None
    assert own_converter("", "QGemm") is None and own_converter("elsewhere", "Resize") is None


def test_no_converter_is_out_of_reach() -> None:
    """Operators that never reach a converter, because the import expands or computes them."""
    expanded = {operator.name for operator in operators() if operator.expanded}
    known = {schema.name for schema in defs.get_all_schemas_with_history() if schema.domain == ""}
    assert "Softmax" in known and known >= expanded
    assert [name for name in sorted({*expanded, "Constant"}) if own_converter("", name) is not None] == []

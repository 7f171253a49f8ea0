"""Operator cases by theme: operator x dtype x attributes, as exporters write them."""

from __future__ import annotations

from tests.differential.operator_cases import (
    elementwise,
    movement,
    operator_sets,
    others,
    quantized,
    reductions,
    specials,
    windows,
)
from tests.differential.operators import Case

_FAMILIES = (elementwise, movement, reductions, windows, operator_sets, quantized, others, specials)

CASES: dict[str, list[Case]] = {theme: cases for family in _FAMILIES for theme, cases in family.CASES.items()}
assert len(CASES) == sum(len(family.CASES) for family in _FAMILIES), "two families have a theme of one name"

"""Models of one operator or one short chain each, for `networks/cpu.py`: small, middle, large and odd sizes."""

from __future__ import annotations

from benchmarks.operators.cases.convolutions import convolutions
from benchmarks.operators.cases.less_common import less_common
from benchmarks.operators.cases.models import Case
from benchmarks.operators.cases.other_sizes import other_sizes
from benchmarks.operators.cases.uncommon_sizes import uncommon_sizes
from benchmarks.operators.cases.with_products import products
from benchmarks.operators.cases.without_products import others

CASES: tuple[Case, ...] = (
    *products(),
    *others(),
    *less_common(),
    *other_sizes(),
    *convolutions(),
    *uncommon_sizes(),
)
"""The suite."""

"""Models of one operator or one short chain each, for benchmarks/cpu.py: small, middle, large and odd sizes."""

from __future__ import annotations

from operators.convolutions import convolutions
from operators.less_common import less_common
from operators.models import Case
from operators.other_sizes import other_sizes
from operators.uncommon_sizes import uncommon_sizes
from operators.with_products import products
from operators.without_products import others

CASES: tuple[Case, ...] = (
    *products(),
    *others(),
    *less_common(),
    *other_sizes(),
    *convolutions(),
    *uncommon_sizes(),
)
"""The suite."""

"""Models of one operator or one short chain each, for benchmarks/cpu.py: small, middle, large and odd sizes."""

from __future__ import annotations

from operator_models import Case
from operators_with_products import products
from operators_without_products import others

CASES: tuple[Case, ...] = (*products(), *others())
"""The suite."""

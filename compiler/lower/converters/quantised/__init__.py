"""Quantised operators, and layers between DequantizeLinear and QuantizeLinear."""

from heterocc.compiler.lower.converters.quantised import operators

__all__ = ["operators"]

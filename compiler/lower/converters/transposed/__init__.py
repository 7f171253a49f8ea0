"""Converter of transposed convolutions."""

from heterocc.compiler.lower.converters.transposed import operators

__all__ = ["operators"]

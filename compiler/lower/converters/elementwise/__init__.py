"""Converters of operators by element, of casts, and of dtypes that numpy lacks."""

from heterocc.compiler.lower.converters.elementwise import arithmetic, casts, extremes

__all__ = ["arithmetic", "casts", "extremes"]

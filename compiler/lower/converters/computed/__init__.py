"""Converters of operators whose results have sizes that depend on data."""

from heterocc.compiler.lower.converters.computed import cutting, numbers, reducing, selecting, shaping, suppression

__all__ = ["cutting", "numbers", "reducing", "selecting", "shaping", "suppression"]

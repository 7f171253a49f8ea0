"""Converters of operators by element, of casts, and of dtypes that numpy lacks."""

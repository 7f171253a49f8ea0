"""Converters of operators whose results have sizes that depend on data."""

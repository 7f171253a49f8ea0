"""Symbolic dimensions: sizes as expressions of named dimensions, and what import knows of shapes and integers."""

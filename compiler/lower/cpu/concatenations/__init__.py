"""Concatenations, and parts of values, that are not copied."""

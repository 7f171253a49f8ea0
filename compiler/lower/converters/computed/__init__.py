"""Converters of operators whose results have sizes that depend on data."""

from heterocc.compiler.lower.converters.computed import (
    broadcasting,
    cutting,
    images,
    numbers,
    reducing,
    required,
    selecting,
    shaping,
    signals,
    stated,
    suppression,
    unique,
)

__all__ = [
    "broadcasting",
    "cutting",
    "images",
    "numbers",
    "reducing",
    "required",
    "selecting",
    "shaping",
    "signals",
    "stated",
    "suppression",
    "unique",
]

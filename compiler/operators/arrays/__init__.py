"""Operators that move elements: they cut, join, pick and reshape arrays."""

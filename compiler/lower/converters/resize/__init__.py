"""Converters of Resize: to sizes that are known when compiling, and to dynamic ones."""

from heterocc.compiler.lower.converters.resize import computed, operators

__all__ = ["computed", "operators"]

"""Converters of pooling, and of windows with padding that depends on the size of an image."""

from heterocc.compiler.lower.converters.windows import pooling, sized

__all__ = ["pooling", "sized"]

"""Converters of attention: the standard operators and those of ONNX Runtime."""

from heterocc.compiler.lower.converters.attention import fused, group_query, operators

__all__ = ["fused", "group_query", "operators"]

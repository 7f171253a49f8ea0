"""Converters of attention: the standard operators and those of ONNX Runtime."""

from heterocc.compiler.lower.converters.attention import fused, operators

__all__ = ["fused", "operators"]

"""Converters of ONNX Runtime's operators (domain com.microsoft), but for attention."""

from heterocc.compiler.lower.converters.contrib import blocked, fused, gathered, operators, quantised

__all__ = ["blocked", "fused", "gathered", "operators", "quantised"]

"""Converters of ONNX Runtime's operators (domain com.microsoft), but for attention."""

from heterocc.compiler.lower.converters.contrib import fused, operators, quantised

__all__ = ["fused", "operators", "quantised"]

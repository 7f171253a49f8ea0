"""All converters of our own, by ONNX operator."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from heterocc.compiler.lower import relax_converters, relax_indexing, relax_misc, relax_quantized, relax_recurrent
from heterocc.compiler.lower.relax_converters import Context, Converter

__all__ = ["CONVERTERS", "Context", "Converter"]

CONVERTERS: Mapping[str, Converter] = MappingProxyType(
    {
        **relax_converters.CONVERTERS,
        **relax_indexing.CONVERTERS,
        **relax_misc.CONVERTERS,
        **relax_quantized.CONVERTERS,
        **relax_recurrent.CONVERTERS,
    }
)

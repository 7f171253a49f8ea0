"""All converters of our own, by domain and ONNX operator."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from heterocc.compiler.lower.converters import contrib as relax_contrib
from heterocc.compiler.lower.converters import converters as relax_converters
from heterocc.compiler.lower.converters import indexing as relax_indexing
from heterocc.compiler.lower.converters import misc as relax_misc
from heterocc.compiler.lower.converters import quantized as relax_quantized
from heterocc.compiler.lower.converters import recurrent as relax_recurrent
from heterocc.compiler.lower.converters import reduction as relax_reduction
from heterocc.compiler.lower.converters import transposed as relax_transposed
from heterocc.compiler.lower.converters.converters import Context, Converter

__all__ = ["CONVERTERS", "STANDARD_DOMAINS", "Context", "Converter", "own_converter"]

STANDARD_DOMAINS = frozenset({"", "ai.onnx"})

CONVERTERS: Mapping[str, Converter] = MappingProxyType(
    {
        **relax_converters.CONVERTERS,
        **relax_indexing.CONVERTERS,
        **relax_misc.CONVERTERS,
        **relax_quantized.CONVERTERS,
        **relax_recurrent.CONVERTERS,
        **relax_reduction.CONVERTERS,
        **relax_transposed.CONVERTERS,
        **relax_contrib.STANDARD,
    }
)


def own_converter(domain: str, op_type: str) -> Converter | None:
    """heterocc's converter of an operator, None where there is none."""
    if domain in STANDARD_DOMAINS:
        return CONVERTERS.get(op_type)
    return relax_contrib.CONVERTERS.get(op_type) if domain == "com.microsoft" else None

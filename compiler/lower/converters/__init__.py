"""Converters of ONNX operators to Relax, where TVM's importer lacks them or gets them wrong.

Each module registers its converters when it is imported, as it is below; a new one is added there.
"""

from heterocc.compiler.lower.converters import (
    arithmetic,
    contrib,
    indexing,
    normalization,
    pooling,
    quantized,
    recurrent,
    reduction,
    resize,
    shapes,
    sorting,
    transposed,
)
from heterocc.compiler.lower.converters.registry import STANDARD_DOMAINS, Context, own_converter

__all__ = [
    "STANDARD_DOMAINS",
    "Context",
    "arithmetic",
    "contrib",
    "indexing",
    "normalization",
    "own_converter",
    "pooling",
    "quantized",
    "recurrent",
    "reduction",
    "resize",
    "shapes",
    "sorting",
    "transposed",
]

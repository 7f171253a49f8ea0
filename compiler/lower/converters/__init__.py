"""Converters of ONNX operators to Relax that TVM's importer lacks or converts wrongly.

Each module registers its converters on import, so a new module must be imported below or by its folder.
"""

from heterocc.compiler.lower.converters import (
    arithmetic,
    attention,
    computed,
    computed_shapes,
    contrib,
    deformed,
    fourier,
    indexing,
    matrices,
    ml,
    ngrams,
    normalization,
    pooling,
    quantised,
    recurrent,
    reduction,
    resize,
    shapes,
    sorting,
    transposed,
)
from heterocc.compiler.lower.converters.registry import (
    PREPARED,
    RESULTS,
    SIZES,
    STANDARD_DOMAINS,
    Context,
    own_converter,
)

__all__ = [
    "PREPARED",
    "RESULTS",
    "SIZES",
    "STANDARD_DOMAINS",
    "Context",
    "arithmetic",
    "attention",
    "computed",
    "computed_shapes",
    "contrib",
    "deformed",
    "fourier",
    "indexing",
    "matrices",
    "ml",
    "ngrams",
    "normalization",
    "own_converter",
    "pooling",
    "quantised",
    "recurrent",
    "reduction",
    "resize",
    "shapes",
    "sorting",
    "transposed",
]

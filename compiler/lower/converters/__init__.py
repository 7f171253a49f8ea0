"""Converters of ONNX operators to Relax that TVM's importer lacks or converts wrongly.

Each module registers its converters on import, so a new module must be added to the imports below.
"""

from heterocc.compiler.lower.converters import (
    arithmetic,
    attention,
    computed,
    computed_shapes,
    contrib,
    contrib_quantised,
    deformed,
    fourier,
    fused,
    fused_attention,
    indexing,
    matrices,
    ngrams,
    normalization,
    pooling,
    recurrent,
    reduction,
    resize,
    shapes,
    sorting,
    transposed,
)
from heterocc.compiler.lower.converters.ml import encoders, linear, preparing, trees
from heterocc.compiler.lower.converters.quantised import operators as quantised_operators
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
    "contrib_quantised",
    "deformed",
    "encoders",
    "fourier",
    "fused",
    "fused_attention",
    "indexing",
    "linear",
    "matrices",
    "ngrams",
    "normalization",
    "own_converter",
    "pooling",
    "preparing",
    "quantised_operators",
    "recurrent",
    "reduction",
    "resize",
    "shapes",
    "sorting",
    "transposed",
    "trees",
]

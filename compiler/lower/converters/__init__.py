"""Converters of ONNX operators to Relax that TVM's importer lacks or converts wrongly.

Each module here and in the rooms registers its converters when it is imported.
"""

from heterocc.compiler.files.modules import modules_of
from heterocc.compiler.lower.converters.registry import (
    PREPARED,
    REQUIRED,
    RESULTS,
    SIZES,
    STANDARD_DOMAINS,
    Context,
    own_converter,
)

__all__ = ["PREPARED", "REQUIRED", "RESULTS", "SIZES", "STANDARD_DOMAINS", "Context", "own_converter"]

modules_of(__name__, __path__)

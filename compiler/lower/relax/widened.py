"""Values of float16 and bfloat16 in a partition for a CPU: float32 between its borders.

CPUs compute in float32. Each such value that enters a partition is widened where it is first read, nodes compute and
pass on float32, and results are rounded when they leave. Only what the model itself rounds, by Cast, is rounded in
between, so the results are nearer to exact ones than those of a device that stores every value in 16 bits, and numbers
beyond 65504 do not become infinite. ONNX Runtime does the same on CPUs. Weights are widened once; of a table from which
a node takes rows, the rows are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto
from tvm import relax

from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.lower.converters.elementwise.narrow import from_bfloat16, to_bfloat16
from heterocc.compiler.lower.converters.values import as_dtype
from heterocc.passes.graph import Value

STORED = frozenset(["float16", "bfloat16"])

_CASTS = frozenset(["Cast", "CastLike"])
_ROWS = frozenset(["Gather", "GatherElements", "GatherND"])
_CODES = frozenset([TensorProto.FLOAT16, TensorProto.BFLOAT16])
_TYPES = ("to", "dtype", "output_dtype")
"""Attributes that name the type of a result."""


class Widened:
    """Which values of a model are float32 while its nodes are computed, although the model stores them in 16 bits."""

    def __init__(self, model: ImportedModel, *, on: bool) -> None:
        """`on` is false for devices that compute in the model's types."""
        self._model = model
        self._on = on and any(value.dtype in STORED for value in model.graph.values.values())

    def dtype(self, name: str) -> str | None:
        """The 16-bit type of a value that is widened, None for others."""
        value = self._model.graph.values.get(name) if self._on and name else None
        return value.dtype if value is not None and value.dtype in STORED else None

    def values(self, node: onnx.NodeProto) -> Mapping[str, Value]:
        """The graph's values, with those of the node as they are computed."""
        found = self._model.graph.values
        wide = [name for name in (*node.input, *node.output) if self.dtype(name)]
        if not wide or self.as_stored(node):
            return found
        return {**found, **{name: dataclasses.replace(found[name], dtype="float32") for name in wide}}

    def as_stored(self, node: onnx.NodeProto) -> bool:
        """Whether the node is converted with its inputs as the model stores them.

        It reads bits, takes rows of a weight, or makes numbers of a type that it names.
        """
        if node.op_type in _ROWS:
            return node.input[0] in self._model.weights
        return node.op_type == "BitCast" or not (
            node.op_type in _CASTS or any(self.dtype(name) is not None for name in node.input)
        )

    def rounds(self, node: onnx.NodeProto) -> bool:
        """Whether the model asks for the rounding of the node's result."""
        return node.op_type in _CASTS and self.dtype(node.input[0]) != self.dtype(node.output[0])


def without_types(attrs: Mapping[str, object]) -> dict[str, object]:
    """Attributes of a node whose results of 16 bits are computed as float32."""
    return {k: TensorProto.FLOAT if k in _TYPES and v in _CODES else v for k, v in attrs.items()}


def widen(bb: relax.BlockBuilder, value: relax.Expr, dtype: str) -> relax.Expr:
    """A tensor of a 16-bit type, as compiled code stores it, as float32."""
    return from_bfloat16(bb, value) if dtype == "bfloat16" else bb.emit(as_dtype(value, "float32"))


def narrow(bb: relax.BlockBuilder, value: relax.Expr, dtype: str) -> relax.Expr:
    """A tensor of float32 in a 16-bit type, as compiled code stores it, rounded to the nearest."""
    return to_bfloat16(bb, value) if dtype == "bfloat16" else bb.emit(as_dtype(value, "float16"))


def widened_array(array: np.ndarray) -> np.ndarray:
    """A weight of a 16-bit type as float32."""
    return np.ascontiguousarray(array).astype(np.float32)

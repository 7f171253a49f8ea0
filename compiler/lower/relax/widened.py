"""Values of float16 and bfloat16 in a partition that are float32 while its nodes are computed.

CPUs compute in float32. Each such value that enters a partition is widened where it is first read, nodes compute and
pass on float32, and results are rounded when they leave. Only what the model itself rounds, by Cast, is rounded in
between, so the results are nearer to exact ones than those of a device that stores every value in 16 bits, and numbers
beyond 65504 do not become infinite. ONNX Runtime does the same on CPUs. Weights are widened here; kernels that read
large ones get them in 16 bits again (`lower/cpu/schedule.py`). Of a table from which a node takes rows, the rows are
widened. Attention reads keys and values of 16 bits as they are stored, if it alone reads them.

Other devices compute in float16, except sums, means, squares and powers, whose terms and results may exceed 65504
although the model's other values do not: a normalisation in single operators, say. These are computed in float32, and
so is what follows from them by arithmetic that does not bring them back into range (`magnitudes.py`).
Products of float16 are summed in float32 and stored as float16 (`lower/gpu/wide_sums.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import onnx
import tvm
from onnx import TensorProto
from tvm import relax

from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.lower.converters.elementwise.narrow import from_bfloat16, to_bfloat16
from heterocc.compiler.lower.converters.values import as_dtype, dtype_of
from heterocc.compiler.lower.magnitudes import may_exceed
from heterocc.compiler.lower.straight import arguments_of, is_kernel_call
from heterocc.compiler.lower.wide_array import WideArray
from heterocc.compiler.lower.written import WIDENS
from heterocc.compiler.operators.table import of_node, of_type
from heterocc.passes.graph import Value

STORED = frozenset(["float16", "bfloat16"])

_CODES = frozenset([TensorProto.FLOAT16, TensorProto.BFLOAT16])
_TYPES = ("to", "dtype", "output_dtype")
"""Attributes that name the type of a result."""


class Widened:
    """Which values of a model are float32 while its nodes are computed, although the model stores them in 16 bits."""

    def __init__(self, model: ImportedModel, *, all_values: bool) -> None:
        """`all_values` is true for devices that compute in float32, false for others."""
        self._model = model
        self._on = not STORED.isdisjoint(model.dtypes)
        self.all_values = all_values
        self._nodes: set[str] = set()
        self._values: set[str] = set()
        if self._on and not all_values:
            self._find()

    def _find(self) -> None:
        """Find the nodes that compute in float32 beside others, and the results that stay in it."""
        exceeding = may_exceed(self._model.graph)
        for node in self._model.graph.nodes:
            halves = [v for v in node.outputs if self._is_half(v)]
            operator = of_type(node.op_type)
            if operator.factors or not halves:  # products of what is widened would take twice the time
                continue
            kept = exceeding.intersection(halves)
            if kept or operator.sums or not self._values.isdisjoint(node.inputs):
                self._nodes.add(node.name)
                self._values |= kept

    def _is_half(self, name: str) -> bool:
        return self._model.graph.values[name].dtype == "float16"

    def dtype(self, name: str) -> str | None:
        """The 16-bit type of a value that is widened, None for others."""
        if not self.all_values and name not in self._values:
            return None
        return self.stored(name)

    def stored(self, name: str) -> str | None:
        """The 16-bit type of a value in the model, None for other types."""
        value = self._model.graph.values.get(name) if self._on and name else None
        return value.dtype if value is not None and value.dtype in STORED else None

    def values(self, node: onnx.NodeProto) -> Mapping[str, Value]:
        """The graph's values, with those of the node as they are computed."""
        found = self._model.graph.values
        wide = [name for name in (*node.input, *node.output) if self.stored(name)]
        if not wide or self.as_stored(node):
            return found
        return {**found, **{name: dataclasses.replace(found[name], dtype="float32") for name in wide}}

    def as_stored(self, node: onnx.NodeProto) -> bool:
        """Whether the node is converted with its inputs as the model stores them.

        It reads bits, takes rows of a weight, or makes numbers of a type that it names; or the device computes in the
        model's types.
        """
        if not self.all_values:
            return node.name not in self._nodes
        operator = of_node(node)
        if operator.moves and operator.indices == 1:
            return node.input[0] in self._model.weights
        return node.op_type == "BitCast" or not (
            operator.casts or any(self.dtype(name) is not None for name in node.input)
        )

    def rounds(self, node: onnx.NodeProto) -> bool:
        """Whether the model asks for the rounding of the node's result."""
        return of_node(node).casts and self.stored(node.input[0]) != self.stored(node.output[0])


def without_types(attrs: Mapping[str, object]) -> dict[str, object]:
    """Attributes of a node whose results of 16 bits are computed as float32."""
    return {k: TensorProto.FLOAT if k in _TYPES and v in _CODES else v for k, v in attrs.items()}


def widen(bb: relax.BlockBuilder, value: relax.Expr, dtype: str) -> relax.Expr:
    """A tensor of a 16-bit type, as compiled code stores it, as float32."""
    return from_bfloat16(bb, value) if dtype == "bfloat16" else bb.emit(as_dtype(value, "float32"))


def narrow(bb: relax.BlockBuilder, value: relax.Expr, dtype: str) -> relax.Expr:
    """A tensor of float32 in a 16-bit type, as compiled code stores it, rounded to the nearest."""
    return to_bfloat16(bb, value) if dtype == "bfloat16" else bb.emit(as_dtype(value, "float16"))


@dataclass(frozen=True, eq=False)
class Conversion:
    """The conversion of a tensor from a type of 16 bits to float32, or the other way, or from int8 to float32."""

    source: relax.Var
    widens: bool


def conversion(mod: tvm.IRModule, value: relax.Expr) -> Conversion | None:
    """The conversion that an expression of a function of `mod` is, None for others."""
    if not isinstance(value, relax.Call):
        return None
    if is_kernel_call(value):  # of bfloat16
        widens = (mod[value.args[0]].attrs or {}).get(WIDENS)
        return None if widens is None else _of_tensor(arguments_of(value)[0], bool(widens))
    if getattr(value.op, "name", "") != "relax.astype":
        return None
    given, made = dtype_of(value.args[0]), str(value.attrs.dtype)
    known = [("float16", "float32"), ("float32", "float16"), ("int8", "float32")]
    return _of_tensor(value.args[0], made == "float32") if (given, made) in known else None


def _of_tensor(source: relax.Expr, widens: bool) -> Conversion | None:
    return Conversion(source, widens) if isinstance(source, relax.Var) else None


LEAST_LAZY = 1 << 16
"""Bytes of float32 from which a weight stays in 16 bits until its numbers are read."""


def widened_array(array: np.ndarray, *, lazily: bool) -> np.ndarray:
    """A weight of a 16-bit type as float32; a large one `lazily`."""
    if lazily and 4 * array.size >= LEAST_LAZY:
        return cast(np.ndarray, WideArray(array))
    return array.astype(np.float32, order="C")

"""What a device with `precision=f16` keeps in half precision, and what it does not.

Half precision is for storage: weights and the values between kernels are float16, each kernel computes in float32 and
rounds what it writes. So sums are float32 as a matter of course, and Exp or Pow have float32's range inside a kernel.
What is left to decide is which values may be rounded to 11 bits and to numbers of at most 65504; the reference that a
result is judged by (`Reference`) rounds the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from heterocc.compiler.importer.model import ImportedModel
from heterocc.passes.graph import Node

LARGEST = float(np.finfo(np.float16).max)
"""The largest number that float16 holds: 65504."""

_DECIDES = "it decides between discrete results, and a rounding before it changes them"
_SCALES = "its floats are scales of integers, and a step of these is decided by more than 11 bits"
_COORDINATES = "it reads coordinates, and 11 bits do not tell the pixels of a large image apart"

READS_FLOAT32: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("ArgMax", "ArgMin", "TopK", "Hardmax", "NonMaxSuppression", "Unique", "NonZero"), _DECIDES),
        **dict.fromkeys(("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"), _DECIDES),
        **dict.fromkeys(("Ceil", "Floor", "Round", "Mod", "Cast", "CastLike", "OneHot"), _DECIDES),
        **dict.fromkeys(("QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul"), _DECIDES),
        **dict.fromkeys(("DequantizeLinear", "QLinearConv", "QLinearMatMul", "QGemm", "QAttention"), _SCALES),
        **dict.fromkeys(("MatMulIntegerToFloat", "QLinearAdd", "QLinearMul", "QLinearConcat"), _SCALES),
        **dict.fromkeys(("AffineGrid", "DeformConv", "GridSample", "MaxRoiPool", "RoiAlign"), _COORDINATES),
    }
)
"""Operators whose inputs stay float32, with the reason. (Resize computes its coordinates inside its kernel.)"""

_RANGE = "what it writes may lie beyond 65504 where its input does not"
_COUNTS = "it counts up, and float16 holds no odd number above 2048"
_STATE = "its state goes round, and roundings would add up over the steps"

WRITES_FLOAT32: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("Exp", "Pow", "Reciprocal", "Cosh", "Sinh", "Tan"), _RANGE),
        **dict.fromkeys(("ReduceProd", "ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2"), _RANGE),
        **dict.fromkeys(("STFT", "DFT", "MelWeightMatrix", "Det"), _RANGE),
        **dict.fromkeys(("Range", "CumSum", "CumProd"), _COUNTS),
        **dict.fromkeys(("LSTM", "GRU", "RNN", "Scan", "Loop", "DynamicQuantizeLSTM"), _STATE),
    }
)
"""Operators whose outputs stay float32, with the reason."""

_LOSS = 2.0**-10
"""Rounding error of a weight, relative to it, that is no more than the 11 bits of float16 explain."""


def plain_type(op_type: str) -> str:
    """An operator type without its domain."""
    return op_type.rpartition("::")[2]


def fits(weight: np.ndarray[Any, Any]) -> bool:
    """Whether a float32 weight may be stored as float16: nothing overflows, and not all that is small vanishes.

    Infinities are infinities in either.
    """
    finite = weight[np.isfinite(weight)].astype(np.float64)
    if not finite.size:
        return True
    if float(np.abs(finite).max()) > LARGEST:
        return False
    error = finite - finite.astype(np.float16)
    return bool(np.linalg.norm(error) <= _LOSS * np.linalg.norm(finite))


def rounded_values(model: ImportedModel, nodes: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """The values that `nodes` write and the weights they read that may be float16 on a device that computes them.

    A lowering rounds some of them: those that lie between two kernels.
    """
    graph = model.graph
    chosen = [graph.node_by_name[name] for name in nodes]
    kept = {v for node in graph.nodes if plain_type(node.op_type) in READS_FLOAT32 for v in node.inputs}
    values: set[str] = set()
    weights: set[str] = set()
    for node in chosen:
        weights.update(v for v in node.inputs if v in model.weights and v not in kept)
        if plain_type(node.op_type) not in WRITES_FLOAT32:
            values.update(v for v in _float32(model, node) if v not in kept)
    return frozenset(values), frozenset(
        w for w in weights if model.weights[w].dtype == np.float32 and fits(model.weights[w])
    )


def _float32(model: ImportedModel, node: Node) -> list[str]:
    return [v for v in node.outputs if model.graph.values[v].dtype == "float32"]

"""The choice of weights and values that a device with `precision=f16` stores in half precision.

Half precision is a storage format: weights and the values between kernels are float16, while each kernel computes in
float32 and rounds its results. So sums are float32, and Exp or Pow have float32's range inside a kernel. This module
decides which values may be rounded to 11 bits and a range of 65504. The reference of the numeric check (`Reference`)
rounds the same values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.lower.magnitudes import may_exceed, plain_type
from heterocc.passes.graph import Node

LARGEST = float(np.finfo(np.float16).max)
"""The largest number that float16 holds: 65504."""

_DECIDES = "its results are discrete, and rounding its inputs can change them"
_SCALES = "its float inputs are scales of integers, which need more than 11 bits"
_COORDINATES = "it reads coordinates, and 11 bits cannot distinguish the pixels of a large image"

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

_RANGE = "its results may exceed 65504 even if its inputs do not"
_COUNTS = "it counts, and float16 cannot represent odd numbers above 2048"
_STATE = "it is recurrent, and rounding errors of its state would accumulate over the steps"

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
"""The largest rounding error of a weight relative to it, in the 2-norm, that float16's 11 bits account for."""


def fits(weight: np.ndarray[Any, Any]) -> bool:
    """Whether a float32 weight may be stored as float16: no element overflows, and underflow loses little.

    Infinities stay infinities.
    """
    finite = weight[np.isfinite(weight)].astype(np.float64)
    if not finite.size:
        return True
    if float(np.abs(finite).max()) > LARGEST:
        return False
    error = finite - finite.astype(np.float16)
    return bool(np.linalg.norm(error) <= _LOSS * np.linalg.norm(finite))


def rounded_values(model: ImportedModel, nodes: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """The values that `nodes` write, and the weights that they read, that may be float16 on the nodes' device.

    A lowering rounds a subset of the values: those that one kernel writes and another reads.
    """
    graph = model.graph
    chosen = [graph.node_by_name[name] for name in nodes]
    kept = {v for node in graph.nodes if plain_type(node.op_type) in READS_FLOAT32 for v in node.inputs}
    kept |= may_exceed(graph)
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

"""The choice of weights and values that a device with `precision=f16` stores in half precision.

Half precision is a storage format: weights and the values between kernels are float16, while each kernel computes in
float32 and rounds its results. So sums are float32, and Exp or Pow have float32's range inside a kernel. This module
decides which values may be rounded to 11 bits and a range of 65504. The reference of the numeric check (`Reference`)
rounds the same values.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.lower.magnitudes import may_exceed
from heterocc.compiler.operators.table import makes_choice, of_type
from heterocc.passes.graph import Node

LARGEST = float(np.finfo(np.float16).max)
"""The largest number that float16 holds: 65504."""


def reads_float32(node: Node) -> bool:
    """Whether the inputs of a node stay float32. (Resize computes its coordinates inside its kernel.)"""
    operator = of_type(node.op_type)
    return bool(operator.float32_inputs) or makes_choice(node)


def writes_float32(node: Node) -> bool:
    """Whether the outputs of a node stay float32."""
    return bool(of_type(node.op_type).float32_results)


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
    kept = {v for node in graph.nodes if reads_float32(node) for v in node.inputs}
    kept |= may_exceed(graph)
    values: set[str] = set()
    weights: set[str] = set()
    for node in chosen:
        weights.update(v for v in node.inputs if v in model.weights and v not in kept)
        if not writes_float32(node):
            values.update(v for v in _float32(model, node) if v not in kept)
    return frozenset(values), frozenset(
        w for w in weights if model.weights[w].dtype == np.float32 and fits(model.weights[w])
    )


def _float32(model: ImportedModel, node: Node) -> list[str]:
    return [v for v in node.outputs if model.graph.values[v].dtype == "float32"]

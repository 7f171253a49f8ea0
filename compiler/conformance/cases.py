"""ONNX's node tests as they come."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper


@dataclass(frozen=True, slots=True)
class Case:
    """One node test: a model, values by input name, the expected outputs in order, and tolerances."""

    name: str
    model: onnx.ModelProto
    feed: Mapping[str, Any]
    expected: tuple[Any, ...]
    rtol: float
    atol: float

    @property
    def operator(self) -> str:
        """The operator that the case tests, with its domain: the first one that is not a constant.

        A case of which onnx wrote the function in other operators belongs to the operator of the function.
        """
        nodes = [n for n in self.model.graph.node if n.op_type != "Constant"] or list(self.model.graph.node)
        return f"{nodes[0].domain}::{nodes[0].op_type}" if nodes[0].domain else str(nodes[0].op_type)

    @property
    def of_tensors(self) -> bool:
        """Return whether all inputs and outputs are tensors."""
        return all(isinstance(v, np.ndarray) for v in (*self.feed.values(), *self.expected))


@cache
def node_cases() -> Mapping[str, Case]:
    """All of ONNX's node tests by name, in order."""
    from onnx.backend.test.case import node

    with warnings.catch_warnings():
        # Some cases compute their own expectation with overflows.
        warnings.simplefilter("ignore")
        collected = node.collect_testcases(None)
    found = {}
    for test in sorted(collected, key=lambda t: str(t.name)):
        inputs, outputs = test.data_sets[0]
        names = [i.name for i in test.model.graph.input]
        feed = dict(zip(names, map(_value, inputs), strict=True))
        expected = tuple(map(_value, outputs))
        found[test.name] = Case(test.name, test.model, feed, expected, test.rtol or 1e-3, test.atol or 1e-7)
    return found


def _value(value: Any) -> Any:
    """A tensor as an array; sequences and optional values as they are."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, np.generic | int | float | bool):
        return np.asarray(value)
    return [_value(item) for item in value] if isinstance(value, list) else value

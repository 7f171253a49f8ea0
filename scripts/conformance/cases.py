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

from heterocc.compiler.importer.draft.constants import is_constant


@dataclass(frozen=True, slots=True)
class Case:
    """One node test: a model, values by input name, the expected outputs in order, and tolerances.

    `operator` is the operator that it tests, with its domain unless that is ONNX's.
    """

    name: str
    operator: str
    model: onnx.ModelProto
    feed: Mapping[str, Any]
    expected: tuple[Any, ...]
    rtol: float
    atol: float

    @property
    def of_tensors(self) -> bool:
        """Return whether all inputs and outputs are tensors."""
        return all(isinstance(v, np.ndarray) for v in (*self.feed.values(), *self.expected))

    @property
    def of_numbers(self) -> bool:
        """Return whether all inputs and outputs are tensors of numbers or booleans, not of strings."""
        return all(
            isinstance(v, np.ndarray) and v.dtype.kind not in "OUS" for v in (*self.feed.values(), *self.expected)
        )


@cache
def node_cases() -> Mapping[str, Case]:
    """All of ONNX's node tests by name, in order."""
    from onnx.backend.test.case import node

    with warnings.catch_warnings():
        # Some cases compute their own expectation with overflows.
        warnings.simplefilter("ignore")
        collected = node.collect_testcases(None)
    operators = {str(test.name): _operator(test.model) for test in collected}
    # The function of an operator in other operators tests that operator.
    return {
        name: as_case(test, operators.get(name.split("_expanded")[0], operators[name]))
        for name, test in sorted(((str(t.name), t) for t in collected), key=lambda pair: pair[0])
    }


def as_case(test: Any, operator: str) -> Case:
    """A case of ONNX's own form, with its first set of values; `operator` is the operator that it tests."""
    inputs, outputs = test.data_sets[0]
    names = [i.name for i in test.model.graph.input]
    feed = dict(zip(names, map(_value, inputs), strict=True))
    limits = test.rtol or 1e-3, test.atol or 1e-7
    return Case(str(test.name), operator, test.model, feed, tuple(map(_value, outputs)), *limits)


def _operator(model: onnx.ModelProto) -> str:
    """The first operator of a model that is not a constant."""
    nodes = [n for n in model.graph.node if not is_constant(n)] or list(model.graph.node)
    return f"{nodes[0].domain}::{nodes[0].op_type}" if nodes[0].domain else str(nodes[0].op_type)


def _value(value: Any) -> Any:
    """A tensor as an array; sequences and optional values as they are."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, np.generic | int | float | bool):
        return np.asarray(value)
    return [_value(item) for item in value] if isinstance(value, list) else value

"""Nodes that are constants."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from heterocc.compiler.importer.draft.draft import to_array

_NAME = "Constant"


def is_constant(node: onnx.NodeProto) -> bool:
    """Whether a node is a constant, be it sparse."""
    return node.op_type == _NAME and node.domain in ("", "ai.onnx")


def constant_node(name: str, array: np.ndarray) -> onnx.NodeProto:
    """A constant as a node, named as its result."""
    return helper.make_node(_NAME, [], [name], name=name, value=numpy_helper.from_array(array))


def constant_of(node: onnx.NodeProto) -> np.ndarray | None:
    """The array of a constant; None for other nodes, and for a form without a dense array."""
    if not is_constant(node):
        return None
    attribute = node.attribute[0]
    if attribute.ref_attr_name:
        return None
    if attribute.name == "value":
        return to_array(attribute.t)
    if attribute.name in ("value_float", "value_floats"):
        value = attribute.f if attribute.name == "value_float" else list(attribute.floats)
        return np.array(value, np.float32)
    if attribute.name in ("value_int", "value_ints"):
        value = attribute.i if attribute.name == "value_int" else list(attribute.ints)
        return np.array(value, np.int64)
    if attribute.name == "value_string":
        return np.array(attribute.s.decode(), object)
    if attribute.name == "value_strings":
        return np.array([s.decode() for s in attribute.strings], object)
    return None


def constants_within(graph: onnx.GraphProto) -> Mapping[str, np.ndarray]:
    """The constants of a graph that are in it: initializers and nodes."""
    found = {t.name: numpy_helper.to_array(t) for t in graph.initializer if not t.external_data}
    arrays = {node.output[0]: constant_of(node) for node in graph.node if is_constant(node)}
    return {**found, **{name: array for name, array in arrays.items() if array is not None}}

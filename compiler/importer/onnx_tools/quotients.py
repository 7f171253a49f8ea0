"""Divisions of signed integers that ONNX Runtime's code can do: that of the least one by -1 ends its process."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from heterocc.passes.graph import Value

_DTYPES = {"int32": TensorProto.INT32, "int64": TensorProto.INT64}


def with_safe_quotients(
    graph: onnx.GraphProto, values: Mapping[str, Value], constants: Mapping[str, np.ndarray[Any, Any]]
) -> None:
    """Change a graph so that a quotient by -1 is the negated dividend.

    `values` and `constants` are what is known of its model beside its initializers. ONNX Runtime 1.32 divides with the
    processor's instruction, which stops the process for a quotient that exceeds the dtype. It compares divisors with 0,
    and its Mod knows -1. Divisions in bodies of control flow are left.
    """
    divisions = [n for n in graph.node if n.op_type == "Div" and not n.domain]
    read = {name for n in divisions for name in n.input}
    own = {t.name: numpy_helper.to_array(t) for t in graph.initializer if t.name in read and t.name not in constants}
    known = {**own, **{name: constants[name] for name in read if name in constants}}
    taken = {v for n in graph.node for v in (n.name, *n.input, *n.output)}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        dtype = _dtype(node, values, known) if node.op_type == "Div" and not node.domain else ""
        divisors = known.get(node.input[1]) if dtype in _DTYPES else None
        if dtype not in _DTYPES or (divisors is not None and not (divisors == -1).any()):
            nodes.append(node)
        else:
            nodes += _safe(graph, node, dtype, taken)
    if len(nodes) > len(graph.node):
        del graph.node[:]
        graph.node.extend(nodes)


def _dtype(node: onnx.NodeProto, values: Mapping[str, Value], known: Mapping[str, np.ndarray[Any, Any]]) -> str:
    """The dtype of a division, by its result or a constant operand; empty if neither is known."""
    if node.output[0] in values:
        return values[node.output[0]].dtype
    return next((known[name].dtype.name for name in node.input if name in known), "")


def _safe(graph: onnx.GraphProto, node: onnx.NodeProto, dtype: str, taken: set[str]) -> list[onnx.NodeProto]:
    """The division by 1 in place of -1, and the choice between its result and the negated dividend."""
    left, right = node.input
    names = {part: _unused(f"{node.output[0]}_{part}", taken) for part in ("one", "minus", "is", "by", "no", "whole")}
    for name, number in (("one", 1), ("minus", -1)):
        graph.initializer.append(helper.make_tensor(names[name], _DTYPES[dtype], [], [number]))
    division = onnx.NodeProto()
    division.CopyFrom(node)
    division.input[1], division.output[0] = names["by"], names["whole"]
    return [
        helper.make_node("Equal", [right, names["minus"]], [names["is"]], name=names["is"]),
        helper.make_node("Where", [names["is"], names["one"], right], [names["by"]], name=names["by"]),
        division,
        helper.make_node("Neg", [left], [names["no"]], name=names["no"]),
        helper.make_node("Where", [names["is"], names["no"], names["whole"]], [node.output[0]], name=names["whole"]),
    ]


def _unused(name: str, taken: Collection[str]) -> str:
    while name in taken:
        name += "_"
    return name

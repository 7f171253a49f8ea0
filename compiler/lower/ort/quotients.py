"""Divisions of signed integers that ONNX Runtime's code can do: that of the least one by -1 ends its process."""

from __future__ import annotations

from collections.abc import Collection

import onnx
from onnx import TensorProto, helper

from heterocc.compiler.importer.model import ImportedModel

_DTYPES = {"int32": TensorProto.INT32, "int64": TensorProto.INT64}


def with_safe_quotients(proto: onnx.ModelProto, model: ImportedModel) -> None:
    """Change a part of a model so that a quotient by -1 is the negated dividend.

    ONNX Runtime 1.32 divides with the processor's instruction, which stops the process for a quotient that exceeds the
    dtype. It compares divisors with 0, and its Mod knows -1. Divisions in bodies of control flow are left.
    """
    taken = {v for n in proto.graph.node for v in (n.name, *n.input, *n.output)}
    nodes: list[onnx.NodeProto] = []
    for node in proto.graph.node:
        value = model.graph.values.get(node.output[0]) if node.op_type == "Div" and not node.domain else None
        divisors = None if value is None else model.weights.get(node.input[1])
        if value is None or value.dtype not in _DTYPES or (divisors is not None and not (divisors == -1).any()):
            nodes.append(node)
        else:
            nodes += _safe(proto.graph, node, value.dtype, taken)
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


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

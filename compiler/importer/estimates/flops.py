"""Floating-point operations of a node, from its shapes; a multiply and an add count as two."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx

from heterocc.compiler.operators.table import of_node
from heterocc.passes.graph import Node, Value


def node_flops(proto: onnx.NodeProto, node: Node, values: Mapping[str, Value]) -> float:
    """Operations of one node; 0 if a shape is unknown before a run."""
    operator = of_node(proto)
    if operator.moves or not operator.flops:
        return 0.0
    inputs = [values[name].numbers if name else () for name in proto.input]
    outputs = [values[name].numbers for name in node.outputs]
    read, written = ([shape for shape in shapes if shape is not None] for shapes in (inputs, outputs))
    if not outputs or len(read) < len(inputs) or len(written) < len(outputs):
        return 0.0
    if callable(operator.flops):
        return float(operator.flops(proto, read, written[0]))
    return operator.flops * sum(map(math.prod, written))

"""8-bit signed constants of a model, one for each use.

ONNX Runtime makes such weights and their zero points unsigned where it is asked for exact products, on x86 without VNNI
(`session_options`): it adds a constant that is named after the signed one, and fails where two nodes share that. It
also repeats a DequantizeLinear for each of its readers, which then share its weight.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx
from onnx import TensorProto

from heterocc.compiler.operators.table import of_node


def with_own_integers(proto: onnx.ModelProto) -> dict[str, str]:
    """Give each reader of dequantised int8 weights a DequantizeLinear of its own, and each use of int8 a constant.

    Changes the model, and returns the names of the new initializers with those of the ones that they repeat.
    """
    graph = proto.graph
    signed = {t.name: t for t in graph.initializer if t.data_type == TensorProto.INT8}
    taken = {t.name for t in graph.initializer} | {v for n in graph.node for v in (n.name, *n.input, *n.output)}
    _repeat_readers(graph, signed, taken)
    seen: set[str] = set()
    copies: dict[str, str] = {}
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name in signed and name in seen:
                node.input[place] = _unused(name, taken)
                copies[node.input[place]] = name
            seen.add(name)
    for copy, name in copies.items():
        graph.initializer.add().CopyFrom(signed[name])
        graph.initializer[-1].name = copy
    return copies


def _repeat_readers(graph: onnx.GraphProto, signed: Collection[str], taken: set[str]) -> None:
    """Add a DequantizeLinear of a weight for each reader of its output after the first, before that reader."""
    found = {n.output[0]: n for n in graph.node if of_node(n).dequantises and n.input[0] in signed}
    seen = {output.name for output in graph.output}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name in found and name in seen:
                again = onnx.NodeProto()
                again.CopyFrom(found[name])
                again.name, again.output[0] = _unused(again.name, taken), _unused(name, taken)
                node.input[place] = again.output[0]
                nodes.append(again)
            seen.add(name)
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)


def _unused(name: str, taken: set[str]) -> str:
    number = 2
    while f"{name}_{number}" in taken:
        number += 1
    taken.add(f"{name}_{number}")
    return f"{name}_{number}"

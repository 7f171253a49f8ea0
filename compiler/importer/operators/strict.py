"""Changes of ONNX's definitions of operators, so that they refuse what ONNX Runtime's operators refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from heterocc.compiler.importer.draft.draft import set_nodes


def make_strict(call: onnx.NodeProto, graph: onnx.GraphProto) -> None:
    """Change the definition of a call, in a graph that has only it, where sizes would fit that must not."""
    rule = None if call.domain else _RULES.get(call.op_type)
    if rule is not None:
        rule(call, graph)


def _constant(name: str, numbers: list[int]) -> onnx.NodeProto:
    value = numpy_helper.from_array(np.array(numbers, np.int64))
    return helper.make_node("Constant", [], [name], value=value)


def _layer_normalization(call: onnx.NodeProto, graph: onnx.GraphProto) -> None:
    """The first result by the operator itself: its definition flattens the scale, whatever the shape of that is."""
    only = onnx.NodeProto()
    only.CopyFrom(call)
    del only.output[1:]
    set_nodes(graph, [*(n for n in graph.node if call.output[0] not in n.output), only])


def _window(call: onnx.NodeProto, graph: onnx.GraphProto) -> None:
    """The places 0, 1, … as running sums of as many ones as are asked for: a Range of a negative number is empty."""
    size = call.input[0]
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type != "Range":
            nodes.append(node)
            continue
        ones = helper.make_tensor("one", TensorProto.INT64, [1], [1])
        nodes += [
            _constant("strict_vector", [1]),
            _constant("strict_axis", [0]),
            helper.make_node("Cast", [size], ["strict_number"], to=TensorProto.INT64),
            helper.make_node("Reshape", ["strict_number", "strict_vector"], ["strict_size"]),
            helper.make_node("ConstantOfShape", ["strict_size"], ["strict_ones"], value=ones),
            helper.make_node("CumSum", ["strict_ones", "strict_axis"], ["strict_places"], exclusive=1),
            helper.make_node("Cast", ["strict_places"], [node.output[0]], to=TensorProto.FLOAT),
        ]
    set_nodes(graph, nodes)


def _rotary_embedding(call: onnx.NodeProto, graph: onnx.GraphProto) -> None:
    """Both tables of one shape, and as wide as what they are multiplied with: the definition broadcasts narrow ones."""
    tables = call.input[1:3]
    by_table = set(tables)
    after: list[onnx.NodeProto] = []
    before: list[onnx.NodeProto] = []
    for node in graph.node:
        depends = not by_table.isdisjoint(node.input)
        by_table |= set(node.output) if depends else set()
        (after if depends else before).append(node)
    factors = (set(n.input) - by_table for n in after if n.op_type == "Mul")
    turned = next((name for found in factors for name in found), None)
    if turned is None:
        return
    nodes = [
        helper.make_node("Shape", [tables[0]], ["strict_rows"], end=-1),
        helper.make_node("Shape", [turned], ["strict_width"], start=-1),
        helper.make_node("Concat", ["strict_rows", "strict_width"], ["strict_table"], axis=0),
    ]
    fitting = {name: f"strict_{place}" for place, name in enumerate(dict.fromkeys(tables))}
    for name, new in fitting.items():
        nodes.append(helper.make_node("Reshape", [name, "strict_table"], [new], allowzero=1))
    for node in after:
        node.input[:] = [fitting.get(name, name) for name in node.input]
    set_nodes(graph, [*before, *nodes, *after])


_RULES: Mapping[str, Callable[[onnx.NodeProto, onnx.GraphProto], None]] = {
    "LayerNormalization": _layer_normalization,
    **dict.fromkeys(("BlackmanWindow", "HammingWindow", "HannWindow"), _window),
    "RotaryEmbedding": _rotary_embedding,
}

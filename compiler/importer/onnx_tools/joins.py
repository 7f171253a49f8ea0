"""Parts without elements that ONNX Runtime skips in a concatenation, though it counts their sizes.

It compares no size of a part without elements: one of 0x3 beside one of 2x3 gives 2x6 numbers along the second axis,
half of which nobody writes. A right result has the elements of all parts, and no other.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import onnx
from onnx import TensorProto, helper

from heterocc.compiler.importer.draft.draft import bodies, graphs_of
from heterocc.compiler.importer.onnx_tools.added import NODES, Added, replace_nodes

SEQUENCE = "ConcatFromSequence"
JOINS = ("Concat", SEQUENCE)

Shapes = Mapping[str, tuple[int, ...]]


def with_counted_parts(model: onnx.ModelProto, checked: Container[str]) -> None:
    """Change a model so that a concatenation whose parts do not have all elements of the result ends the run.

    `checked` are results of concatenations in the graph itself whose parts agree in all runs.
    """
    joins = [(g, n) for g in graphs_of(model.graph) for n in g.node if n.op_type in JOINS and not n.domain]
    if all(graph is model.graph and node.output[0] in checked for graph, node in joins):
        return
    taken = {v for g in graphs_of(model.graph) for n in g.node for v in (n.name, *n.input, *n.output)}
    taken |= {t.name for g in graphs_of(model.graph) for t in g.initializer}
    version = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    _count(model.graph.node, checked, _shapes(model), taken, version)


def _shapes(model: onnx.ModelProto) -> Shapes:
    """The shapes of values, as far as ONNX infers them; 0 for dimensions that it does not know."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except (onnx.shape_inference.InferenceError, ValueError):
        return {}
    infos = [info for g in graphs_of(inferred.graph) for info in (*g.input, *g.value_info, *g.output)]
    return {
        i.name: tuple(max(d.dim_value, 0) for d in i.type.tensor_type.shape.dim)
        for i in infos
        if i.type.tensor_type.HasField("shape")
    }


def _is_right(node: onnx.NodeProto, shapes: Shapes) -> bool:
    """Whether the parts are vectors, of which one without elements has no other size, or all have elements."""
    if len(shapes.get(node.output[0], ())) == 1:
        return True
    return node.op_type != SEQUENCE and all(shapes.get(name) and all(shapes[name]) for name in node.input)


def _count(nodes: NODES, checked: Container[str], shapes: Shapes, taken: set[str], version: int) -> None:
    found: list[onnx.NodeProto] = []
    for node in nodes:
        for body in bodies(node):
            _count(body.node, (), shapes, taken, version)
        wanted = node.op_type in JOINS and not node.domain and node.output[0] not in checked
        if not wanted or _is_right(node, shapes):
            found.append(node)
            continue
        added = Added(taken, node.output[0], version)
        result, node.output[0] = node.output[0], added.name(f"{node.output[0]}_joined")
        elements = _elements_of_sequence(node.input[0], added) if node.op_type == SEQUENCE else _elements(node, added)
        same = added.add("Cast", added.add("Equal", elements, added.add("Size", node.output[0])), to=TensorProto.INT64)
        label = f"parts of {node.op_type} {node.name or result} that have all of its elements"
        added.passed(node.output[0], same, label, result)
        found += [node, *added.nodes]
    if len(found) > len(nodes):
        replace_nodes(nodes, found)


def _elements(node: onnx.NodeProto, added: Added) -> str:
    """The number of elements of all parts of a Concat."""
    total = ""
    for name in node.input:
        size = added.add("Size", name)
        total = added.add("Add", total, size) if total else size
    return total


def _elements_of_sequence(sequence: str, added: Added) -> str:
    """The number of elements of all tensors of a sequence."""
    names = [added.name(f"{sequence}_{part}") for part in ("number", "before", "sum", "after", "part", "size", "total")]
    number, before, sum_, after, part, size, total = names
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("SequenceAt", [sequence, number], [part], name=part),
            helper.make_node("Size", [part], [size], name=size),
            helper.make_node("Add", [sum_, size], [total], name=total),
            helper.make_node("Identity", [before], [after], name=after),
        ],
        total,
        [info(number, TensorProto.INT64, []), info(before, TensorProto.BOOL, []), info(sum_, TensorProto.INT64, [])],
        [info(after, TensorProto.BOOL, []), info(total, TensorProto.INT64, [])],
    )
    return added.add("Loop", added.add("SequenceLength", sequence), "", added.number(0), body=body)

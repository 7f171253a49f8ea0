"""Changes to the body of a Loop or Scan and to the node's inputs and outputs, which stand in the same order."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from heterocc.compiler.importer.draft.draft import nodes_of, reads, set_nodes
from heterocc.compiler.importer.symbols.repeats import first_state
from heterocc.compiler.operators.table import of_node


def source_of(body: onnx.GraphProto, name: str, *, casts: bool = False) -> str:
    """The value of which a value of the body is a copy, or a cast if these count, too."""
    return origin(copies_in(body, casts=casts), name)


def copies_in(body: onnx.GraphProto, *, casts: bool = False) -> dict[str, str]:
    """The values that are copies of others in the body, each with that."""
    return {n.output[0]: n.input[0] for n in body.node if keeps_number(n, casts=casts)}


def origin(copies: Mapping[str, str], name: str) -> str:
    """The value of which one is a copy, perhaps of a copy."""
    while name in copies:
        name = copies[name]
    return name


def keeps_number(node: onnx.NodeProto, *, casts: bool = True) -> bool:
    """Whether a node copies its input, or casts it."""
    operator = of_node(node)
    return operator.copies or (casts and operator.casts)


def maker_of(body: onnx.GraphProto, name: str) -> onnx.NodeProto | None:
    """The node that computes a value of the body."""
    return next((n for n in body.node if name in n.output), None)


def is_read(body: onnx.GraphProto, name: str) -> bool:
    """Whether a node in the body reads a value, or the body returns it."""
    return any(name in n.input for n in nodes_of(body.node)) or any(
        name in [o.name for o in g.output] for g in (body, *_inner(body))
    )


def _inner(body: onnx.GraphProto) -> list[onnx.GraphProto]:
    return [a.g for n in nodes_of(body.node) for a in n.attribute if a.type == onnx.AttributeProto.GRAPH]


def rename(body: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Let the nodes in a body read other values; names are unique over a graph and its bodies."""
    for node in nodes_of(body.node):
        if not names.keys().isdisjoint(node.input):
            node.input[:] = [names.get(name, name) for name in node.input]
    for graph in _inner(body):
        for output in graph.output:
            output.name = names.get(output.name, output.name)


def drop_state(node: onnx.NodeProto, body: onnx.GraphProto, place: int) -> None:
    """Remove a state, by its number, from a Loop or Scan and its body."""
    first = first_state(node)
    del node.input[place + first]
    if place < len(node.output):
        del node.output[place]
    del body.input[place + first]
    del body.output[place + bool(first)]


def prune(body: onnx.GraphProto) -> None:
    """Remove the nodes of a body on which no result depends."""
    needed = {o.name for o in body.output}
    wanted = set()
    for place, node in reversed(list(enumerate(body.node))):
        if not needed.isdisjoint(node.output):
            wanted.add(place)
            needed.update(reads(node))
    nodes = [node for place, node in enumerate(body.node) if place in wanted]
    if len(nodes) < len(body.node):
        set_nodes(body, nodes)

"""Conversion of a graph to linked nodes and tensors of onnx-graphsurgeon, and back.

graphsurgeon links, replaces and removes nodes. Its importer and exporter are not used, because they lose parts of a
model, which docs/decisions/0010 lists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.logger import G_LOGGER
from onnx_graphsurgeon.util.misc import SynchronizedList

from heterocc.artifacts.packed import PackedArray
from heterocc.compiler.importer.draft.draft import Draft, bodies, reads, set_nodes, to_array

G_LOGGER.severity = G_LOGGER.CRITICAL + 1  # it prints to standard output, which is reserved for reports


class _Variable(gs.Variable):  # type: ignore[misc]  # the package has no types
    """A tensor without links. Its fields are set at once: graphsurgeon's assignments look for links each time."""

    def __init__(self, name: str) -> None:
        links = {"inputs": SynchronizedList(self, "outputs", ()), "outputs": SynchronizedList(self, "inputs", ())}
        self.__dict__.update(links, name=name, dtype=None, shape=None, type="tensor_type")


class Node(gs.Node):  # type: ignore[misc]  # the package has no types
    """A node with its proto, which keeps all attributes; graphsurgeon does not represent some.

    Nodes in bodies are not linked, because that takes longer than the rest of most rounds. Values that the bodies
    capture, except the node's own inputs, are additional inputs, named in `captured`. Nodes are compared by identity:
    graphsurgeon compares their contents, in quadratic time if many nodes read one value.
    """

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(self, proto: onnx.NodeProto, scope: Mapping[str, gs.Tensor]) -> None:
        given = tuple(proto.input)
        captured = reads(proto)[sum(map(bool, given)) :]
        inputs, outputs = (
            [scope[name] if name else _Variable("") for name in names] for names in ((*given, *captured), proto.output)
        )
        links = {
            "inputs": SynchronizedList(self, "outputs", inputs),
            "outputs": SynchronizedList(self, "inputs", outputs),
        }
        self.__dict__.update(links, op=proto.op_type, name=proto.name, domain=proto.domain, attrs={})
        self.__dict__.update(proto=proto, captured=captured)

    @property
    def scope(self) -> dict[str, gs.Tensor]:
        """The tensors that the node and its bodies read, by their names in the proto."""
        return {name: t for name, t in zip((*self.proto.input, *self.captured), self.inputs, strict=True) if name}

    @property
    def returned(self) -> set[str]:
        """Names of outer values that one of the node's bodies returns unchanged."""
        names = {o.name for body in bodies(self.proto) for o in body.output}
        return {t.name for name, t in self.scope.items() if name in names} if names else set()


def take_apart(draft: Draft) -> gs.Graph:
    """The draft's graph as linked nodes, which refer to its protos, and tensors; weights are Constants."""
    scope: dict[str, gs.Tensor] = {i.name: _Variable(i.name) for i in draft.graph.input}
    scope.update((name, _constant(name, array)) for name, array in draft.weights.items())
    return _linked(draft.graph, scope)


def _constant(name: str, array: np.ndarray | PackedArray) -> gs.Constant:
    if isinstance(array, np.ndarray):
        return gs.Constant(name, array)
    made = gs.Constant(name, np.empty(0))
    made.values = array  # which the class takes only here
    return made


def open_branch(node: Node, name: str) -> gs.Graph:
    """The body in an attribute of a node as linked nodes and tensors, linked to the outer graph.

    An additional last node reads the outputs, because graphsurgeon does not link these. The body's own constants are
    in `constants`.
    """
    graph = next(attribute.g for attribute in node.proto.attribute if attribute.name == name)
    constants = {t.name: gs.Constant(t.name, to_array(t)) for t in graph.initializer}
    scope = {**node.scope, **constants}
    opened = _linked(graph, scope)
    opened.constants = constants.values()
    opened.nodes.append(Node(onnx.NodeProto(input=[o.name for o in graph.output]), scope))
    return opened


def _linked(graph: onnx.GraphProto, scope: dict[str, gs.Tensor]) -> gs.Graph:
    scope.update((name, _Variable(name)) for node in graph.node for name in node.output if name)
    opened = gs.Graph(outputs=[scope[o.name] for o in graph.output])
    opened.nodes = [Node(proto, scope) for proto in graph.node]
    return opened


def replace(old: gs.Tensor, new: gs.Tensor) -> None:
    """Replace a tensor by another in all nodes that read or write it; values that bodies capture are among these."""
    for node in list(old.outputs):
        node.inputs[next(i for i, t in enumerate(node.inputs) if t is old)] = new
    for node in list(old.inputs):
        node.outputs[next(i for i, t in enumerate(node.outputs) if t is old)] = new


def put_together(graph: gs.Graph, draft: Draft) -> None:
    """Replace the draft's graph by a changed one, without unused constants and nodes that no output depends on."""
    _write_names(graph.nodes)
    set_nodes(draft.graph, [node.proto for node in graph.nodes])
    draft.drop_unread()


def _write_names(nodes: Sequence[Node]) -> None:
    """Write the names of linked tensors into the protos of nodes, also for the values that their bodies capture."""
    for node in nodes:
        inside = list(bodies(node.proto))
        renamed = {name: t.name for name, t in node.scope.items() if t.name != name} if inside else {}
        node.proto.input[:] = [t.name for t in node.inputs[: len(node.inputs) - len(node.captured)]]
        node.proto.output[:] = [t.name for t in node.outputs]
        if renamed:
            for body in inside:
                _rename_captured(body, renamed)


def _rename_captured(body: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename values that a body does not define; names are unique over the graph and its bodies."""
    for output in body.output:
        output.name = names.get(output.name, output.name)
    for node in body.node:
        if not names.keys().isdisjoint(node.input):
            node.input[:] = [names.get(name, name) for name in node.input]
        for inner in bodies(node):
            _rename_captured(inner, names)

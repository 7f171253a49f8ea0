"""Surgery: a graph as linked nodes and tensors of onnx-graphsurgeon, taken apart, changed and put together again.

graphsurgeon links, replaces and removes. Its importer and exporter are not used, because they lose parts of a model:
docs/decisions/0010 lists them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
import onnx_graphsurgeon as gs
from onnx_graphsurgeon.logger import G_LOGGER

from heterocc.compiler.importer.draft import Draft, bodies, set_nodes, to_array

G_LOGGER.severity = G_LOGGER.CRITICAL + 1  # it prints to standard output, which is for what a command reports


class Node(gs.Node):  # type: ignore[misc]  # the package has no types
    """A node with its proto, which keeps what graphsurgeon does not carry: all attributes but bodies.

    `attrs` holds the bodies by the attribute's name, with a number if there are several in it. A node equals itself
    alone: graphsurgeon compares what two nodes hold, in quadratic time where many nodes read one value.
    """

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __init__(self, proto: onnx.NodeProto, scope: Mapping[str, gs.Tensor]) -> None:
        attrs = {}
        for attribute in proto.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                attrs[attribute.name] = _body(attribute.g, scope)
            for index, graph in enumerate(attribute.graphs):
                attrs[f"{attribute.name}.{index}"] = _body(graph, scope)
        inputs, outputs = (
            [scope[name] if name else gs.Variable.empty() for name in names] for names in (proto.input, proto.output)
        )
        super().__init__(proto.op_type, proto.name, attrs, inputs, outputs, proto.domain)
        self.proto = proto


def take_apart(draft: Draft) -> gs.Graph:
    """The draft's graph as linked nodes, which hold its protos, and tensors; its weights are Constants.

    The tensors of a body are linked with those of the graphs around it. A body ends in one more node that reads its
    outputs, because graphsurgeon does not link these; its own constants are in `constants`.
    """
    scope = {i.name: gs.Variable(i.name) for i in draft.graph.input}
    scope.update((name, gs.Constant(name, array)) for name, array in draft.weights.items())
    return _linked(draft.graph, scope)


def _body(graph: onnx.GraphProto, outer: Mapping[str, gs.Tensor]) -> gs.Graph:
    inputs = {i.name: gs.Variable(i.name) for i in graph.input}
    constants = {t.name: gs.Constant(t.name, to_array(t)) for t in graph.initializer}
    scope = {**outer, **inputs, **constants}
    opened = _linked(graph, scope)
    opened.inputs, opened.constants = inputs.values(), constants.values()
    opened.nodes.append(Node(onnx.NodeProto(input=[o.name for o in graph.output]), scope))
    return opened


def _linked(graph: onnx.GraphProto, scope: dict[str, gs.Tensor]) -> gs.Graph:
    scope.update((name, gs.Variable(name)) for node in graph.node for name in node.output if name)
    opened = gs.Graph(outputs=[scope[o.name] for o in graph.output])
    opened.nodes = [Node(proto, scope) for proto in graph.node]  # later: a new graph walks all its bodies' nodes
    return opened


def replace(old: gs.Tensor, new: gs.Tensor) -> None:
    """Let every node that reads or writes `old`, in bodies too, read or write `new`."""
    for node in list(old.outputs):
        node.inputs[next(i for i, t in enumerate(node.inputs) if t is old)] = new
    for node in list(old.inputs):
        node.outputs[next(i for i, t in enumerate(node.outputs) if t is old)] = new


def put_together(graph: gs.Graph, draft: Draft) -> None:
    """Make a changed graph the draft's, without nodes that contribute to no output and constants nobody reads."""
    graph.cleanup(recurse_subgraphs=False, recurse_functions=False)
    if [node.name for node in graph.nodes] != [proto.name for proto in draft.graph.node]:
        _write_names(graph.nodes)
        set_nodes(draft.graph, [node.proto for node in graph.nodes])
    draft.drop_constants()


def _write_names(nodes: Sequence[Node]) -> None:
    """Give the protos of nodes, and of the nodes in their bodies, the names of what they are linked with."""
    for node in nodes:
        node.proto.input[:] = [t.name for t in node.inputs]
        node.proto.output[:] = [t.name for t in node.outputs]
        for body, proto in zip(node.subgraphs(), bodies(node.proto), strict=True):
            _write_names(body.nodes)
            for output, tensor in zip(proto.output, body.nodes[-1].inputs, strict=True):
                output.name = tensor.name

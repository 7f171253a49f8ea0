"""The graph of a model as it is written: nothing folded, expanded or renamed, for placement by a table of costs."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

import onnx

from heterocc.artifacts.errors import InvalidGraphError
from heterocc.compiler.importer.draft.constants import is_constant
from heterocc.compiler.importer.draft.draft import Draft, reads, value_of
from heterocc.compiler.importer.draft.order import sort_nodes
from heterocc.compiler.importer.onnx_tools.infer import infer_onnx
from heterocc.compiler.importer.reading.parse import read_proto
from heterocc.compiler.importer.reading.source import AnyModel, ModelSource, as_source
from heterocc.compiler.importer.shapes.shapes import set_input_shapes
from heterocc.passes.graph import Graph, Node, Value


def graph_as_written(
    model: AnyModel | ModelSource,
    shapes: Mapping[str, Sequence[int]] | None = None,
    timed: Container[str] = frozenset(),
    dims: Mapping[str, int] | None = None,
) -> tuple[Graph, list[str]]:
    """The graph with nodes as the model names them, and the values between nodes whose size is not known.

    Nodes without a name are called by type and number in the file, `Relu_3`. Nodes of type Constant whose names are not
    in `timed` are constants. Sizes come from the model, `shapes` of inputs, `dims` by name, and ONNX's shape inference.
    Raises an InputError (HC1xx) for an error in the model or the shapes.
    """
    source = as_source(model, None)
    where = source.path.name
    proto, _ = read_proto(source)
    set_input_shapes(Draft(proto, {}), shapes or {}, where, dims)
    _name_nodes(proto.graph, where)
    sort_nodes(proto.graph, where)
    values = _values(proto, where)
    constants = {t.name for t in proto.graph.initializer} | {t.values.name for t in proto.graph.sparse_initializer}
    nodes = []
    for node in proto.graph.node:
        if is_constant(node) and node.name not in timed:
            constants.update(node.output)
            continue
        op_type = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        nodes.append(Node(node.name, op_type, reads(node), tuple(o for o in node.output if o), (node.name,)))
    inputs = tuple(i.name for i in proto.graph.input if i.name not in constants)
    outputs = tuple(o.name for o in proto.graph.output)
    used = dict.fromkeys((*inputs, *outputs, *constants))
    used.update(dict.fromkeys(v for n in nodes for v in (*n.inputs, *n.outputs)))
    table = {name: values.get(name) or Value(name, "undefined", None) for name in used}
    try:
        graph = Graph(proto.graph.name or source.path.stem, tuple(nodes), table, inputs, outputs, frozenset(constants))
    except ValueError as error:
        raise InvalidGraphError(f"the model is not a valid graph: {error}", where=where) from error
    unknown = [
        v for v in graph.consumers if v in graph.producer and not (table[v].is_static and not table[v].is_opaque)
    ]
    return graph, unknown


def _name_nodes(graph: onnx.GraphProto, where: str) -> None:
    seen: set[str] = set()
    for number, node in enumerate(graph.node):
        node.name = node.name or f"{node.op_type}_{number}"
        if node.name in seen:
            raise InvalidGraphError(
                f"two nodes are named '{node.name}'", where=where, hint="give every node a name of its own"
            )
        seen.add(node.name)


def _values(proto: onnx.ModelProto, where: str) -> dict[str, Value]:
    """Types and shapes by name; those that inference cannot tell are left out."""
    try:
        proto = infer_onnx(proto, where)
    except onnx.shape_inference.InferenceError as error:
        raise InvalidGraphError(f"the model's shapes contradict each other: {error}", where=where) from error
    graph = proto.graph
    found = {i.name: value_of(i) for i in (*graph.input, *graph.value_info, *graph.output)}
    for tensor in graph.initializer:
        info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        found[tensor.name] = value_of(info)
    return found

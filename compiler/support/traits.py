"""The traits of a model that `AUTO` considers."""

from __future__ import annotations

from heterocc.compiler.devices.choice import ModelTraits
from heterocc.compiler.importer.estimates.flops import node_flops
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.operators.table import of_type

_FLOATS = frozenset(["float64", "float32", "float16", "bfloat16"])


def traits_of(model: ImportedModel) -> ModelTraits:
    """The dtypes that the model's nodes write, whether some work on 8-bit data, estimated work, and size of weights."""
    graph = model.graph
    written = [graph.values[value] for node in graph.nodes for value in node.outputs]
    flops = None
    if all(value.is_static for value in written):
        nodes = graph.node_by_name
        flops = sum(node_flops(p, nodes[p.name], graph.values) for p in model.proto.graph.node if p.name in nodes)
    return ModelTraits(
        precisions=frozenset(value.dtype for value in written) & _FLOATS,
        quantised=any(of_type(node.op_type).quantised for node in graph.nodes),
        flops=flops,
        weights=sum(array.nbytes for array in model.weights.values()),
    )

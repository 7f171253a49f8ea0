"""Which nodes compute shapes: small integer arithmetic that ends in the shape-like inputs of other nodes."""

from __future__ import annotations

from heterocc.passes.graph import Graph, Node

SMALL_ELEMENTS = 64
"""Elements up to which an integer tensor counts as a shape, an index list or a permutation."""

SHAPE_READERS = frozenset(
    (
        *("CenterCropPad", "Expand", "OneHot", "Pad", "Reshape", "Resize", "Slice"),
        *("Split", "Squeeze", "Tile", "TopK", "Unsqueeze", "Upsample"),
    )
)
"""Operators whose inputs after the first say how to shape the result."""

ALL_SHAPE_READERS = frozenset(["ConstantOfShape", "EyeLike", "Range"])
"""Operators of which every input says how to shape the result."""


def shape_nodes(graph: Graph) -> frozenset[str]:
    """Names of nodes that read and write small int32/int64 tensors only, all of it for shape-like inputs.

    Such a node does no work worth a launch on an accelerator, and its result is needed on the host.
    """
    found: set[str] = set()
    outputs = set(graph.outputs)
    for node in reversed(graph.nodes):
        tensors = (*node.inputs, *node.outputs)
        if not node.outputs or not all(_is_small_integer(graph, v) for v in tensors):
            continue
        uses = [(graph.node_by_name[c], v) for v in node.outputs for c in graph.consumers.get(v, ())]
        if not uses or outputs.intersection(node.outputs):
            continue
        if all(user.name in found or _reads_as_shape(user, value) for user, value in uses):
            found.add(node.name)
    return frozenset(found)


def _reads_as_shape(node: Node, value: str) -> bool:
    if node.op_type in ALL_SHAPE_READERS:
        return True
    return node.op_type in SHAPE_READERS and node.inputs[0] != value


def _is_small_integer(graph: Graph, name: str) -> bool:
    value = graph.values[name]
    if value.dtype not in ("int32", "int64") or not value.is_static or value.shape is None:
        return False
    elements = 1
    for dim in value.shape:
        elements *= dim or 0
    return elements <= SMALL_ELEMENTS

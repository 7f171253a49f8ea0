"""Detection of nodes that compute shapes: small integer arithmetic for shape-like inputs of other nodes."""

from __future__ import annotations

import math
from operator import attrgetter

from heterocc.passes.graph import Graph, Node

SMALL_ELEMENTS = 64
"""Maximum elements of an integer tensor that counts as a shape, an index list or a permutation."""

SHAPE_READERS = frozenset(
    (
        *("CenterCropPad", "Expand", "OneHot", "Pad", "Reshape", "Resize", "Slice"),
        *("Split", "Squeeze", "Tile", "TopK", "Unsqueeze", "Upsample"),
    )
)
"""Operators whose inputs after the first determine the shape of the result."""

ALL_SHAPE_READERS = frozenset(["ConstantOfShape", "EyeLike", "Range"])
"""Operators all of whose inputs determine the shape of the result."""


def shape_nodes(graph: Graph) -> frozenset[str]:
    """Names of nodes that read and write only small int32 or int64 tensors, all used for shape-like inputs.

    Such a node has too little work for a launch on an accelerator, and its result is needed on the host.
    """
    if {"int32", "int64"}.isdisjoint(map(attrgetter("dtype"), graph.values.values())):
        return frozenset()  # many models: this takes no time
    found: set[str] = set()
    outputs = set(graph.outputs)
    for node in reversed(graph.nodes):
        if not node.outputs or graph.values[node.outputs[0]].dtype not in ("int32", "int64"):
            continue  # most nodes: this takes no time
        if not all(_is_small_integer(graph, v) for v in (*node.inputs, *node.outputs)):
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
    if value.dtype not in ("int32", "int64") or value.numbers is None:
        return False
    return math.prod(value.numbers) <= SMALL_ELEMENTS

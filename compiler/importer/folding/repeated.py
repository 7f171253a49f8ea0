"""Nodes that compute the same again, of operators whose results have sizes that depend on data.

An exporter of PyTorch writes a NonZero for each tensor that one mask selects from. The results have the same size,
which shapes only show if one node computes it.
"""

from __future__ import annotations

import onnx
import onnx_graphsurgeon as gs

from heterocc.compiler.importer.draft.draft import Draft
from heterocc.compiler.importer.draft.surgery import replace
from heterocc.compiler.operators.table import of_node


def has_repeated(draft: Draft) -> bool:
    """Whether such a node has the operator, attributes and inputs of another one."""
    keys = [_key(node) for node in draft.graph.node if _selects(node)]
    return len(keys) != len(set(keys))


def merge_repeated(graph: gs.Graph, draft: Draft) -> bool:
    """Let what reads the results of such a node read those of the first equal one; return whether there was any."""
    outputs = {o.name for o in graph.outputs}
    kept = outputs | {name for node in graph.nodes for name in node.returned}
    first: dict[bytes, gs.Node] = {}
    changed = False
    for node in graph.nodes:
        if not _selects(node.proto):
            continue
        same = first.setdefault(_key(node.proto, [t.name for t in node.inputs]), node)
        pinned = draft.affinity.get(node.name) != draft.affinity.get(same.name)
        if same is node or pinned or any(t.name in kept for t in node.outputs):
            continue
        ends = list(node.outputs)
        node.outputs.clear()
        for end, other in zip(ends, same.outputs, strict=True):
            if not end.is_empty():
                replace(end, other)
        draft.origins[same.name] = tuple(
            dict.fromkeys((*draft.origins.get(same.name, ()), *draft.origins.get(node.name, ())))
        )
        changed = True
    return changed


def _selects(node: onnx.NodeProto) -> bool:
    return of_node(node).selects


def _key(node: onnx.NodeProto, inputs: list[str] | None = None) -> bytes:
    """Operator, attributes, inputs, and which outputs are wanted."""
    bare = onnx.NodeProto(op_type=node.op_type, input=node.input if inputs is None else inputs)
    bare.attribute.extend(sorted(node.attribute, key=lambda a: a.name))
    bare.output.extend("" if not name else "_" for name in node.output)
    return bytes(bare.SerializeToString(deterministic=True))

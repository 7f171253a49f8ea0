"""The indices of a vector whose elements are all other than 0: a Range.

PyTorch's exporters write `arange` so for operator sets without Range, and for parts of a strided view.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from heterocc.compiler.importer.draft.draft import Draft, set_nodes
from heterocc.compiler.importer.draft.names import Namer
from heterocc.compiler.importer.draft.written import written
from heterocc.compiler.operators.table import of_node
from heterocc.passes.graph import Value

_RANGE = """
    end = Squeeze (shape, axis)
    range = Range (first, end, step)
    result = Unsqueeze (range, axis)
"""

_OLDEST = 13
"""The operator set from which on Squeeze and Unsqueeze take their axes as an input."""


def write_ranges(draft: Draft, values: Mapping[str, Value], namer: Namer) -> bool:
    """Write a Range in place of each NonZero of a filled vector; return whether there was any."""
    filled = {n.output[0]: n.input[0] for n in draft.graph.node if _fills_vector(n, values)}
    found = [n for n in draft.graph.node if n.op_type == "NonZero" and not n.domain and n.input[0] in filled]
    if draft.opset < _OLDEST or not found:
        return False
    replaced = {node.name for node in found}
    nodes: list[onnx.NodeProto] = []
    for node in draft.graph.node:
        if node.name not in replaced:
            nodes.append(node)
            continue
        fresh = {kind: namer.give(f"{node.name}_{kind}", "v") for kind in ("axis", "first", "step", "end", "range")}
        draft.weights[fresh["axis"]] = np.array([0], np.int64)
        draft.weights[fresh["first"]] = np.array(0, np.int64)
        draft.weights[fresh["step"]] = np.array(1, np.int64)
        ends = {**fresh, "shape": filled[node.input[0]], "result": node.output[0]}
        for made in written(_RANGE, ends, str, lambda made, node=node: namer.give(f"{node.name}_{made.op_type}", "n")):  # type: ignore[misc]
            draft.origins[made.name] = draft.origins.get(node.name, ())
            if node.name in draft.affinity:
                draft.affinity[made.name] = draft.affinity[node.name]
            nodes.append(made)
    set_nodes(draft.graph, nodes)
    return True


def _fills_vector(node: onnx.NodeProto, values: Mapping[str, Value]) -> bool:
    """Whether a node writes a vector of equal elements that are not 0."""
    if not of_node(node).fills:
        return False
    value = values.get(node.output[0])
    fill = next((numpy_helper.to_array(a.t) for a in node.attribute if a.name == "value"), np.zeros(1))
    return value is not None and value.shape is not None and len(value.shape) == 1 and bool(fill.any())

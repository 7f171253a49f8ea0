"""One node of each kind of a large model: what a check of single nodes needs, and ONNX Runtime loads in no time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from heterocc.compiler.importer.draft.draft import bodies
from heterocc.compiler.importer.symbols.kinds import kind_of
from heterocc.passes.graph import Value

_LEAST = 2_000
"""The nodes of the smallest model of which some stand for the others."""
_OFTEN = 4
"""How many nodes a kind must have on average."""


def representatives(
    proto: onnx.ModelProto, values: Mapping[str, Value], constants: Mapping[str, np.ndarray]
) -> onnx.ModelProto | None:
    """A model of the first node of each kind, which reads new inputs where others wrote; None if it is not worth it.

    `values` are those of the model. There is none for a model with bodies, functions or values of unknown shape.
    """
    graph = proto.graph
    if len(graph.node) < _LEAST or proto.functions or any(value.shape is None for value in values.values()):
        return None
    kinds: dict[object, onnx.NodeProto] = {}
    most = len(graph.node) // _OFTEN
    for node in graph.node:
        kind = None if bodies(node) else kind_of(node, values, (), constants)
        if kind is None or len(kinds) > most:
            return None
        kinds.setdefault(kind, node)
    small = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    small.graph.name = graph.name
    small.graph.node.extend(kinds.values())
    read = {name for node in small.graph.node for name in node.input if name}
    written = {name for node in small.graph.node for name in node.output if name}
    known = {info.name: info for info in (*graph.value_info, *graph.input, *graph.output)}
    small.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name in read)
    given = read - written - {tensor.name for tensor in small.graph.initializer}
    if not (given | written) <= known.keys():
        return None
    small.graph.input.extend(known[name] for name in sorted(given))
    small.graph.output.extend(known[name] for name in sorted(written))
    return small

"""One node of each kind of a large model: what a check of single nodes needs, and ONNX Runtime loads in no time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx

from heterocc.compiler.importer.draft.draft import Draft, bodies
from heterocc.compiler.importer.symbols.kinds import kind_of
from heterocc.passes.graph import Value

_LEAST = 2_000
"""The nodes of the smallest model of which some stand for the others."""
_OFTEN = 4
"""How many nodes a kind must have on average."""


def representatives(draft: Draft, values: Mapping[str, Value]) -> onnx.ModelProto | None:
    """A model of the first node of each kind, which reads new inputs where others wrote; None if it is not worth it.

    `values` are those of the draft. There is none for a model with bodies, functions or values of unknown shape.
    """
    if draft.few is None or draft.few[0] is not values:
        draft.few = values, _found(draft, values)
    return draft.few[1]


def _found(draft: Draft, values: Mapping[str, Value]) -> onnx.ModelProto | None:
    graph = draft.graph
    if len(graph.node) < _LEAST or draft.model.functions or any(value.shape is None for value in values.values()):
        return None
    kinds: dict[object, onnx.NodeProto] = {}
    most = len(graph.node) // _OFTEN
    for node in graph.node:
        kind = None if bodies(node) else kind_of(node, values, (), draft.weights)
        if kind is None or len(kinds) > most:
            return None
        kinds.setdefault(kind, node)
    read = {name for node in kinds.values() for name in node.input if name}
    written = {name for node in kinds.values() for name in node.output if name}
    constants = {name: draft.weights[name] for name in sorted(read - written) if name in draft.weights}
    few = replace(draft, model=onnx.ModelProto(), weights=constants)
    few.model.ir_version = draft.model.ir_version
    few.model.opset_import.extend(draft.model.opset_import)
    few.graph.name = graph.name
    few.graph.node.extend(kinds.values())
    known = {info.name: info for info in (*graph.value_info, *graph.input, *graph.output)}
    given = read - written - constants.keys()
    if not (given | written) <= known.keys():
        return None
    few.graph.input.extend(known[name] for name in sorted(given))
    few.graph.output.extend(known[name] for name in sorted(written))
    return few.to_proto()

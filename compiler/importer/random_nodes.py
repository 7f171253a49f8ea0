"""Nodes whose results differ from run to run, and the values that depend on them.

This includes nodes with a `seed` attribute: in ONNX Runtime it fixes the numbers of a session's first run, and later
runs continue the sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx

from heterocc.compiler.importer.draft.constants import constants_within
from heterocc.compiler.importer.draft.draft import bodies
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.operators.table import of_node


def random_operator(node: onnx.NodeProto, constants: Mapping[str, np.ndarray[Any, Any]]) -> str | None:
    """The operator that makes a node's results random, its own or one in its bodies; None if they are not random.

    `constants` are the graph's constants by name, which bodies can read too.
    """
    operator = of_node(node)
    if operator.random or (operator.training is not None and _trains(node, operator.training, constants)):
        return operator.name
    for body in bodies(node):
        seen = {**constants, **constants_within(body)}
        for inner in body.node:
            found = random_operator(inner, seen)
            if found is not None:
                return found
    return None


def _trains(node: onnx.NodeProto, place: int, constants: Mapping[str, np.ndarray[Any, Any]]) -> bool:
    """Whether a Dropout may drop elements: it is in training mode, or the mode is not constant."""
    if len(node.input) <= place or not node.input[place]:
        return False
    mode = constants.get(node.input[place])
    if mode is not None and not np.any(mode):
        return False
    ratio = constants.get(node.input[place - 1]) if node.input[place - 1] else None
    return ratio is None or bool(np.any(ratio))


def random_values(model: ImportedModel, nodes: Iterable[str] | None = None) -> dict[str, str]:
    """The values that depend on a random node, each with the reason; `nodes` limits them to values that these write."""
    chosen = None if nodes is None else frozenset(nodes)
    found: dict[str, str] = {}
    for node in model.graph.nodes:
        if chosen is not None and node.name not in chosen:
            continue
        reason = next((found[v] for v in node.inputs if v in found), None)
        if reason is None:
            operator = random_operator(model.protos[node.name], model.weights)
            if operator is None:
                continue
            inside = "" if operator == node.op_type.rpartition("::")[2] else f" in {node.op_type}"
            reason = f"it depends on {operator}{inside} '{node.label}', which is random"
        found.update(dict.fromkeys(node.outputs, reason))
    return found


def not_compared(output: str, reason: str) -> str:
    """The note on a random output, for the report of a compile and the bundle."""
    return f"output '{output}' is not compared: {reason}"

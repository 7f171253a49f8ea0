"""Reductions of values that were stacked for them, as exporters write `torch.stack(values).max(0)`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from heterocc.compiler.importer.draft.draft import Draft, reads, set_nodes
from heterocc.compiler.importer.draft.names import Namer
from heterocc.compiler.importer.draft.written import written
from heterocc.compiler.operators.table import of_node
from heterocc.passes.graph import Value

_SUMS: Mapping[str | None, str] = {"sum": "result = Sum ({})", "mean": "result = Mean ({})"}
_PAIRS: Mapping[str | None, str] = {
    "largest": "above = Greater (value, before)\nresult = Where (above, value, before)",
    "smallest": "below = Less (value, before)\nresult = Where (below, value, before)",
}
"""What reductions become: of all values, or of each and the result of those before it.

Of NaN a reduction makes what it does in ONNX Runtime, unlike Max and Min: it stays only if it is the first value.
"""
_FLOATS = ("float16", "float32", "float64")


def reduce_stacked(draft: Draft, values: Mapping[str, Value], namer: Namer) -> bool:
    """Combine the values themselves where a reduction reads only a stack of them; return whether there was any.

    A stack is a Concat along a dimension that Unsqueeze has given each value. Floating-point numbers alone: Sum does
    not take integers. What the reduction becomes has the origins of the stack, too.
    """
    nodes = draft.graph.node
    if not any(map(_reduces, nodes)):
        return False
    made = {o: n for n in nodes for o in n.output if o}
    read = Counter([*(o.name for o in draft.graph.output), *(name for n in nodes for name in reads(n))])
    left: list[onnx.NodeProto] = []
    changed = False
    for node in nodes:
        found = _stacked(draft, values, node, made) if read[next(iter(node.input), "")] == 1 else None
        if found is None:
            left.append(node)
            continue
        stack = made[node.input[0]]
        before = (*(made[name] for name in stack.input), stack, node)
        origins = tuple(dict.fromkeys(o for n in before for o in draft.origins.get(n.name, ())))
        for made_of in _combined(node, found, namer):
            draft.origins[made_of.name] = origins
            if node.name in draft.affinity:
                draft.affinity[made_of.name] = draft.affinity[node.name]
            left.append(made_of)
        changed = True
    if changed:
        set_nodes(draft.graph, left)
        draft.drop_unread()
    return changed


def _combined(node: onnx.NodeProto, values: Sequence[str], namer: Namer) -> Iterator[onnx.NodeProto]:
    """The nodes that a reduction becomes."""

    def new(name: str) -> str:
        return namer.give(f"{node.name}_{name}", "v")

    kind, result = of_node(node).reduces, node.output[0]
    if kind in _SUMS:
        numbered = {f"value{number}": value for number, value in enumerate(values)}
        text = _SUMS[kind].format(", ".join(numbered))
        yield from written(text, {**numbered, "result": result}, new, lambda _: node.name)
        return
    before = values[0]
    for number, value in enumerate(values[1:], 2):
        after = result if number == len(values) else new("part")
        made = written(_PAIRS[kind], {"value": value, "before": before, "result": after}, new)
        for part in made:
            is_last = part.output[0] == result
            part.name = node.name if is_last else namer.give(f"{node.name}_{part.op_type}", "n")
        yield from made
        before = after


def _stacked(
    draft: Draft,
    values: Mapping[str, Value],
    node: onnx.NodeProto,
    made: Mapping[str, onnx.NodeProto],
) -> list[str] | None:
    """The values of the stack that a node reduces; None if it does not."""
    stack = made.get(node.input[0])
    if not _reduces(node) or stack is None or of_node(stack).joins != "inputs" or len(stack.input) < 2:
        return None
    value = values.get(stack.output[0])
    attributes = _attributes(node)
    if value is None or value.shape is None or value.dtype not in _FLOATS or attributes.get("keepdims", 1) != 0:
        return None
    rank = len(value.shape)
    axis = int(_attributes(stack).get("axis", 1)) % rank
    if _axes(draft, node, rank) != [axis]:
        return None
    found = []
    for name in stack.input:
        part = made.get(name)
        if part is None or not _adds_one(part, values, rank) or _axes(draft, part, rank) != [axis]:
            return None
        if {draft.affinity.get(n.name) for n in (part, stack)} != {draft.affinity.get(node.name)}:
            return None
        found.append(part.input[0])
    # A stack needs equal sizes; an operator by element would repeat one of 1.
    shapes = {values[name].shape if name in values else None for name in found}
    return found if len(shapes) == 1 and None not in shapes else None


def _reduces(node: onnx.NodeProto) -> bool:
    return of_node(node).reduces in (*_SUMS, *_PAIRS)


def _adds_one(node: onnx.NodeProto, values: Mapping[str, Value], rank: int) -> bool:
    """Whether a node only adds one dimension, and has so many then."""
    record, value = of_node(node), values.get(node.input[0])
    return record.keeps_order and record.axes == 1 and value is not None and len(value.shape or ()) == rank - 1


def _axes(draft: Draft, node: onnx.NodeProto, rank: int) -> list[int] | None:
    """The axes of a node, which are an attribute or a second input; None if they are not known."""
    given = _attributes(node).get("axes")
    if given is None and len(node.input) > 1 and node.input[1]:
        constant = draft.weights.get(node.input[1])
        given = None if constant is None else np.asarray(constant).reshape(-1).tolist()
    return None if given is None else [int(axis) % rank for axis in given]


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}

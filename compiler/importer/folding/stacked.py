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
from heterocc.passes.graph import Value

_SUMS = {"ReduceSum": "Sum", "ReduceMean": "Mean"}
_EXTREMES = {"ReduceMax": "Greater", "ReduceMin": "Less"}
_FLOATS = ("float16", "float32", "float64")


def reduce_stacked(draft: Draft, values: Mapping[str, Value], namer: Namer) -> bool:
    """Combine the values themselves where a reduction reads only a stack of them; return whether there was any.

    A stack is a Concat along a dimension that Unsqueeze has given each value. Floating-point numbers alone: Sum does
    not take integers. What the reduction becomes has the origins of the stack, too.
    """
    nodes = draft.graph.node
    if not any(n.op_type in _SUMS or n.op_type in _EXTREMES for n in nodes):
        return False
    made = {o: n for n in nodes for o in n.output if o}
    read = Counter([*(o.name for o in draft.graph.output), *(name for n in nodes for name in reads(n))])
    written: list[onnx.NodeProto] = []
    changed = False
    for node in nodes:
        found = _stacked(draft, values, node, made) if read[next(iter(node.input), "")] == 1 else None
        if found is None:
            written.append(node)
            continue
        stack = made[node.input[0]]
        before = (*(made[name] for name in stack.input), stack, node)
        origins = tuple(dict.fromkeys(o for n in before for o in draft.origins.get(n.name, ())))
        for made_of in _combined(node, found, namer):
            draft.origins[made_of.name] = origins
            if node.name in draft.affinity:
                draft.affinity[made_of.name] = draft.affinity[node.name]
            written.append(made_of)
        changed = True
    if changed:
        set_nodes(draft.graph, written)
        draft.drop_unread()
    return changed


def _combined(node: onnx.NodeProto, values: Sequence[str], namer: Namer) -> Iterator[onnx.NodeProto]:
    """The nodes that a reduction becomes.

    Of NaN a reduction makes what it does in ONNX Runtime, unlike Max and Min: it stays only if it is the first value.
    """
    if node.op_type in _SUMS:
        yield helper.make_node(_SUMS[node.op_type], values, node.output, node.name)
        return
    so_far, comparison = values[0], _EXTREMES[node.op_type]
    for number, value in enumerate(values[1:], 2):
        other = namer.give(f"{node.name}_{comparison}", "v")
        yield helper.make_node(comparison, [value, so_far], [other], namer.give(f"{node.name}_{comparison}", "n"))
        is_last = number == len(values)
        chosen = node.output[0] if is_last else namer.give(f"{node.name}_chosen", "v")
        name = node.name if is_last else namer.give(f"{node.name}_chosen", "n")
        yield helper.make_node("Where", [other, value, so_far], [chosen], name)
        so_far = chosen


def _stacked(
    draft: Draft,
    values: Mapping[str, Value],
    node: onnx.NodeProto,
    made: Mapping[str, onnx.NodeProto],
) -> list[str] | None:
    """The values of the stack that a node reduces; None if it does not."""
    stack = made.get(node.input[0])
    if node.domain or (node.op_type not in _SUMS and node.op_type not in _EXTREMES):
        return None
    if stack is None or stack.op_type != "Concat" or stack.domain or len(stack.input) < 2:
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
        if part is None or part.op_type != "Unsqueeze" or part.domain or _axes(draft, part, rank) != [axis]:
            return None
        if {draft.affinity.get(n.name) for n in (part, stack)} != {draft.affinity.get(node.name)}:
            return None
        found.append(part.input[0])
    # A stack needs equal sizes; an operator by element would repeat one of 1.
    shapes = {values[name].shape if name in values else None for name in found}
    return found if len(shapes) == 1 and None not in shapes else None


def _axes(draft: Draft, node: onnx.NodeProto, rank: int) -> list[int] | None:
    """The axes of a node, which are an attribute or a second input; None if they are not known."""
    given = _attributes(node).get("axes")
    if given is None and len(node.input) > 1 and node.input[1]:
        constant = draft.weights.get(node.input[1])
        given = None if constant is None else np.asarray(constant).reshape(-1).tolist()
    return None if given is None else [int(axis) % rank for axis in given]


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}

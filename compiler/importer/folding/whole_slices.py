"""Slices that take all of their input, which exporters write for `x[:, :]`, become Identity, which is removed.

Those that go backwards without an end get the end that means so in ONNX's specification, too.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from heterocc.compiler.importer.draft.draft import Draft, graphs_of
from heterocc.compiler.importer.draft.names import Namer
from heterocc.compiler.importer.draft.written import become_copy
from heterocc.compiler.operators.arrays.slices import FAR, NO_ENDS
from heterocc.passes.graph import Value


def bypass_whole_slices(draft: Draft, values: Mapping[str, Value]) -> bool:
    """Replace them, also those of dimensions of unknown size; return whether there were some.

    Such a slice between a layer and what is fused with it would keep its sizes in another form than the layer's.
    """
    changed = False
    for node in draft.graph.node:
        if node.op_type == "Slice" and not node.domain and node.input and _is_whole(node, draft, values):
            become_copy(node)
            changed = True
    return changed


def state_backward_ends(draft: Draft, namer: Namer) -> None:
    """Replace the largest integers as ends of slices with a negative step by the least one.

    ONNX Runtime takes both for no end; for ONNX's shape inference such a slice is empty.
    """
    for graph in graphs_of(draft.graph):
        for node in graph.node:
            if node.op_type != "Slice" or node.domain or len(node.input) < 5:
                continue
            ends, steps = draft.weights.get(node.input[2]), draft.weights.get(node.input[4])
            if ends is None or steps is None or ends.shape != steps.shape:
                continue
            unended = (steps < 0) & np.isin(ends, NO_ENDS)
            if unended.any():
                node.input[2] = namer.give(f"{node.name}_ends", "v")
                draft.weights[node.input[2]] = np.where(unended, np.iinfo(ends.dtype).min, ends)


def _is_whole(node: onnx.NodeProto, draft: Draft, values: Mapping[str, Value]) -> bool:
    starts, ends, axes, steps = (_numbers(node, draft, place, name) for place, name in enumerate(_NAMES, 1))
    if starts is None or ends is None or axes is None or steps is None:
        return False
    axes, steps = axes or list(range(len(starts))), steps or [1] * len(starts)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        return False  # the model is invalid, and others say so
    value = values.get(node.input[0])
    shape = None if value is None else value.shape
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        size = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
        ends_behind = end >= FAR or (isinstance(size, int) and end >= size)
        begins_before = start == 0 or start <= -FAR or (isinstance(size, int) and start <= -size)
        if step != 1 or not ends_behind or not begins_before:
            return False
    return True


_NAMES = ("starts", "ends", "axes", "steps")


def _numbers(node: onnx.NodeProto, draft: Draft, place: int, name: str) -> list[int] | None:
    """The integers of an input or attribute: empty if they are left out, None if they are not constant."""
    if draft.opset < 10:
        found = next((a.ints for a in node.attribute if a.name == name), ())
        return [int(n) for n in found]
    if len(node.input) <= place or not node.input[place]:
        return []
    array = draft.weights.get(node.input[place])
    return None if array is None else [int(n) for n in array.reshape(-1)]

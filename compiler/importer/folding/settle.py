"""Shapes that nodes take from computed integers, as constants that mean the same for all sizes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from heterocc.compiler.importer.draft.draft import Draft
from heterocc.compiler.importer.draft.names import derived
from heterocc.compiler.importer.symbols.agree import ask, copied_axes
from heterocc.compiler.operators.table import of_node
from heterocc.compiler.symbolic.given import Given
from heterocc.compiler.symbolic.requirement import input_name
from heterocc.passes.graph import Value


def settle_shapes(draft: Draft, values: Mapping[str, Value]) -> bool:
    """Replace computed shapes of Reshape, Expand and Slice by constants; return whether any was replaced.

    A dimension that is copied is 0 in a Reshape and 1 in an Expand; a Reshape infers one that is not copied. Ends of
    slices count from the back.
    """
    symbols = draft.symbols
    if symbols is None:
        return False
    changed = False
    for node in draft.graph.node:
        rule = of_node(node).settled
        computed = [i for i, name in enumerate(node.input) if i and name and name not in draft.weights]
        if rule is None or not computed:
            continue
        shapes = [symbols.shape_of(values.get(name)) for name in node.input]
        given = Given(node, draft.opset, shapes, [symbols.contents.get(name) for name in node.input])
        result = symbols.shape_of(values.get(node.output[0]))
        if symbols.steps and ask(given, result).equal:
            continue  # the dimension is another multiple than the one that would be inferred
        if copied_axes(given, symbols.fresh.keys()):
            continue  # for a size of 0 it means something else
        for index, numbers in rule(given, result or ()).items():
            if index not in computed:
                continue
            ending = input_name(node, draft.opset, index).strip("'")
            name = derived(node.name, ending)
            draft.weights[name] = np.array(numbers, np.int64)
            node.input[index] = name
            changed = True
    return changed


def settled_constant(draft: Draft, node: onnx.NodeProto, values: Mapping[str, Value]) -> np.ndarray | None:
    """The result of a node with one output if its integers are the same for all sizes, else None."""
    if draft.symbols is None or len(node.output) != 1:
        return None
    found = draft.symbols.contents.get(node.output[0])
    value = None if found is None else values.get(node.output[0])
    if found is None or value is None or any(e is None or e.number is None for e in found.flat):
        return None
    numbers = np.array([e.number for e in found.flat], np.int64)
    return numbers.astype(value.dtype).reshape(found.shape)

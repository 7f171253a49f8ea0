"""Shapes that nodes take from computed integers, as constants that mean the same for all sizes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from heterocc.compiler.importer.draft.draft import Draft
from heterocc.compiler.importer.symbols.agree import copied_axes, needed_equal
from heterocc.compiler.operators.slices import slice_axes
from heterocc.compiler.symbolic.given import Given
from heterocc.compiler.symbolic.sizes import Size
from heterocc.passes.graph import Value

_END = 2**63 - 1


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
        rule = _RULES.get(node.op_type) if not node.domain else None
        computed = [i for i, name in enumerate(node.input) if i and name and name not in draft.weights]
        if rule is None or not computed:
            continue
        shapes = [symbols.shape_of(values.get(name)) for name in node.input]
        given = Given(node, draft.opset, shapes, [symbols.contents.get(name) for name in node.input])
        result = symbols.shape_of(values.get(node.output[0]))
        if symbols.steps and any(True for _ in needed_equal(given, result)):
            continue  # the dimension is another multiple than the one that would be inferred
        if copied_axes(given, symbols.fresh.keys()):
            continue  # for a size of 0 it means something else
        for index, numbers in rule(given, result or ()).items():
            if index not in computed:
                continue
            name = f"{node.name}_{'shape' if node.op_type != 'Slice' else ('starts', 'ends')[index - 1]}"
            draft.weights[name] = np.array(numbers, np.int64)
            node.input[index] = name
            changed = True
    return changed


def _reshape(given: Given, result: tuple[Size | None, ...]) -> dict[int, list[int]]:
    shape = given.shape()
    if shape is None or not result or given.attribute("allowzero", 0):
        return {}
    numbers = []
    for axis, size in enumerate(result):
        if size is not None and size.number is not None:
            numbers.append(size.number or -2)
        else:
            numbers.append(0 if size is not None and axis < len(shape) and shape[axis] == size else -1)
    return {1: numbers} if numbers.count(-1) < 2 and -2 not in numbers else {}


def _expand(given: Given, result: tuple[Size | None, ...]) -> dict[int, list[int]]:
    shape, wanted = given.shape(), given.sizes(1)
    if shape is None or wanted is None:
        return {}
    numbers = []
    for place, size in enumerate(wanted):
        axis = place - len(wanted) + len(shape)
        if size.number is not None:
            numbers.append(size.number)
        elif axis >= 0 and shape[axis] == size:
            numbers.append(1)
        else:
            return {}
    return {1: numbers}


def _slice(given: Given, _result: tuple[Size | None, ...]) -> dict[int, list[int]]:
    shape, parts = given.shape(), slice_axes(given) if given.opset >= 10 else None
    if shape is None or parts is None:
        return {}
    found: dict[int, list[int]] = {}
    for index in (1, 2):
        numbers = [_from_back(shape[axis], (start, end)[index - 1]) for axis, start, end, _ in parts]
        if all(n is not None for n in numbers):
            found[index] = [n for n in numbers if n is not None]
    return found


def _from_back(size: Size | None, index: Size) -> int | None:
    if index.number is not None or size is None:
        return index.number
    back = (size - index).number
    return None if back is None or back < 0 else -back if back else _END


_RULES = {"Reshape": _reshape, "Expand": _expand, "Slice": _slice}


def settled_constant(draft: Draft, node: onnx.NodeProto, values: Mapping[str, Value]) -> np.ndarray | None:
    """The result of a node with one output if its integers are the same for all sizes, else None."""
    if draft.symbols is None or len(node.output) != 1:
        return None
    found, value = draft.symbols.contents.get(node.output[0]), values.get(node.output[0])
    if found is None or value is None or any(e is None or e.number is None for e in found.flat):
        return None
    numbers = np.array([e.number for e in found.flat], np.int64)
    return numbers.astype(value.dtype).reshape(found.shape)

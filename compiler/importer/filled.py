"""Sizes that ONNX Runtime needs to be 1 or more, of those that can be checked before a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx

from heterocc.artifacts.manifest import MAX_TOKENS
from heterocc.compiler.importer.onnx_tools.filled import Group, filled_groups
from heterocc.compiler.importer.symbols.symbols import Symbols
from heterocc.compiler.symbolic.given import Shape
from heterocc.compiler.symbolic.postfix import postfix
from heterocc.compiler.symbolic.requirement import Requirement
from heterocc.compiler.symbolic.sizes import Size, number
from heterocc.passes.graph import Value


def filled_requirements(
    node: onnx.NodeProto, values: Mapping[str, Value], symbols: Symbols | None, *, quantised: bool
) -> dict[str, list[Requirement]]:
    """The requirements of a node's inputs, by value; a value of which a run has to find out sizes is left out.

    `symbols` is None if all sizes are fixed.
    """
    symbols = Symbols(()) if symbols is None else symbols
    shapes = [symbols.shape_of(values.get(name)) for name in node.input]
    found: dict[str, list[Requirement]] = {}
    for group in filled_groups(node, quantised=quantised):
        needed = _needed(group, shapes, symbols)
        name = node.input[group[0].place]
        if needed is not None:
            found.setdefault(name, []).extend(needed)
    return found


def _needed(group: Group, shapes: Sequence[Shape], symbols: Symbols) -> list[Requirement] | None:
    """What is to be checked, which may be nothing; None if it cannot be."""
    for part in group:
        shape = shapes[part.place] if part.place < len(shapes) else None
        sizes = [] if shape is None else shape[part.axes]
        if sizes and all(size is not None and (size.number or 0) > 0 for size in sizes):
            return []
    part = group[0]
    shape = shapes[part.place]
    if shape is None:
        return None
    found = []
    for axis in range(len(shape))[part.axes]:
        size = shape[axis]
        if size is None or not _can_be_stated(size, symbols):
            return None
        if size.number is None:
            found.append(Requirement(size, "at_least", number(1), f"dimension {axis} of input {part.place}"))
    return found


def _can_be_stated(size: Size, symbols: Symbols) -> bool:
    """Whether a size is 1 or more, or a bundle can have a condition of it."""
    if size.number is not None:
        return size.number > 0
    return size.names <= set(symbols.names) and len(tuple(postfix(size))) <= MAX_TOKENS

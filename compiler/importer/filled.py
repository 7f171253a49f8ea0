"""Sizes of which ONNX Runtime does not check what it needs, as far as they are known or can be checked before a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import onnx

from heterocc.artifacts.manifest import MAX_TOKENS
from heterocc.compiler.importer.onnx_tools.filled import filled_groups
from heterocc.compiler.importer.symbols.symbols import Symbols
from heterocc.compiler.operators.record import Group
from heterocc.compiler.operators.table import of_node
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


def agreeing_joins(nodes: Iterable[onnx.NodeProto], values: Mapping[str, Value], symbols: Symbols | None) -> set[str]:
    """The results of concatenations whose parts agree in all sizes but those of the axis, in all runs."""
    symbols = Symbols(()) if symbols is None else symbols
    found = set()
    for node in nodes:
        if of_node(node).joins:
            attributes = {a.name: a.i for a in node.attribute}
            if of_node(node).joins == "sequence":
                held = symbols.elements.get(node.input[0])
                shapes = [None if held is None else held.shape]
            else:
                shapes = [symbols.shape_of(values.get(name)) for name in node.input]
            if _agree(shapes, attributes.get("axis", 0), bool(attributes.get("new_axis")), symbols):
                found.add(node.output[0])
    return found


def _agree(shapes: Sequence[Shape], axis: int, new: bool, symbols: Symbols) -> bool:
    """Whether shapes are equal but for an axis, or if the axis is `new`, altogether."""
    first = shapes[0]
    if first is None:
        return False
    sizes = [None if shape is None or len(shape) != len(first) else list(shape) for shape in shapes]
    for found in sizes:
        if found is not None and not new:
            del found[axis]
    known = [found for found in sizes if found is not None and None not in found]
    pairs = [pair for found in known for pair in zip(found, known[0], strict=True)]
    return len(known) == len(shapes) and all(symbols.agree(a, b) for a, b in pairs if a is not None and b is not None)

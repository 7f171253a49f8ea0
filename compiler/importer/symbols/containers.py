"""Nodes on sequences and optional values: what they are given, and what their results hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence

import onnx

from heterocc.compiler.operators.table import of_node
from heterocc.compiler.symbolic.containers import Elements, Held, Typed
from heterocc.compiler.symbolic.given import Shape
from heterocc.passes.graph import Value


def touches_containers(node: onnx.NodeProto) -> bool:
    """Whether a node is one of the operators on sequences and optional values."""
    return of_node(node).holds is not None


def container_results(node: onnx.NodeProto, given: Sequence[Held | None]) -> list[Typed] | None:
    """The results of an operator on sequences and optional values; None if they are not known."""
    rule = of_node(node).holds
    return None if rule is None else rule(node, given)


def inputs_of(
    node: onnx.NodeProto,
    values: Mapping[str, Value],
    elements: Mapping[str, Elements],
    shape_of: Callable[[Value], Shape],
) -> list[Held | None] | None:
    """The inputs of a node on sequences or optional values; None for other nodes."""
    if not touches_containers(node) or (of_node(node).copies and node.input[0] not in elements):
        return None
    found = [values.get(name) if name else None for name in node.input]
    return [None if v is None else Held(v.dtype, shape_of(v), elements.get(v.name)) for v in found]


def note_results(
    node: onnx.NodeProto,
    typed: Sequence[Typed],
    values: MutableMapping[str, Value],
    elements: MutableMapping[str, Elements],
) -> tuple[list[str | None], list[Shape]]:
    """Add the results that are sequences or optional values; returns dtypes and shapes, None for those."""
    kinds: list[str | None] = []
    shapes: list[Shape] = []
    for name, (dtype, what) in zip(node.output, typed, strict=False):
        kinds.append(dtype)
        shapes.append(None if isinstance(what, Elements) else what)
        if isinstance(what, Elements):
            elements[name] = what
            values[name] = Value(name, dtype, None)
    return kinds, shapes

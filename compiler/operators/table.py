"""The records of all operators, by domain and name."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx

from heterocc.compiler.files.modules import modules_of
from heterocc.compiler.files.records import include_source
from heterocc.compiler.operators import arrays, elements, flow, layers
from heterocc.compiler.operators.record import Operator
from heterocc.passes.graph import Node

_ROOMS = (arrays, elements, flow, layers)
_TABLE: dict[tuple[str, str], Operator] = {}


def add(operator: Operator) -> None:
    """Add the record of an operator from outside. Raises ValueError if there is one.

    Cached results depend on the file of its conversion, too.
    """
    _put(operator)
    path = None if operator.convert is None else inspect.getsourcefile(operator.convert)
    if path is not None:
        include_source(Path(path))


def _put(operator: Operator) -> None:
    key = operator.domain, operator.name
    if key in _TABLE:
        raise ValueError(f"operator '{operator.name}' of domain '{operator.domain}' already has a record")
    _TABLE[key] = operator


for _room in _ROOMS:
    for _family in modules_of(_room.__name__, _room.__path__):
        for _operator in _family.OPERATORS:
            _put(_operator)


def operators() -> Iterator[Operator]:
    """All records."""
    return iter(_TABLE.values())


def named(name: str, domain: str = "") -> Operator:
    """The record of an operator; one that says the usual if there is none."""
    if domain == "ai.onnx":
        domain = ""
    return _TABLE.get((domain, name)) or Operator(name, domain)


def of_node(node: onnx.NodeProto) -> Operator:
    """The record of a node's operator."""
    return _TABLE.get((node.domain, node.op_type)) or named(node.op_type, node.domain)


def rounds_if_packed(node: onnx.NodeProto) -> bool:
    """Whether ONNX Runtime rounds a factor of the node's product only if it packs the weights."""
    found = of_node(node).packed_rounds
    return found is not None and found(node)


def operators_of(graphs: Iterable[onnx.GraphProto]) -> list[Operator]:
    """The records of the operators of graphs, without those of their bodies."""
    used = {(node.domain, node.op_type) for graph in graphs for node in graph.node}
    return [named(name, domain) for domain, name in used]


def of_type(op_type: str) -> Operator:
    """The record of an operator by the type of a graph's node, `com.microsoft::Gelu`."""
    domain, _, name = op_type.rpartition("::")
    return named(name, domain)


def makes_choice(node: Node) -> bool:
    """Whether a node has an output that is a choice, which rounding of its inputs can change as a whole."""
    choice = of_type(node.op_type).choice
    return choice is not None and choice < len(node.outputs)

"""Loop and Scan in one form: a body that is repeated, with states, rows that it reads and rows that it collects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from heterocc.compiler.operators.table import of_node


@dataclass(frozen=True, slots=True)
class State:
    """A value that is carried from one trip to the next.

    `initial` is the outer value before the first trip, `given` the body's input, `returned` the value that the next
    trip gets, `result` the outer value after the last trip, empty if it is not read.
    """

    initial: str
    given: str
    returned: str
    result: str


@dataclass(frozen=True, slots=True)
class Rows:
    """Slices of an outer value along an axis, one for each trip: `inner` in the body, which reads or returns it."""

    outer: str
    inner: str
    axis: int
    reverse: bool


@dataclass(frozen=True, slots=True)
class Repeat:
    """A Loop or Scan.

    `limit` is the value with the largest number of trips, `first` that of the condition before the first trip,
    `condition` the body's value of the condition before the next one; each is empty if there is none. Without `limit`
    the rows that are read determine the number of trips. `index` and `going` are the body's inputs for the number of
    the trip and the condition.
    """

    body: onnx.GraphProto
    index: str
    going: str
    limit: str
    first: str
    condition: str
    states: tuple[State, ...]
    read: tuple[Rows, ...]
    collected: tuple[Rows, ...]


def is_control(node: onnx.NodeProto) -> bool:
    """Whether the node has branches or a body."""
    return bool(of_node(node).control)


def first_state(node: onnx.NodeProto) -> int:
    """The place of the first state among the inputs of a body: a Loop has the trip and the condition before it."""
    return 2 if of_node(node).control == "loop" else 0


def body_of(node: onnx.NodeProto, name: str = "body") -> onnx.GraphProto:
    """The graph in an attribute of a node."""
    return next(a.g for a in node.attribute if a.name == name)


def constants_of(body: onnx.GraphProto) -> dict[str, np.ndarray[Any, Any]]:
    """The body's own constants."""
    return {t.name: numpy_helper.to_array(t) for t in body.initializer}


def repeat_of(node: onnx.NodeProto, constants: Mapping[str, np.ndarray[Any, Any]]) -> Repeat | None:
    """A Loop or Scan node in this form; None for Scan of opset 8, whose first input is not a state."""
    body = body_of(node)
    return _loop(node, body, constants) if first_state(node) else _scan(node, body)


def _loop(node: onnx.NodeProto, body: onnx.GraphProto, constants: Mapping[str, np.ndarray[Any, Any]]) -> Repeat:
    given = [*node.input, "", ""]
    index, going = body.input[0].name, body.input[1].name
    count = len(body.input) - 2
    results = [*node.output, *[""] * len(body.output)]
    states = tuple(
        State(given[2 + i], body.input[2 + i].name, body.output[1 + i].name, results[i]) for i in range(count)
    )
    collected = tuple(
        Rows(results[count + i], o.name, 0, reverse=False) for i, o in enumerate(body.output[1 + count :])
    )
    condition = _source(body, body.output[0].name)
    known = {**constants, **constants_of(body)}.get(condition)
    if condition == going or (known is not None and bool(known.reshape(-1)[0])):
        condition = ""
    return Repeat(body, index, going, given[0], given[1], condition, states, (), collected)


def _source(body: onnx.GraphProto, name: str) -> str:
    """The value of which a value of the body is a copy."""
    copies = {n.output[0]: n.input[0] for n in body.node if of_node(n).copies}
    while name in copies:
        name = copies[name]
    return name


def _scan(node: onnx.NodeProto, body: onnx.GraphProto) -> Repeat | None:
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    scanned = attributes["num_scan_inputs"]
    count = len(body.input) - scanned
    if len(node.input) != len(body.input) or "directions" in attributes:
        return None
    results = [*node.output, *[""] * len(body.output)]
    states = tuple(State(node.input[i], body.input[i].name, body.output[i].name, results[i]) for i in range(count))
    rest = len(body.output) - count
    axes, ways = (attributes.get(f"scan_input_{k}", [0] * scanned) for k in ("axes", "directions"))
    read = tuple(
        Rows(node.input[count + i], body.input[count + i].name, axes[i], bool(ways[i])) for i in range(scanned)
    )
    axes, ways = (attributes.get(f"scan_output_{k}", [0] * rest) for k in ("axes", "directions"))
    collected = tuple(
        Rows(results[count + i], body.output[count + i].name, axes[i], bool(ways[i])) for i in range(rest)
    )
    return Repeat(body, f"{node.name}_index", "", "", "", "", states, read, collected)

"""Nodes written in ONNX's text form: `sum = Add (left, right)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import onnx
from onnx import parser

from heterocc.compiler.importer.draft.draft import bodies


def written(
    text: str,
    given: Mapping[str, str],
    new: Callable[[str], str],
    label: Callable[[onnx.NodeProto], str] = lambda node: node.output[0],
) -> list[onnx.NodeProto]:
    """The nodes of a text, one a line.

    `given` has the names in the model of values of the text that exist there; `new` makes those of the others, once for
    each value. `label` names a node, by default after its first result.
    """
    names = {"": "", **given}
    nodes = []
    for line in _parsed(text):
        node = onnx.NodeProto.FromString(line)
        _rename(node, names, new)
        node.name = label(node)
        nodes.append(node)
    return nodes


def copy_of(value: str, result: str, name: str) -> onnx.NodeProto:
    """A node whose result is a value as it is."""
    (node,) = written("result = Identity (value)", {"value": value, "result": result}, str, lambda _: name)
    return node


def become_copy(node: onnx.NodeProto) -> None:
    """Let the result of a node be its first input as it is."""
    node.CopyFrom(copy_of(node.input[0], node.output[0], node.name))


def _rename(node: onnx.NodeProto, names: dict[str, str], new: Callable[[str], str]) -> None:
    def renamed(name: str) -> str:
        if name not in names:
            names[name] = new(name)
        return names[name]

    node.input[:] = [renamed(name) for name in node.input]
    for body in bodies(node):
        for info in (*body.input, *body.output):
            info.name = renamed(info.name)
        for inner in body.node:
            _rename(inner, names, new)
            inner.name = inner.output[0]
    node.output[:] = [renamed(name) for name in node.output]


@cache
def _parsed(text: str) -> tuple[bytes, ...]:
    function = parser.parse_function(f'<domain: "text", opset_import: ["": 1]> text () => () {{{text}}}')
    for node in function.node:
        _clear_domain(node)
    return tuple(node.SerializeToString() for node in function.node)


def _clear_domain(node: onnx.NodeProto) -> None:
    """Leave the domain of ONNX's own operators out, as its other tools do."""
    if not node.domain:
        node.ClearField("domain")
    for body in bodies(node):
        for inner in body.node:
            _clear_domain(inner)

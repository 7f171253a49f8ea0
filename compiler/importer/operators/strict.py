"""Changes of ONNX's definitions of operators, so that they refuse what ONNX Runtime's operators refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto

from heterocc.compiler.importer.draft.constants import constant_node
from heterocc.compiler.importer.draft.draft import set_nodes
from heterocc.compiler.importer.draft.written import written
from heterocc.compiler.operators.table import of_node


def make_strict(call: onnx.NodeProto, graph: onnx.GraphProto) -> None:
    """Change the definition of a call, in a graph that has only it, where sizes would fit that must not."""
    rule = None if call.domain else _RULES.get(of_node(call).stricter)
    if rule is not None:
        rule(call, graph)


def _window(call: onnx.NodeProto, graph: onnx.GraphProto) -> None:
    """The places 0, 1, … as running sums of as many ones as are asked for: a Range of a negative number is empty."""
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type == "Range":
            constants = [
                constant_node(f"strict_{name}", np.array([n], np.int64)) for name, n in (("vector", 1), ("axis", 0))
            ]
            ends = {"size": call.input[0], "places": node.output[0]}
            nodes += constants + written(_PLACES, ends, _strict, lambda _: "")
        else:
            nodes.append(node)
    set_nodes(graph, nodes)


_PLACES = f"""
    number = Cast <to = {TensorProto.INT64}> (size)
    length = Reshape (number, vector)
    ones = ConstantOfShape <value = int64[1] {{1}}> (length)
    sums = CumSum <exclusive = 1> (ones, axis)
    places = Cast <to = {TensorProto.FLOAT}> (sums)
"""


def _strict(name: str) -> str:
    return f"strict_{name}"


def _rotary_embedding(call: onnx.NodeProto, graph: onnx.GraphProto) -> None:
    """A position for each token, and tables of one shape that fit: the definition broadcasts.

    Tables have a row for each position, or for each token if there are no positions, and are as wide as what they are
    multiplied with.
    """
    data, *tables = call.input[:3]
    by_table = set(tables)
    after: list[onnx.NodeProto] = []
    before: list[onnx.NodeProto] = []
    for node in graph.node:
        depends = not by_table.isdisjoint(node.input)
        by_table |= set(node.output) if depends else set()
        (after if depends else before).append(node)
    factors = (set(n.input) - by_table for n in after if of_node(n).symbol == "*")
    turned = next((name for found in factors for name in found), None)
    if turned is None:
        return
    tokens = [(data, 0), (data, -2)]
    positions = [name for name in call.input[3:4] if name]
    rows = [(tables[0], 0)] if positions else tokens
    fitted = {name: [*rows, (turned, -1)] for name in tables} | dict.fromkeys(positions, tokens)
    for node in after:
        node.input[:] = [f"strict_{name}" if name in fitted else name for name in node.input]
    set_nodes(graph, [*before, *(node for name, sizes in fitted.items() for node in _shaped(name, sizes)), *after])


def _swiglu(call: onnx.NodeProto, graph: onnx.GraphProto) -> None:
    """Both inputs of one shape: the definition multiplies them, which broadcasts."""
    first, second = call.input
    ranks = {info.name: len(info.type.tensor_type.shape.dim) for info in graph.input}
    if first == second or ranks[first] != ranks[second]:
        return
    for node in graph.node:
        node.input[:] = [f"strict_{name}" if name == second else name for name in node.input]
    set_nodes(graph, [*_shaped(second, [(first, axis) for axis in range(ranks[first])]), *graph.node])


def _shaped(value: str, sizes: Sequence[tuple[str, int]]) -> Iterator[onnx.NodeProto]:
    """Nodes that write `value` to the same name with "strict_" before it, if it has these sizes: of values' axes.

    There is a Reshape for each axis: one for all would take other shapes of as many elements.
    """
    new = f"strict_{value}"
    read = value
    for axis, (other, place) in enumerate(sizes):
        parts = [(other, place) if part == axis else (value, part) for part in range(len(sizes))]
        lines = [
            f"size{part} = Shape <start = {first}{'' if first == -1 else f', end = {first + 1}'}> (of{part})"
            for part, (_, first) in enumerate(parts)
        ]
        lines.append(f"wanted = Concat <axis = 0> ({', '.join(f'size{part}' for part in range(len(sizes)))})")
        lines.append("written = Reshape <allowzero = 1> (read, wanted)")
        result = new if axis == len(sizes) - 1 else f"{new}_as_far_as_{axis}"
        ends = {f"of{part}": of for part, (of, _) in enumerate(parts)} | {"read": read, "written": result}
        yield from written("\n".join(lines), ends, lambda name, axis=axis: f"{new}_{axis}_{name}", lambda _: "")  # type: ignore[misc]
        read = result


_RULES: Mapping[str, Callable[[onnx.NodeProto, onnx.GraphProto], None]] = {
    "counted": _window,
    "turned": _rotary_embedding,
    "alike": _swiglu,
}

"""Sequences in the state of a loop, as tensors: rows that it collects, or one state for each element."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from heterocc.compiler.importer.draft.draft import keep, nodes_of
from heterocc.compiler.importer.sequences.writer import Writer
from heterocc.compiler.operators.table import of_node
from heterocc.compiler.symbolic.opened import Listed, Pieces

_FIRST = 2
"""The number of trips and the condition come before the states."""


@dataclass(frozen=True, slots=True)
class Collected:
    """A result of a loop that was a sequence, and the tensor that has its elements as rows."""

    result: str
    rows: str


def collect(writer: Writer, node: onnx.NodeProto, body: onnx.GraphProto) -> list[Collected]:
    """Let a loop return rows in place of each sequence that starts empty and gets one tensor on each trip.

    Rows have the same shape on each trip; a sequence of tensors that may differ stays one.
    """
    found = []
    for place in reversed(range(len(node.input) - _FIRST)):
        inserts = _inserts(writer, node, body, place)
        if not inserts or not writer.is_fixed(inserts[-1].input[1]):
            continue
        state, end = body.input[_FIRST + place], body.output[1 + place]
        kind = end.type.sequence_type.elem_type.tensor_type.elem_type
        row = writer.returned(body, inserts[-1].input[1], kind)
        gone = {n.output[0] for n in inserts}
        keep(body.node, lambda n, gone=gone: gone.isdisjoint(n.output))  # type: ignore[misc]
        results = [*node.output, *[""] * (len(body.output) - 1 - len(node.output))]
        rows = writer.fresh("rows")
        found.append(Collected(results.pop(place), rows))
        node.output[:] = [*results, rows]
        body.input.remove(state)
        body.output.remove(end)
        body.output.append(row)
        del node.input[_FIRST + place]
    return found


def _inserts(writer: Writer, node: onnx.NodeProto, body: onnx.GraphProto, place: int) -> list[onnx.NodeProto]:
    """The nodes from a state to what it is on the next trip if these append one tensor; the last one inserts it."""
    held = writer.known.get(node.input[_FIRST + place])
    if not isinstance(held, Listed) or held.elements:
        return []
    name, end = body.input[_FIRST + place].name, body.output[1 + place].name
    ends = [o.name for o in body.output]
    if ends.count(end) != 1:
        return []
    path: list[onnx.NodeProto] = []
    while name != end:
        readers = [n for n in nodes_of(body.node) if name in n.input]
        direct = [n for n in body.node if name in n.input]
        if len(readers) != 1 or len(direct) != 1 or name in ends:
            return []
        reader = direct[0]
        appends = of_node(reader).inserts and not any(reader.input[2:]) and reader.input[1] != name
        if not (of_node(reader).copies or appends):
            return []
        path.append(reader)
        name = reader.output[0]
    if any(name in n.input for n in nodes_of(body.node)):
        return []
    inserted = [n for n in path if not of_node(n).copies]
    return [*(n for n in path if n not in inserted), *inserted] if len(inserted) == 1 else []


def open_states(writer: Writer, node: onnx.NodeProto, body: onnx.GraphProto) -> dict[int, int]:
    """Let a loop have a state for each tensor of sequences that are known before it.

    Returns the number of tensors by the place that the sequence had. The body still returns the sequences.
    """
    opened: dict[int, int] = {}
    inputs, states = list(node.input[:_FIRST]), list(body.input[:_FIRST])
    for place, (name, state) in enumerate(zip(node.input[_FIRST:], body.input[_FIRST:], strict=True)):
        held = writer.known.get(name)
        tensors = held.tensors if isinstance(held, Listed) else None
        if not tensors:
            inputs.append(name)
            states.append(state)
            continue
        kind = state.type.sequence_type.elem_type.tensor_type.elem_type
        fresh = [onnx.ValueInfoProto(name=writer.fresh("state")) for _ in tensors]
        for info in fresh:
            info.type.tensor_type.elem_type = kind
        inputs += tensors
        states += fresh
        writer.known[state.name] = Listed(tuple(info.name for info in fresh))
        opened[place] = len(tensors)
    if opened:
        states = [onnx.ValueInfoProto.FromString(s.SerializeToString()) for s in states]
        del body.input[:]
        body.input.extend(states)
        node.input[:] = inputs
    return opened


def return_states(
    writer: Writer, node: onnx.NodeProto, body: onnx.GraphProto, opened: dict[int, int]
) -> list[tuple[str, list[str]]] | None:
    """Let the body return the tensors of opened states; None, and a body that is not valid, if one has others.

    Returns each result of the loop that was a sequence, with the results that are its tensors.
    """
    found: list[tuple[str, list[str]]] = []
    ends, results = list(body.output), [*node.output, *[""] * (len(body.output) - 1 - len(node.output))]
    outputs, names = ends[:1], []
    for place, end in enumerate(ends[1:]):
        if place not in opened:
            outputs.append(end)
            names.append(results[place])
            continue
        held = writer.known.get(end.name)
        tensors = held.tensors if isinstance(held, Listed) else None
        if tensors is None or len(tensors) != opened[place]:
            return None
        kind = end.type.sequence_type.elem_type.tensor_type.elem_type
        outputs += [writer.returned(body, name, kind) for name in tensors]
        fresh = [writer.fresh("element") for _ in tensors]
        names += fresh
        found.append((results[place], fresh))
    outputs = [onnx.ValueInfoProto.FromString(o.SerializeToString()) for o in outputs]
    del body.output[:]
    body.output.extend(outputs)
    node.output[:] = names
    return found


def pieces(collected: Collected) -> Pieces:
    """What is known of a sequence that was collected."""
    return Pieces(collected.rows, 0, 1, keepdims=False)

"""Replacement of sequences and optional values by their elements, in a graph and the bodies of its nodes.

Exporters write lists of tensors as sequences: parts of a tensor, tensors that a loop collects, states of layers. Where
their elements follow from the model, no device needs to know of sequences. Nodes that become unused are left for
the simplification to remove.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from heterocc.compiler.importer.draft.draft import Draft, bodies, nodes_of, set_nodes
from heterocc.compiler.importer.draft.names import Namer, rename_values
from heterocc.compiler.importer.sequences.collected import Collected, collect, open_states, pieces, return_states
from heterocc.compiler.importer.sequences.writer import Writer
from heterocc.compiler.operators.table import of_node
from heterocc.compiler.symbolic.opened import Listed
from heterocc.passes.graph import Value

_MOST_UNROLLED = 4096
"""The most nodes that the trips of a loop over sequences are written as."""

_OLDEST = 13
"""The operator set from which on Split, Squeeze and Unsqueeze take their numbers as inputs."""


def open_sequences(draft: Draft, values: Mapping[str, Value], namer: Namer) -> bool:
    """Let nodes read the elements of sequences and optional values that are known; return whether any did."""
    if draft.opset < _OLDEST:
        return False
    writer = Writer(draft, values, namer)
    copy = onnx.GraphProto(node=draft.graph.node)
    written = _written(writer, copy.node)
    if writer.changed:
        set_nodes(draft.graph, written)
    return writer.changed


def _has_rules(nodes: Iterable[onnx.NodeProto]) -> bool:
    return any((operator := of_node(n)).opens is not None and not operator.copies for n in nodes_of(nodes))


def _written(writer: Writer, nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """The nodes that take the place of these."""
    outer, writer.nodes = writer.nodes, []
    for node in nodes:
        _write(writer, node)
    written, writer.nodes = writer.nodes, outer
    return written


def _write(writer: Writer, node: onnx.NodeProto) -> None:
    writer.begin(node)
    rule = of_node(node).opens
    if rule is not None:
        kept = len(writer.nodes)
        if rule(writer, node):
            writer.changed = True
        else:
            writer.nodes.insert(kept, node)
    elif of_node(node).control == "branches":
        _write_branches(writer, node)
    elif of_node(node).control == "loop":
        _write_loop(writer, node)
    else:
        _write_bodies(writer, node)
        writer.nodes.append(node)


def _write_bodies(writer: Writer, node: onnx.NodeProto) -> None:
    for body in bodies(node):
        set_nodes(body, _written(writer, body.node))
    writer.begin(node)


def _write_branches(writer: Writer, node: onnx.NodeProto) -> None:
    """An If; sequences of as many tensors in both branches become results of their own."""
    _write_bodies(writer, node)
    branches = list(bodies(node))
    listed: dict[int, list[tuple[str, ...]]] = {}
    for place in range(len(node.output)):
        held = [writer.known.get(branch.output[place].name) for branch in branches]
        names = [h.tensors for h in held if isinstance(h, Listed)]
        known = [n for n in names if n is not None]
        if len(known) == len(branches) == 2 and len(known[0]) == len(known[1]):
            listed[place] = known
    writer.nodes.append(node)
    if not listed:
        return
    results = list(node.output)
    ends = [list(branch.output) for branch in branches]
    del node.output[:]
    for branch in branches:
        del branch.output[:]
    for place, result in enumerate(results):
        if place not in listed:
            node.output.append(result)
            for branch, end in zip(branches, ends, strict=True):
                branch.output.append(end[place])
            continue
        elements = []
        for index in range(len(listed[place][0])):
            elements.append(writer.fresh("element"))
            for side, branch in enumerate(branches):
                kind = ends[side][place].type.sequence_type.elem_type.tensor_type.elem_type
                branch.output.append(writer.returned(branch, listed[place][side][index], kind))
        node.output.extend(elements)
        writer.sequence(elements, result)
        writer.known[result] = Listed(tuple(elements))
    writer.changed = True


def _write_loop(writer: Writer, node: onnx.NodeProto) -> None:
    body = bodies(node)[0]
    results: list[Collected] = []
    if any(name in writer.known for name in node.input[2:]) or _has_rules(body.node):
        if _unrolled(writer, node, body):
            writer.changed = True
            return
        if _with_opened_states(writer, node):
            return
        for collected in collect(writer, node, body):
            writer.changed = True
            if collected.result:
                results.append(collected)
    _write_bodies(writer, node)
    writer.nodes.append(node)
    for collected in results:
        writer.write("output = SplitToSequence <axis = 0, keepdims = 0> (rows)", collected.result, rows=collected.rows)
        writer.known[collected.result] = pieces(collected)


def _with_opened_states(writer: Writer, node: onnx.NodeProto) -> bool:
    """Write a loop with a state for each tensor of sequences that keep their length; return whether it has any."""
    known, changed = dict(writer.known), writer.changed
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    body = bodies(copy)[0]
    opened = open_states(writer, copy, body)
    results = None
    if opened:
        _write_bodies(writer, copy)
        results = return_states(writer, copy, body, opened)
    if results is None:
        writer.known, writer.changed = known, changed
        return False
    writer.nodes.append(copy)
    for result, tensors in results:
        if result:
            writer.sequence(tensors, result)
            writer.known[result] = Listed(tuple(tensors))
    writer.changed = True
    return True


def _unrolled(writer: Writer, node: onnx.NodeProto, body: onnx.GraphProto) -> bool:
    """Write each trip of a loop as nodes, if their number is known; return whether it was."""
    trips = writer.number(node.input[0]) if node.input[0] else None
    cost = sum(1 for _ in nodes_of(body.node))
    states = list(node.input[2:])
    scans = len(body.output) - 1 - len(states)
    if trips is None or max(trips, 0) * cost > _MOST_UNROLLED or (trips < 1 and scans):
        return False
    if not _always(writer, node, body):
        return False
    collected: list[list[str]] = [[] for _ in range(scans)]
    for trip in range(trips):
        copy = onnx.GraphProto()
        copy.CopyFrom(body)
        names = {name: name for name in {r for n in nodes_of(copy.node) for r in n.input if r}}
        own = {*(i.name for i in (*copy.input, *copy.initializer)), *(o for n in copy.node for o in n.output)}
        names = {name: name for name in names if name not in own}
        rename_values(copy, names, writer.fresh)
        for tensor in copy.initializer:
            writer.constant(numpy_helper.to_array(tensor), tensor.name)
        writer.constant(np.array(trip, np.int64), copy.input[0].name)
        writer.constant(np.array(True), copy.input[1].name)
        for given, state in zip(copy.input[2:], states, strict=True):
            if state in writer.known:
                writer.known[given.name] = writer.known[state]
            writer.copy(state, given.name)
        writer.note_constants(copy)
        for inner in nodes_of(copy.node):
            writer.adopt(inner)
        for inner in copy.node:
            _write(writer, inner)
        writer.begin(node)
        states = [o.name for o in copy.output[1 : 1 + len(states)]]
        for rows, output in zip(collected, copy.output[1 + len(states) :], strict=True):
            rows.append(output.name)
    writer.begin(node)
    for state, result in zip(states, node.output, strict=False):
        if result:
            writer.copy(state, result)
            if state in writer.known:
                writer.known[result] = writer.known[state]
    for rows, result in zip(collected, node.output[len(states) :], strict=False):
        if result:
            writer.stack(rows, 0, result)
    return True


def _always(writer: Writer, node: onnx.NodeProto, body: onnx.GraphProto) -> bool:
    """Whether only the number of trips ends a loop."""
    first = writer.array(node.input[1]) if len(node.input) > 1 and node.input[1] else np.array(True)
    if first is None or not first.all():
        return False
    made = {n.output[0]: n for n in body.node if of_node(n).copies}
    name = body.output[0].name
    while name in made:
        name = made[name].input[0]
    last = writer.array(name)
    return name == body.input[1].name or (last is not None and bool(last.all()))

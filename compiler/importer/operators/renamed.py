"""Operators of ONNX Runtime's domain that are operators of ONNX, or a few of them, under another name."""

from __future__ import annotations

import onnx

from heterocc.compiler.importer.draft.draft import Draft, graphs_of, set_nodes
from heterocc.compiler.importer.draft.names import Namer
from heterocc.compiler.importer.draft.written import written
from heterocc.compiler.operators.record import Renamed
from heterocc.compiler.operators.table import of_node


def rename_operators(draft: Draft, namer: Namer) -> None:
    """Write nodes as those of ONNX that compute the same, so that all devices know them."""
    for graph in graphs_of(draft.graph):
        if any(of_node(node).renamed is not None for node in graph.node):
            set_nodes(graph, [made for node in graph.node for made in _replaced(draft, node, namer)])


def _replaced(draft: Draft, node: onnx.NodeProto, namer: Namer) -> list[onnx.NodeProto]:
    form = of_node(node).renamed
    inputs = [name for name in node.input if name]
    absent_between = bool(node.input) and len(inputs) < len(node.input) and bool(node.input[-1])
    text = None if form is None or draft.opset < form.since or absent_between else _text(node, form, len(inputs))
    if form is None or not text:
        return [node]  # ONNX Runtime runs it, or says what is wrong with it
    outputs = [*node.output, *("",) * len(form.outputs)]
    given = dict(zip(form.inputs, inputs, strict=False)) | dict(zip(form.outputs, outputs, strict=False))
    made = written(text, given, lambda name: namer.give(f"{node.name}_{name}", "v"))
    for part in made[:-1]:
        part.name = namer.give(f"{node.name}_{part.op_type}", "n")
        draft.origins[part.name] = draft.origins.get(node.name, ())
    last = made[-1]
    last.name, last.domain = node.name, form.domain
    last.attribute.extend(a for a in node.attribute if a.name != form.read)
    return made


def _text(node: onnx.NodeProto, form: Renamed, inputs: int) -> str:
    """The text for a node with this many inputs and its attributes; empty if there is none."""
    chosen = next((a.s for a in node.attribute if a.name == form.read), None) if form.read else None
    if chosen is not None:
        return form.choices.get(chosen, "")
    return form.text if inputs == len(form.inputs) else form.without

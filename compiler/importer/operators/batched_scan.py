"""Scan of operator set 8, which has a batch axis, as the later one in a loop over the batch, which is a Scan, too."""

from __future__ import annotations

import onnx
from onnx import helper

from heterocc.compiler.importer.draft.draft import Draft, graphs_of, keep
from heterocc.compiler.importer.draft.names import unused
from heterocc.compiler.operators.table import of_node

_DOMAIN = "heterocc.batched"
"""The domain of such nodes while ONNX's converter runs, which converts only those of batches of 1."""

FIRST_WITHOUT_BATCH = 9


def hide_batched_scans(draft: Draft, version: int) -> None:
    """Hide the graph's Scans of operator set 8 from ONNX's converter; those with lengths of sequences stay."""
    if version >= FIRST_WITHOUT_BATCH:
        return
    for node in draft.graph.node:
        if of_node(node).control == "scan" and node.input and not node.input[0]:
            node.domain = _DOMAIN
            if all(entry.domain != _DOMAIN for entry in draft.model.opset_import):
                draft.model.opset_import.add(domain=_DOMAIN, version=1)


def show_batched_scans(draft: Draft, *, converted: bool) -> None:
    """Write the hidden nodes as later Scans if the model was `converted`; else put them back as they were."""
    taken = {name for g in graphs_of(draft.graph) for n in g.node for name in (*n.input, *n.output, n.name)}
    taken |= {i.name for g in graphs_of(draft.graph) for i in g.input}
    for node in draft.graph.node:
        if node.domain == _DOMAIN:
            node.domain = ""
            if converted:
                _write(node, taken)
    keep(draft.model.opset_import, lambda entry: entry.domain != _DOMAIN)


def _write(node: onnx.NodeProto, taken: set[str]) -> None:
    """Make a Scan over the batch, in the body of which a Scan runs over the sequence of one item."""
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    body, scanned = given["body"], given["num_scan_inputs"]
    outer = list(node.input[1:])
    states = len(outer) - scanned

    items = [unused(f"{name}_item", taken) for name in outer]
    results = [unused(f"{name}_item", taken) for name in node.output]
    label = unused(f"{node.name}_item", taken)
    inner = helper.make_node(node.op_type, items, results, label, body=body, num_scan_inputs=scanned)
    if "directions" in given:
        inner.attribute.append(helper.make_attribute("scan_input_directions", given["directions"]))
    loop = onnx.GraphProto(name=f"{body.name}_items", node=[inner])
    for names, infos, added in ((items, body.input, loop.input), (results, body.output, loop.output)):
        for place, (name, info) in enumerate(zip(names, infos, strict=True)):
            item = added.add(name=name)
            item.type.tensor_type.elem_type = info.type.tensor_type.elem_type
            if place < states and info.type.tensor_type.HasField("shape"):
                item.type.tensor_type.shape.CopyFrom(info.type.tensor_type.shape)
    del node.input[:]
    node.input.extend(outer)
    del node.attribute[:]
    node.attribute.extend([helper.make_attribute("body", loop), helper.make_attribute("num_scan_inputs", len(outer))])

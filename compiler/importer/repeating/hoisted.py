"""Products of the rows that a Scan reads by a weight, computed before it for all rows.

A product of one row reads all its weights, that of all rows reads them once. This is how recurrent layers are computed
that are operators of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx
from onnx import helper

from heterocc.compiler.importer.draft.draft import Draft, keep, np_type, set_nodes
from heterocc.compiler.importer.draft.names import Namer
from heterocc.compiler.importer.repeating.body import is_read
from heterocc.compiler.importer.symbols.repeats import Rows, repeat_of
from heterocc.passes.graph import Value


def hoist_products(draft: Draft, values: Mapping[str, Value], namer: Namer) -> bool:
    """Move such products out of the graph's Scans; return whether there was any."""
    nodes: list[onnx.NodeProto] = []
    changed = False
    for node in draft.graph.node:
        found = list(_products(draft, values, node))
        for rows, product in found:
            whole = namer.give(f"{product.output[0]}_rows", "v")
            name = namer.give(f"{product.name}_rows", "n")
            nodes.append(helper.make_node("MatMul", [rows.outer, product.input[1]], [whole], name=name))
            draft.origins[name] = draft.origins.get(node.name, ())
            if node.name in draft.affinity:
                draft.affinity[name] = draft.affinity[node.name]
            _read(node, rows, product, whole, np_type(values[rows.outer].dtype))
        nodes.append(node)
        changed |= bool(found)
    if changed:
        set_nodes(draft.graph, nodes)
    return changed


def _products(draft: Draft, values: Mapping[str, Value], node: onnx.NodeProto) -> Iterator[tuple[Rows, onnx.NodeProto]]:
    if node.op_type != "Scan" or node.domain:
        return
    repeat = repeat_of(node, draft.weights)
    if repeat is None:
        return
    for rows in repeat.read:
        value = values.get(rows.outer)
        rank = 0 if value is None or value.shape is None else len(value.shape)
        if rank < 3 or rows.axis % rank == rank - 1:  # a row is a vector, or its terms lie along the axis
            continue
        for product in repeat.body.node:
            if product.op_type == "MatMul" and not product.domain and product.input[0] == rows.inner:
                weight = draft.weights.get(product.input[1])
                if weight is not None and weight.ndim == 2:
                    yield rows, product


def _read(node: onnx.NodeProto, rows: Rows, product: onnx.NodeProto, whole: str, kind: int) -> None:
    """Let a Scan read the rows of a product, and those of the factor no longer if nothing else reads them."""
    body = next(a.g for a in node.attribute if a.name == "body")
    attributes = {a.name: a for a in node.attribute}
    count = attributes["num_scan_inputs"].i
    first = len(body.input) - count
    place = next(i for i, info in enumerate(body.input) if info.name == rows.inner) - first
    lists = [attributes[k] for k in ("scan_input_axes", "scan_input_directions") if k in attributes]
    node.input.append(whole)
    body.input.add(name=product.output[0]).type.tensor_type.elem_type = kind
    for attribute in lists:
        attribute.ints.append(attribute.ints[place])
    keep(body.node, lambda n: n.output[0] != product.output[0])
    if is_read(body, rows.inner):
        attributes["num_scan_inputs"].i = count + 1
        return
    del node.input[first + place]
    del body.input[first + place]
    for attribute in lists:
        del attribute.ints[place]

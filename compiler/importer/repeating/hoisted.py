"""Products of the rows that a Scan reads by a weight, computed before it for all rows.

A product of one row reads all its weights, that of all rows reads them once. This is how recurrent layers are computed
that are operators of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import helper

from heterocc.compiler.importer.draft.draft import Draft, np_type, set_nodes
from heterocc.compiler.importer.draft.names import Namer
from heterocc.compiler.importer.draft.written import copy_of, written
from heterocc.compiler.importer.repeating.body import is_read
from heterocc.compiler.importer.symbols.repeats import Rows, repeat_of
from heterocc.compiler.operators.layers.products import is_plain_product
from heterocc.compiler.operators.table import of_node
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
            weight = product.input[1]
            if _number(product, "transB", 0):
                weight = namer.give(f"{weight}_turned", "v")
                draft.weights[weight] = np.ascontiguousarray(draft.weights[product.input[1]].T)
            ends = {"rows": rows.outer, "weight": weight, "whole": whole}
            nodes += written("whole = MatMul (rows, weight)", ends, str, lambda _, name=name: name)  # type: ignore[misc]
            draft.origins[name] = draft.origins.get(node.name, ())
            if node.name in draft.affinity:
                draft.affinity[name] = draft.affinity[node.name]
            row = namer.give(f"{product.output[0]}_row", "v")
            _read(node, rows, product, (whole, row), np_type(values[rows.outer].dtype))
        nodes.append(node)
        changed |= bool(found)
    if changed:
        set_nodes(draft.graph, nodes)
    return changed


def _products(draft: Draft, values: Mapping[str, Value], node: onnx.NodeProto) -> Iterator[tuple[Rows, onnx.NodeProto]]:
    if of_node(node).control != "scan":
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
            if is_plain_product(product) and product.input[0] == rows.inner:
                weight = draft.weights.get(product.input[1])
                if weight is not None and weight.ndim == 2:
                    yield rows, product


def _number(node: onnx.NodeProto, name: str, default: float) -> float:
    found = next((a for a in node.attribute if a.name == name), None)
    return default if found is None else float(helper.get_attribute_value(found))


def _after(product: onnx.NodeProto, row: str) -> onnx.NodeProto:
    """What is left of a product's node in a body that reads the row: the sum with a bias, or a copy."""
    bias, result = next(filter(None, product.input[2:]), None), product.output[0]
    if bias is None:
        return copy_of(row, result, product.name)
    ends = {"row": row, "bias": bias, "result": result}
    return written("result = Add (row, bias)", ends, str, lambda _: product.name)[0]


def _read(node: onnx.NodeProto, rows: Rows, product: onnx.NodeProto, read: tuple[str, str], kind: int) -> None:
    """Let a Scan read the rows of a product, and those of the factor no longer if nothing else reads them.

    `read` are the names of the product of all rows, and of its row in the body.
    """
    body = next(a.g for a in node.attribute if a.name == "body")
    attributes = {a.name: a for a in node.attribute}
    count = attributes["num_scan_inputs"].i
    first = len(body.input) - count
    place = next(i for i, info in enumerate(body.input) if info.name == rows.inner) - first
    lists = [attributes[k] for k in ("scan_input_axes", "scan_input_directions") if k in attributes]
    node.input.append(read[0])
    body.input.add(name=read[1]).type.tensor_type.elem_type = kind
    for attribute in lists:
        attribute.ints.append(attribute.ints[place])
    for inner in body.node:
        if inner.output[0] == product.output[0]:
            inner.CopyFrom(_after(product, read[1]))
    if is_read(body, rows.inner):
        attributes["num_scan_inputs"].i = count + 1
        return
    del node.input[first + place]
    del body.input[first + place]
    for attribute in lists:
        del attribute.ints[place]

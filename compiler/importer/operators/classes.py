"""Names of classes beside numbers: for devices that have neither strings nor maps.

A classifier with string labels gives the numbers of classes, and a ZipMap the scores that it reads; the names are kept
by output, for the bundle's manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from heterocc.compiler.importer.draft.draft import Draft, keep
from heterocc.compiler.importer.draft.names import names_in, unused
from heterocc.compiler.importer.draft.written import become_copy, written
from heterocc.compiler.importer.operators.opset import TARGET
from heterocc.compiler.operators.table import of_node
from heterocc.compiler.symbolic.given import attribute_of

ML = "ai.onnx.ml"
Names = tuple[str | int, ...]


def name_classes(draft: Draft) -> dict[str, Names]:
    """Replace strings and maps at the graph's outputs by numbers; returns the names of each such output's classes.

    For labels, names by number; for scores, names by column. Strings that other operators read stay as they are.
    """
    outputs = {o.name for o in draft.graph.output}
    found: dict[str, Names] = {}
    for node in draft.graph.node:
        if _is(node, "ZipMap") and node.output[0] in outputs:
            names = attribute_of(node, "classlabels_int64s") or _texts(attribute_of(node, "classlabels_strings"))
            found[node.output[0]] = tuple(names)
            if not any(not o.domain for o in draft.model.opset_import):
                draft.model.opset_import.add(domain="", version=TARGET)
            become_copy(node)
            _set_type(draft, node.output[0], TensorProto.FLOAT)
    for node in list(draft.graph.node):
        labels = _label_table(draft, node)
        moves = None if labels is None else _readers(draft, node.output[0], outputs)
        if labels is None or moves is None:
            continue
        _as_number(draft, node)
        for value in (node.output[0], *(m.output[0] for m in moves)):
            _set_type(draft, value, TensorProto.INT64)
            if value in outputs:
                found[value] = labels
        for move in moves:
            if of_node(move).casts:
                become_copy(move)
    return found


def note(names: Mapping[str, Names]) -> str:
    """The note on outputs that have other types than in the model."""
    listed = ", ".join(f"'{name}'" for name in names)
    verb = "has numbers" if len(names) == 1 else "have numbers"
    return (
        f"{listed} {verb} in place of names of classes, because no listed device has strings or maps: "
        "`session.classes` has the names; with ORT in the list, outputs are as in the model"
    )


def _is(node: onnx.NodeProto, op_type: str) -> bool:
    return bool(node.domain == ML and node.op_type == op_type)


def _texts(values: Any) -> list[str]:
    return [v.decode("utf-8", "replace") for v in values or ()]


def _set_type(draft: Draft, name: str, kind: int) -> None:
    """Make a value a tensor of this type and of any shape."""
    keep(draft.graph.value_info, lambda info: info.name != name)
    for output in draft.graph.output:
        if output.name == name:
            output.type.Clear()
            output.type.tensor_type.elem_type = kind


def _label_table(draft: Draft, node: onnx.NodeProto) -> Names | None:
    """The strings that a node writes, by number; None for other nodes."""
    if node.domain != ML:
        return None
    if of_node(node).labels:
        return tuple(_texts(attribute_of(node, "classlabels_strings"))) or None
    if node.op_type == "ArrayFeatureExtractor":
        table = draft.weights.get(node.input[0])
        if table is not None and table.dtype == object and table.size == max(table.shape, default=0):
            return tuple(str(text) for text in table.ravel())
    if node.op_type == "LabelEncoder" and attribute_of(node, "keys_int64s") and attribute_of(node, "values_strings"):
        default = attribute_of(node, "default_string")
        return (*_texts(attribute_of(node, "values_strings")), *_texts([b"_Unused" if default is None else default]))
    if node.op_type == "CategoryMapper":
        elem = next((i.type.tensor_type.elem_type for i in draft.graph.input if i.name == node.input[0]), 0)
        if elem == TensorProto.INT64:
            default = attribute_of(node, "default_string")
            return (*_texts(attribute_of(node, "cats_strings")), *_texts([b"_Unused" if default is None else default]))
    return None


def _as_number(draft: Draft, node: onnx.NodeProto) -> None:
    """Make a node that writes strings write their numbers."""
    if of_node(node).labels:
        count = len(attribute_of(node, "classlabels_strings"))
        keep(node.attribute, lambda a: not a.name.startswith("classlabels"))
        node.attribute.append(helper.make_attribute(of_node(node).labels, list(range(count))))
    elif node.op_type == "ArrayFeatureExtractor":
        shape = unused(f"{node.output[0]}_row", names_in(draft.graph) | draft.weights.keys())
        draft.weights[shape] = np.array([1, -1], np.int64)
        ends = {"numbers": node.input[1], "shape": shape, "row": node.output[0]}
        node.CopyFrom(written("row = Reshape (numbers, shape)", ends, str, lambda _: node.name)[0])
    else:
        keys = list(attribute_of(node, "keys_int64s" if node.op_type == "LabelEncoder" else "cats_int64s"))
        node.op_type = "LabelEncoder"
        del node.attribute[:]
        more = {"keys_int64s": keys, "values_int64s": list(range(len(keys))), "default_int64": len(keys)}
        node.attribute.extend(helper.make_attribute(name, value) for name, value in more.items())


def _readers(draft: Draft, value: str, outputs: set[str]) -> list[onnx.NodeProto] | None:
    """The nodes that move the strings of a value to outputs, in order; None if another node reads the strings."""
    found: list[onnx.NodeProto] = []
    open_ = [value]
    while open_:
        name = open_.pop(0)
        readers = [n for n in draft.graph.node if name in n.input]
        if not readers and name not in outputs:
            continue
        for reader in readers:
            operator = of_node(reader)
            casts = operator.casts and attribute_of(reader, "to") == TensorProto.STRING
            if not (operator.copies or operator.keeps_order or casts) or list(reader.input).index(name) != 0:
                return None
            found.append(reader)
            open_.append(reader.output[0])
    return found

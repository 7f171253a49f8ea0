"""Attributes of nodes, ranges of constants and the names of values, as a report shows them."""

from __future__ import annotations

import numpy as np
import onnx

from heterocc.compiler.importer.model import ImportedModel
from heterocc.passes.explain.details import Details

MOST_TEXT = 200
"""The most characters of an attribute; a longer one ends in an ellipsis."""

_MOST_ITEMS = 50


def details_of(model: ImportedModel) -> Details:
    """The details of the nodes and constants of an imported model."""
    attributes = {
        node.name: {attribute.name: _text(attribute) for attribute in node.attribute}
        for node in model.proto.graph.node
        if node.attribute
    }
    modules = {
        node.name: model.modules[name]
        for node in model.graph.nodes
        for name in node.original[:1]
        if name in model.modules
    }
    found = ((name, _range(model.weights[name])) for name in sorted(model.graph.constants) if name in model.weights)
    own = {} if model.given is None else model.given.names
    values = {name: own[name] for name in model.graph.values if own.get(name, name) != name}
    return Details(attributes, {name: ends for name, ends in found if ends is not None}, modules, values)


def _range(array: np.ndarray) -> tuple[str, str] | None:
    """The least and the largest element; None if there is none or the elements have no order."""
    if not array.size or array.dtype == object or array.dtype.kind in "SUc":
        return None
    try:
        least, most = array.min(), array.max()
    except TypeError:  # a dtype beside numpy's own
        wide = array.astype(np.float32)
        least, most = wide.min(), wide.max()
    return _number(least), _number(most)


def _number(value: np.generic) -> str:
    if value.dtype.kind in "iub":
        return str(value.item())
    return f"{float(value):.6g}"


def _text(attribute: onnx.AttributeProto) -> str:
    kind = attribute.type
    if kind == onnx.AttributeProto.TENSOR:
        return _tensor(attribute.t)
    if kind in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
        graphs = [attribute.g] if kind == onnx.AttributeProto.GRAPH else list(attribute.graphs)
        return ", ".join(f"graph of {len(graph.node)} nodes" for graph in graphs)
    if kind == onnx.AttributeProto.STRING:
        return _short(attribute.s.decode(errors="replace"))
    if kind == onnx.AttributeProto.FLOAT:
        return f"{attribute.f:.7g}"
    if kind == onnx.AttributeProto.INT:
        return str(attribute.i)
    if kind == onnx.AttributeProto.INTS:
        return _listed([str(i) for i in attribute.ints[:_MOST_ITEMS]], len(attribute.ints))
    if kind == onnx.AttributeProto.FLOATS:
        return _listed([f"{f:.7g}" for f in attribute.floats[:_MOST_ITEMS]], len(attribute.floats))
    if kind == onnx.AttributeProto.STRINGS:
        texts = [s.decode(errors="replace") for s in attribute.strings[:_MOST_ITEMS]]
        return _listed(texts, len(attribute.strings))
    return str(onnx.AttributeProto.AttributeType.Name(kind)).lower()


def _tensor(tensor: onnx.TensorProto) -> str:
    name = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
    return f"{name} tensor {list(tensor.dims)}"


def _listed(texts: list[str], total: int) -> str:
    return _short(f"[{', '.join(texts)}{', …' if total > len(texts) else ''}]")


def _short(text: str) -> str:
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "…"

"""Divisions of signed integers that ONNX Runtime's code can do: that of the least one by -1 ends its process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from onnx.numpy_helper import to_array

from heterocc.compiler.importer.draft.draft import graphs_of
from heterocc.compiler.importer.draft.names import names_in
from heterocc.compiler.importer.onnx_tools.added import Added, replace_nodes
from heterocc.compiler.operators.table import of_node
from heterocc.passes.graph import Value

_DTYPES = {"int32": TensorProto.INT32, "int64": TensorProto.INT64}


def with_safe_quotients(
    model: onnx.ModelProto, values: Mapping[str, Value], constants: Mapping[str, np.ndarray[Any, Any]]
) -> None:
    """Change a model so that a quotient by -1 is the negated dividend.

    `values` and `constants` are what is known of it beside its initializers. ONNX Runtime 1.32 divides with the
    processor's instruction, which stops the process for a quotient that exceeds the dtype. It compares divisors with 0,
    and its Mod knows -1.
    """
    every = [(graph, [n for n in graph.node if _divides(n)]) for graph in graphs_of(model.graph)]
    if not any(divisions for _, divisions in every):
        return
    read = {name for _, divisions in every for n in divisions for name in n.input}
    known = {t.name: to_array(t) for g, _ in every for t in g.initializer if t.name in read and t.name not in constants}
    known.update((name, constants[name]) for name in read if name in constants)
    dtypes = {name: array.dtype.name for name, array in known.items()}
    dtypes.update((name, value.dtype) for name, value in values.items())
    if any(divisions for graph, divisions in every if graph is not model.graph):
        dtypes.update(_inferred(model))
    taken = names_in(model.graph)
    for graph, divisions in every:
        if divisions:
            _change(graph, dtypes, known, taken)


def _divides(node: onnx.NodeProto) -> bool:
    return of_node(node).symbol == "/"


def _inferred(model: onnx.ModelProto) -> dict[str, str]:
    """The dtypes of values in all graphs of a model, whose names differ."""
    typed = onnx.shape_inference.infer_shapes(model)
    found = {}
    for graph in graphs_of(typed.graph):
        for value in (*graph.input, *graph.value_info, *graph.output):
            if value.type.HasField("tensor_type") and value.type.tensor_type.elem_type in _DTYPES.values():
                found[value.name] = next(d for d, e in _DTYPES.items() if e == value.type.tensor_type.elem_type)
    return found


def _change(
    graph: onnx.GraphProto,
    dtypes: Mapping[str, str],
    known: Mapping[str, np.ndarray[Any, Any]],
    taken: set[str],
) -> None:
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        names = (*node.output, *node.input) if _divides(node) else ()
        dtype = next((dtypes[name] for name in names if name in dtypes), "")
        divisors = known.get(node.input[1]) if dtype in _DTYPES else None
        if dtype not in _DTYPES or (divisors is not None and not (divisors == -1).any()):
            nodes.append(node)
        else:
            nodes += _safe(node, dtype, taken)
    if len(nodes) > len(graph.node):
        replace_nodes(graph.node, nodes)


_DIVISOR = """
    is_minus = Equal (divisor, minus)
    by = Where (is_minus, one, divisor)
"""
_CHOICE = """
    negated = Neg (dividend)
    result = Where (is_minus, negated, quotient)
"""


def _safe(node: onnx.NodeProto, dtype: str, taken: set[str]) -> list[onnx.NodeProto]:
    """The division by 1 in place of -1, and the choice between its result and the negated dividend."""
    added = Added(taken, node.output[0], 17)
    (dividend, divisor), result = node.input, node.output[0]
    is_minus, quotient = added.name(f"{result}_is"), added.name(f"{result}_whole")
    one, minus = np.array(1, dtype), np.array(-1, dtype)
    by = added.write(_DIVISOR, divisor=divisor, one=one, minus=minus, is_minus=is_minus)
    division = onnx.NodeProto()
    division.CopyFrom(node)
    division.input[1], division.output[0] = by, quotient
    added.nodes.append(division)
    added.write(_CHOICE, dividend=dividend, is_minus=is_minus, quotient=quotient, result=result)
    return added.nodes

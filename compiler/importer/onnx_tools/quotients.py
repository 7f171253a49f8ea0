"""Divisions of signed integers that ONNX Runtime's code can do: that of the least one by -1 ends its process."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx

from heterocc.compiler.importer.draft.draft import bodies, dtype_name, graphs_of, nodes_of, to_array, value_of
from heterocc.compiler.importer.draft.names import names_in
from heterocc.compiler.importer.onnx_tools.added import NODES, Added, replace_nodes
from heterocc.compiler.importer.onnx_tools.infer import infer_onnx
from heterocc.compiler.operators.table import of_node
from heterocc.passes.graph import Value

_INTEGERS = ("int32", "int64")
"""The dtypes of which ONNX Runtime has such a division."""

_Scope = ChainMap[str, "str | np.ndarray[Any, Any]"]
"""Of values by name: the dtype, or the numbers of a constant."""


def has_quotients(model: onnx.ModelProto) -> bool:
    """Whether a model has a division that may be one of signed integers by -1."""
    inner = any(_divides(node) for function in model.functions for node in nodes_of(function.node))
    return inner or any(kind is not None for kind in _kinds(model.graph, ChainMap()))


def with_safe_quotients(
    model: onnx.ModelProto,
    values: Mapping[str, Value] | None = None,
    constants: Mapping[str, np.ndarray[Any, Any]] | None = None,
) -> None:
    """Change a model so that a quotient by -1 is the negated dividend.

    `values` and `constants` are what is known of it beside its own types and initializers. ONNX Runtime 1.32 divides
    with the processor's instruction, which stops the process for a quotient that exceeds the dtype. It compares
    divisors with 0, and its Mod knows -1.

    Raises the errors of `infer_onnx` if dtypes are unknown.
    """
    scope: _Scope = ChainMap({name: value.dtype for name, value in (values or {}).items()})
    scope.update(constants or {})
    kinds = list(_kinds(model.graph, scope))
    if "" in kinds:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        found = _kinds(infer_onnx(copy, model.graph.name).graph, scope)
        kinds = [kind or inferred for kind, inferred in zip(kinds, found, strict=True)]
    if any(kind is not None for kind in kinds):
        taken, numbered = names_in(model.graph), iter(kinds)
        own = [(g, [next(numbered) for _ in filter(_divides, g.node)]) for g in graphs_of(model.graph)]
        for graph, of_graph in reversed(own):  # inner graphs first: nodes are copied with their bodies
            _change(graph.node, iter(of_graph), taken)
    for function in model.functions:
        names = {name for node in nodes_of(function.node) for name in (*node.input, *node.output)}
        inner = [body.node for node in function.node for of_it in bodies(node) for body in graphs_of(of_it)]
        for nodes in (*reversed(inner), function.node):
            _change(nodes, iter([""] * len(nodes)), names)


def _divides(node: onnx.NodeProto) -> bool:
    return of_node(node).symbol == "/"


def _kinds(graph: onnx.GraphProto, outer: _Scope) -> Iterator[str | None]:
    """The dtype of each division of signed integers by what may be -1, in the order of `graphs_of`.

    Empty where the dtype is not known, None for other divisions.
    """
    scope: _Scope = outer.new_child()
    divisions = [node for node in graph.node if _divides(node)]
    inner = [body for node in graph.node for body in bodies(node)]
    if divisions or inner:
        typed = map(value_of, (*graph.input, *graph.value_info, *graph.output))
        scope.update((value.name, value.dtype) for value in typed if value.dtype != "undefined")
        for tensor in graph.initializer:
            if not isinstance(scope.get(tensor.name), np.ndarray):
                scope[tensor.name] = dtype_name(tensor.data_type) if tensor.external_data else to_array(tensor)
    for node in divisions:
        dtypes = (_dtype(scope[name]) for name in (*node.output, *node.input) if name in scope)
        dtype = next(dtypes, "")
        divisor = scope.get(node.input[1])
        is_safe = isinstance(divisor, np.ndarray) and not (divisor == -1).any()
        yield None if is_safe or dtype not in ("", *_INTEGERS) else dtype
    for body in inner:
        yield from _kinds(body, scope)


def _dtype(known: str | np.ndarray[Any, Any]) -> str:
    return known if isinstance(known, str) else known.dtype.name


def _change(nodes: NODES, kinds: Iterator[str | None], taken: set[str]) -> None:
    """Replace the divisions among these nodes, of which `kinds` has the next ones."""
    made: list[onnx.NodeProto] = []
    for node in nodes:
        kind = next(kinds) if _divides(node) else None
        made += [node] if kind is None else _safe(node, kind, taken)
    if len(made) > len(nodes):
        replace_nodes(nodes, made)


_DIVISOR = """
    is_minus = Equal (divisor, minus)
    by = Where (is_minus, one, divisor)
"""
_DIVISOR_OF_ANY_DTYPE = """
    sign = Sign (divisor)
    unit = Abs (sign)
    minus = Neg (unit)
    below = Less (divisor, minus)
    above = Less (minus, divisor)
    other = Or (below, above)
    equal = Not (other)
    negative = Less (divisor, unit)
    is_minus = And (equal, negative)
    by = Where (is_minus, unit, divisor)
"""
"""The unit of a divisor of 0 is 0, which is not below itself."""

_CHOICE = """
    negated = Neg (dividend)
    result = Where (is_minus, negated, quotient)
"""


def _safe(node: onnx.NodeProto, dtype: str, taken: set[str]) -> list[onnx.NodeProto]:
    """The division by 1 in place of -1, and the choice between its result and the negated dividend."""
    added = Added(taken, node.output[0], 17)
    (dividend, divisor), result = node.input, node.output[0]
    is_minus, quotient = added.name(f"{result}_is"), added.name(f"{result}_whole")
    if dtype:
        one, minus = np.array(1, dtype), np.array(-1, dtype)
        by = added.write(_DIVISOR, divisor=divisor, one=one, minus=minus, is_minus=is_minus)
    else:
        by = added.write(_DIVISOR_OF_ANY_DTYPE, divisor=divisor, is_minus=is_minus)
    division = onnx.NodeProto()
    division.CopyFrom(node)
    division.input[1], division.output[0] = by, quotient
    added.nodes.append(division)
    added.write(_CHOICE, dividend=dividend, is_minus=is_minus, quotient=quotient, result=result)
    return added.nodes

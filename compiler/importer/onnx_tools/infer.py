"""ONNX's shape inference in bounded memory.

It stores every dimension of a result and every element of the vectors that it propagates, so a model of a hundred
bytes can make it store billions. There are two such cases: a result whose rank is the length of a vector, and the
propagation of data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import onnx
from onnx import shape_inference

from heterocc.artifacts.errors import InvalidGraphError
from heterocc.compiler.importer.draft.constants import is_constant
from heterocc.compiler.importer.draft.draft import bodies, graphs_of, keep, type_of
from heterocc.compiler.importer.onnx_tools.propagation import MAX_LISTED, listed_by_onnx, require_few
from heterocc.compiler.operators.record import LENGTHS
from heterocc.compiler.operators.table import of_node

MAX_RANK = 1024
"""The largest rank for which inference is used; ONNX Runtime and TVM support far smaller ones."""

_LEAST = {"axis": -MAX_RANK, "batch_dims": 0}
"""Attributes that are at most MAX_RANK, and at least this; the inference of some operators takes them as they are."""

_Cut = tuple[onnx.NodeProto, int, str]
_Table = dict[str, tuple[int | None, ...] | None]


def infer_onnx(model: onnx.ModelProto, where: str) -> onnx.ModelProto:
    """The model with the types and shapes that ONNX infers; `model` may be changed.

    Data is propagated only if shapes are unknown without it and few elements are stored; shapes that remain unknown
    are inferred when constants have been folded.

    Raises InvalidGraphError for a rank above MAX_RANK, and for bodies that need too much memory; also the errors of
    `infer_shapes`.
    """
    require_few(model.graph, where, in_bodies=True)
    lengths = {t.name: _elements(t.dims) for t in model.graph.initializer}
    lengths.update((i.name, _declared_length(i)) for i in model.graph.input)
    cuts: list[_Cut] = []
    _cut(model.graph, lengths, cuts, where)
    stand_ins = _put_stand_ins(model, cuts)
    inferred = shape_inference.infer_shapes(model, data_prop=False)
    while cuts:
        table: _Table = {}
        for graph in graphs_of(inferred.graph):
            table.update(_shapes(graph))
        known = [cut for cut in cuts if len(table.get(cut[2]) or ()) == 1 and (table[cut[2]] or (None,))[0] is not None]
        if not known:
            break
        for node, index, name in known:
            _check_rank(node, (table[name] or (0,))[0] or 0, where)
            node.input[index] = name
        cuts = [cut for cut in cuts if cut not in known]
        inferred = shape_inference.infer_shapes(model, data_prop=False)
    if not _all_known(inferred.graph) and listed_by_onnx(inferred.graph) <= MAX_LISTED:
        inferred = shape_inference.infer_shapes(model, data_prop=True)
    _restore(inferred, stand_ins)
    return inferred


def _elements(dims: Iterable[int | None]) -> int:
    return math.prod(d or 0 for d in dims)


def _declared_length(info: onnx.ValueInfoProto) -> int:
    """The number of elements of an input by its declared type; more than MAX_RANK if it is not declared."""
    _, shape = type_of(info)
    return MAX_RANK + 1 if shape is None or None in shape else _elements(shape)


def _cut(graph: onnx.GraphProto, lengths: dict[str, int], cuts: list[_Cut], where: str) -> None:
    """Collect inputs that determine a rank and may be longer than MAX_RANK; `lengths` are upper bounds."""
    unknown = MAX_RANK + 1
    lengths = {**lengths, **{t.name: _elements(t.dims) for t in graph.initializer}}
    for node in graph.node:
        for body in bodies(node):
            inner = {**lengths, **{i.name: unknown for i in body.input}}
            _cut(body, inner, cuts, where)
        operator = of_node(node)
        if operator.domain or not (operator.rank_from or operator.length or node.attribute):
            continue
        given = [lengths.get(name, unknown) if name else 0 for name in node.input[:]]
        for index in operator.rank_from:
            if index < len(given) and given[index] > MAX_RANK:
                cuts.append((node, index, node.input[index]))
        for attribute in node.attribute:
            place = f"{where}: node '{node.name or '(unnamed)'}' ({node.op_type})"
            if attribute.name in _LEAST and not _LEAST[attribute.name] <= attribute.i <= MAX_RANK:
                raise InvalidGraphError(f"attribute '{attribute.name}' is {attribute.i}", where=place)
            if attribute.name == "num_outputs" and attribute.i > len(node.output):
                parts = f"{attribute.i} parts and has {len(node.output)} outputs"
                raise InvalidGraphError(f"the node makes {parts}", where=place)
        bound = _length(node, given)
        if bound is not None:
            lengths[node.output[0]] = bound


def _length(node: onnx.NodeProto, given: list[int]) -> int | None:
    if is_constant(node):
        for a in node.attribute:
            return _elements(a.t.dims) if a.name == "value" else max(1, len(a.ints), len(a.floats), len(a.strings))
    operator = of_node(node)
    if not operator.length or not given or (operator.indices is not None and given[0] > MAX_RANK):
        return None
    return LENGTHS[operator.length](given)


def _check_rank(node: onnx.NodeProto, rank: int, where: str) -> None:
    if rank > MAX_RANK:
        raise InvalidGraphError(
            f"the result of node '{node.name}' ({node.op_type}) has {rank} dimensions",
            where=where,
            hint=f"tensors have up to {MAX_RANK} dimensions",
        )


def _put_stand_ins(model: onnx.ModelProto, cuts: list[_Cut]) -> dict[str, str]:
    """Replace the cut inputs by values of unknown length; returns the original names by the new ones."""
    found: dict[str, str] = {}
    for number, (node, index, name) in enumerate(cuts):
        # identifiers have no dots, so these names are free
        found[f"{name}.{number}"] = name
        node.input[index] = f"{name}.{number}"
        kind = onnx.TensorProto.FLOAT if node.op_type == "Resize" and index == 2 else onnx.TensorProto.INT64
        stand_in = model.graph.input.add(name=node.input[index])
        stand_in.type.tensor_type.elem_type = kind
    return found


def _restore(model: onnx.ModelProto, stand_ins: Mapping[str, str]) -> None:
    if not stand_ins:
        return
    for graph in graphs_of(model.graph):
        for node in graph.node:
            for index, name in enumerate(node.input):
                if name in stand_ins:
                    node.input[index] = stand_ins[name]
    keep(model.graph.input, lambda i: i.name not in stand_ins)


def _shapes(graph: onnx.GraphProto) -> _Table:
    table: _Table = {t.name: tuple(t.dims) for t in graph.initializer}
    table.update((i.name, type_of(i)[1]) for i in (*graph.input, *graph.value_info, *graph.output))
    return table


def _all_known(graph: onnx.GraphProto) -> bool:
    """Whether all dimensions of all values are known, so that propagation of data adds nothing."""
    for inner in graphs_of(graph):
        written = {name for node in inner.node for name in node.output[:] if name}
        for info in (*inner.value_info, *inner.output):
            if info.name in written:
                _, shape = type_of(info)
                if shape is None or None in shape:
                    return False
                written.remove(info.name)
        if written:
            return False
    return True

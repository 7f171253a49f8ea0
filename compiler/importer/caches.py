"""Keys and values that a run returns and takes back, in 16 bits: those that a model has in float32 become inputs and
outputs of this type, with a Cast behind and before them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping

import onnx
from onnx import TensorProto

from heterocc.artifacts.errors import PropertyError
from heterocc.compiler.importer.draft.draft import Draft, bodies, graphs_of, nodes_of, np_type, opsets, set_nodes
from heterocc.compiler.importer.draft.names import names_in, unused
from heterocc.compiler.importer.draft.written import written
from heterocc.compiler.operators.table import of_node

_BFLOAT16_SINCE = 13
"""The first operator set whose Cast knows bfloat16."""
_LEAST_RANK = 3


def caches_of(graph: onnx.GraphProto) -> Mapping[str, str]:
    """The outputs of a model that are an input of it in float32 with further rows, by these inputs.

    Attention joins both, or a Concat with the past in front, also in branches. What a model cuts rows from, such as
    the state of a convolution, is not among them.
    """
    ends = {end.name: end.type.tensor_type for end in (*graph.input, *graph.output)}
    wide = {n for n, t in ends.items() if t.elem_type == TensorProto.FLOAT and len(t.shape.dim) >= _LEAST_RANK}
    inputs = {i.name for i in graph.input if i.name in wide}
    writers = {o: node for part in graphs_of(graph) for node in part.node for o in node.output}
    found: dict[str, list[str]] = {}
    for output in graph.output:
        pasts = set(_pasts(output.name, inputs, writers)) if output.name in wide - inputs else set()
        if len(pasts) == 1:
            found.setdefault(pasts.pop(), []).append(output.name)
    return {past: names[0] for past, names in found.items() if len(names) == 1}


def _pasts(name: str, inputs: set[str], writers: Mapping[str, onnx.NodeProto]) -> Iterator[str]:
    """The inputs whose rows a value has."""
    node = writers.get(name)
    if name in inputs or node is None:
        yield from {name} & inputs
        return
    operator, place = of_node(node), list(node.output).index(name)
    if operator.control == "branches":
        sources = [body.output[place].name for body in bodies(node)]
    elif place in operator.caches:
        sources = list(node.input[operator.caches[place] :][:1])
    else:  # new rows follow those of the past
        follows = operator.joins == "inputs" or operator.copies or operator.keeps_order
        sources = list(node.input[:1]) if follows else []
    for source in sources:
        yield from _pasts(source, inputs, writers)


def narrow_caches(draft: Draft, dtype: str, digest: Callable[[], str]) -> Callable[[], str]:
    """Store the caches of a draft that was just read in a type of 16 bits; returns the digest of such a model.

    Raises PropertyError (HC405) if the model's operator set is too old for the type.
    """
    if not store_caches(draft.model, dtype):
        return digest
    for node in nodes_of(draft.graph.node):
        draft.origins.setdefault(node.name, ())
    return lambda: hashlib.sha256(f"{digest()} caches {dtype}".encode()).hexdigest()


def store_caches(model: onnx.ModelProto, dtype: str) -> Mapping[str, str]:
    """Let the caches of a model be inputs and outputs of a type of 16 bits; returns them, as `caches_of` does."""
    graph = model.graph
    caches = caches_of(graph)
    version = opsets(model).get("", 1)
    if caches and dtype == "bfloat16" and version < _BFLOAT16_SINCE:
        raise PropertyError(
            f"the keys and values cannot be bfloat16: the model's operator set is {version}",
            hint=f"export it with operator set {_BFLOAT16_SINCE} or later, or store them in f16",
        )
    taken, code = names_in(graph), np_type(dtype)
    inside = {name: unused(f"{name}_float32", taken) for pair in caches.items() for name in pair}
    for node in nodes_of(graph.node):
        node.input[:] = [inside.get(name, name) for name in node.input]
        node.output[:] = [inside.get(name, name) for name in node.output]
        for body in bodies(node):
            for end in body.output:
                end.name = inside.get(end.name, end.name)
    for end in (*graph.input, *graph.output):
        if end.name in inside:
            end.type.tensor_type.elem_type = code
    ends = [name for name in inside if name not in caches]
    before = [_cast(name, inside[name], TensorProto.FLOAT, taken) for name in caches]
    after = [_cast(inside[name], name, code, taken) for name in ends]
    set_nodes(graph, [*before, *graph.node, *after])
    return caches


def _cast(source: str, result: str, code: int, taken: set[str]) -> onnx.NodeProto:
    label = unused(f"{source}_cast", taken)
    names = {"source": source, "result": result}
    (node,) = written(f"result = Cast <to = {code}> (source)", names, str, lambda _: label)
    return node

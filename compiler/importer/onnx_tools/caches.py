"""Rows of windowed caches that ONNX Runtime leaves as they were in its memory, such as those of another request.

The schema of GroupQueryAttention says which of the rows of its caches have keys and values with `sliding_window_cache`,
and that the others are unspecified.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto

from heterocc.compiler.importer.draft.draft import graphs_of
from heterocc.compiler.importer.onnx_tools.added import Added, replace_nodes

_LENGTHS = 5
"""The number of the input with the lengths of the sequences, less 1."""

_CACHES = (1, 2)
"""The numbers of the outputs that are caches; those of the inputs are greater by 2."""


def has_windowed_caches(model: onnx.ModelProto) -> bool:
    """Whether a model has caches of which not all rows are specified."""
    return any(_window(node) for graph in graphs_of(model.graph) for node in graph.node)


def with_clear_caches(model: onnx.ModelProto) -> None:
    """Change a model so that rows of caches that have no key or value are zero."""
    taken = {v for g in graphs_of(model.graph) for n in g.node for v in (n.name, *n.input, *n.output)}
    for graph in graphs_of(model.graph):
        if any(map(_window, graph.node)):
            replace_nodes(graph.node, [made for node in graph.node for made in _cleared(node, taken)])


def _window(node: onnx.NodeProto) -> int:
    """The size of the window if a node has caches of its own size; else 0."""
    if node.op_type != "GroupQueryAttention":
        return 0
    found = {a.name: a.i for a in node.attribute}
    return found.get("local_window_size", 0) if found.get("sliding_window_cache", 0) == 1 else 0


def _cleared(node: onnx.NodeProto, taken: set[str]) -> Iterator[onnx.NodeProto]:
    """The node, and nodes that clear its caches.

    With T tokens in a cache of C rows, which drops G = C - window + 1 of them at a time, the first
    T - G * ceil(max(T - C, 0) / G) have keys.
    """
    window = _window(node)
    if not window:
        yield node
        return
    added = Added(taken, node.output[1], 17)
    lengths, cache = node.input[_LENGTHS], node.input[_CACHES[0] + 2]
    has_key = added.write(
        _HAS_KEY,
        lengths=lengths,
        cache=cache,
        window=window,
        none=0,
        one=1,
        axis=2,
        each=[-1, 1, 1, 1],
        along=[1, 1, -1, 1],
    )
    for place in _CACHES:
        result = node.output[place]
        node.output[place] = added.name(f"{result}_of_rows")
        added.write(_CLEAR, cache=node.output[place], has_key=has_key, zero=np.zeros((), np.float32), result=result)
    yield node
    yield from added.nodes


_HAS_KEY = f"""
    last = Cast <to = {TensorProto.INT64}> (lengths)
    all = Add (last, one)
    tokens = Reshape (all, each)
    shape = Shape (cache)
    rows = Gather (shape, axis)
    beside = Sub (rows, window)
    more = Add (beside, one)
    dropped = Max (more, one)
    beyond = Sub (tokens, rows)
    over = Max (beyond, none)
    sum = Add (over, dropped)
    less = Sub (sum, one)
    times = Div (less, dropped)
    gone = Mul (times, dropped)
    kept = Sub (tokens, gone)
    numbers = Range (none, rows, one)
    row = Reshape (numbers, along)
    has_key = Less (row, kept)
"""

_CLEAR = f"""
    numbers = Cast <to = {TensorProto.FLOAT}> (cache)
    kept = Where (has_key, numbers, zero)
    result = CastLike (kept, cache)
"""
"""Each dtype of a cache has its numbers in float32, for which ONNX Runtime has a Where."""

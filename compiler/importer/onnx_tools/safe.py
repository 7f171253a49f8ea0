"""Models that neither end the process in which ONNX Runtime runs them, nor return memory of others or lose signs.

A length of STFT's frames of 0 ends the process. Attention that is given past keys and values, and whose present ones
nobody wants, reads beyond the new ones in place of the past. Windowed caches of GroupQueryAttention have rows that ONNX
Runtime leaves as they were in its memory, such as those of another request: the schema says which rows have keys and
values, and that the others are unspecified. Attributes of experts that have no meaning make it read beyond their
weights, and 2 bits with blocks in any order unwritten memory. A Normalizer by lengths that writes where it reads takes
the signs of what it has written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import onnx
from onnx import TensorProto
from onnx.numpy_helper import to_array

from heterocc.compiler.importer.draft.draft import graphs_of
from heterocc.compiler.importer.draft.names import names_in
from heterocc.compiler.importer.onnx_tools.added import Added, replace_nodes
from heterocc.compiler.importer.onnx_tools.filled import needs_checks, with_filled_sizes
from heterocc.compiler.importer.onnx_tools.needed import needs_sizes, with_needed_sizes
from heterocc.compiler.importer.onnx_tools.quotients import has_quotients, with_safe_quotients
from heterocc.compiler.operators.table import named, of_node

_LENGTHS = 5
"""The number of the input with the lengths of the sequences, less 1."""


def lacks_caches(model: onnx.ModelProto) -> bool:
    """Whether a model has attention with past keys that lacks an output of keys or of values."""
    return any(_lacking(node) for graph in graphs_of(model.graph) for node in graph.node)


def with_all_caches(model: onnx.ModelProto) -> None:
    """Change a model so that such attention has these outputs: ONNX Runtime 1.32 joins past and new keys in them."""
    taken = names_in(model.graph)
    for graph in graphs_of(model.graph):
        for node in filter(_lacking, graph.node):
            added = Added(taken, node.output[0], 17)
            for place in _lacking(node):
                node.output.extend([""] * (place + 1 - len(node.output)))
                node.output[place] = added.name(f"{node.output[0]}_cache")


def _lacking(node: onnx.NodeProto) -> list[int]:
    """The places of the outputs that would have past keys or values, and the new ones, if the node had them."""
    return [
        place
        for place, past in of_node(node).caches.items()
        if past < len(node.input) and node.input[past] and not (place < len(node.output) and node.output[place])
    ]


_WINDOW = ("local_window_size", "sliding_window_cache")
"""The attributes that only attention with such caches has: the size of the window, and whether a cache has its own."""


def has_windowed_caches(model: onnx.ModelProto) -> bool:
    """Whether a model has caches of which not all rows are specified."""
    return any(_window(node) for graph in graphs_of(model.graph) for node in graph.node)


def with_clear_caches(model: onnx.ModelProto) -> None:
    """Change a model so that rows of caches that have no key or value are zero."""
    taken = names_in(model.graph)
    for graph in graphs_of(model.graph):
        if any(map(_window, graph.node)):
            replace_nodes(graph.node, [made for node in graph.node for made in _cleared(node, taken)])


def _window(node: onnx.NodeProto) -> int:
    """The size of the window if a node has caches of its own size; else 0."""
    found = {a.name: a.i for a in node.attribute if a.name in _WINDOW}
    return found.get(_WINDOW[0], 0) if found.get(_WINDOW[1], 0) == 1 else 0


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
    caches = of_node(node).caches
    lengths, cache = node.input[_LENGTHS], node.input[min(caches.values())]
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
    for place in caches:
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


_LENGTH = 3
"""The number of STFT's input that is the length of a frame."""

_TOO_LONG = 2**31 - 1
"""A length that no signal has: ONNX Runtime refuses it with an error of the run."""


def has_frames(model: onnx.ModelProto) -> bool:
    """Whether a model has an STFT with a length of frames."""
    return any(_is_given(node) for graph in graphs_of(model.graph) for node in graph.node)


def _is_given(node: onnx.NodeProto) -> bool:
    return node.op_type == "STFT" and not node.domain and len(node.input) > _LENGTH and bool(node.input[_LENGTH])


def with_checked_frames(model: onnx.ModelProto) -> None:
    """Change a model so that a length of frames below 1 is one that is refused.

    ONNX Runtime 1.32 compares the step of STFT with 0, and the length with that of the signal only.
    """
    taken = names_in(model.graph)
    for graph in graphs_of(model.graph):
        constants = {t.name: t for t in graph.initializer}
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            if _is_given(node) and not _is_positive(constants.get(node.input[_LENGTH])):
                added = Added(taken, node.output[0], 17)
                node.input[_LENGTH] = added.write(_CHECKED, length=node.input[_LENGTH], one=1, far=_TOO_LONG)
                nodes += added.nodes
            nodes.append(node)
        if len(nodes) > len(graph.node):
            replace_nodes(graph.node, nodes)


_CHECKED = """
    least = CastLike (one, length)
    most = CastLike (far, length)
    short = Less (length, least)
    checked = Where (short, most, length)
"""


def _is_positive(length: onnx.TensorProto | None) -> bool:
    return length is not None and not length.external_data and bool((to_array(length) > 0).all())


def has_misleading_attributes(model: onnx.ModelProto) -> bool:
    """Whether a model has attributes with which ONNX Runtime misreads memory."""
    return any(_misleading(node) for graph in graphs_of(model.graph) for node in graph.node)


def _misleading(node: onnx.NodeProto) -> onnx.AttributeProto | None:
    rule = named(node.op_type, node.domain).misleading
    name = rule(node) if rule is not None else ""
    return next((a for a in node.attribute if name and a.name == name and a.i), None)


def without_misleading_attributes(model: onnx.ModelProto) -> None:
    """Set these attributes of a model to 0."""
    for graph in graphs_of(model.graph):
        for found in filter(None, map(_misleading, graph.node)):
            found.i = 0


def tells_shapes_of_wrong(model: onnx.ModelProto) -> bool:
    """Whether a model tells the shapes of results that ONNX Runtime may compute wrongly in place."""
    return any(_wrong_in_place(graph) & {info.name for info in graph.value_info} for graph in graphs_of(model.graph))


def _wrong_in_place(graph: onnx.GraphProto) -> set[str]:
    return {node.output[0] for node in graph.node if named(node.op_type, node.domain).wrong_in_place}


def without_shapes_of_wrong(model: onnx.ModelProto) -> None:
    """Take these shapes from a model: ONNX Runtime writes where it reads only if it knows that both shapes are equal.

    ONNX Runtime 1.32 divides squares by lengths, takes the roots, and then signs of what it has written.
    """
    for graph in graphs_of(model.graph):
        wrong = _wrong_in_place(graph)
        kept = [info for info in graph.value_info if info.name not in wrong]
        if len(kept) < len(graph.value_info):
            del graph.value_info[:]
            graph.value_info.extend(kept)


def safe_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, or one in its place with checks and without results that ONNX Runtime leaves unwritten.

    Values keep their names. Raises the errors of `infer_onnx` if the model does not tell the dtypes of divisions.
    """
    reasons = (needs_checks, has_frames, lacks_caches, has_windowed_caches, has_misleading_attributes, has_quotients)
    if not any(has(model) for has in (*reasons, tells_shapes_of_wrong, needs_sizes)):
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    with_safe_quotients(changed)
    with_needed_sizes(changed)
    make_safe(changed)
    return changed


def make_safe(model: onnx.ModelProto, checked: Collection[tuple[str, str]] = ()) -> None:
    """Change a model in this way, but for its quotients; `checked` is as for `with_filled_sizes`."""
    with_checked_frames(model)
    with_all_caches(model)
    with_clear_caches(model)
    without_misleading_attributes(model)
    without_shapes_of_wrong(model)
    if needs_checks(model):
        with_filled_sizes(model, checked)

"""Parts without elements that ONNX Runtime skips in a concatenation, though it counts their sizes.

It compares no size of a part without elements: one of 0x3 beside one of 2x3 gives 2x6 numbers along the second axis,
half of which nobody writes. A right result has the elements of all parts, and no other.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

import onnx
from onnx import TensorProto

from heterocc.artifacts.errors import InputValueError
from heterocc.compiler.importer.draft.draft import bodies, graphs_of, reads
from heterocc.compiler.importer.draft.names import names_in
from heterocc.compiler.importer.onnx_tools.added import NODES, Added, replace_nodes
from heterocc.compiler.operators.table import of_node

_FIRST_WITH_SEQUENCES = 11
_MOST_NAMED = 4

Shapes = Mapping[str, tuple[int | str, ...]]
"""By value; names are those of an input's dimensions, 0 is an unknown size."""


def with_counted_parts(model: onnx.ModelProto, checked: Container[str]) -> None:
    """Change a model so that a concatenation whose parts do not have all elements of the result ends the run.

    `checked` are results of concatenations in the graph itself whose parts agree in all runs.
    """
    joins = [(g, n) for g in graphs_of(model.graph) for n in g.node if of_node(n).joins]
    if all(graph is model.graph and node.output[0] in checked for graph, node in joins):
        return
    taken = names_in(model.graph)
    version = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    _count(model.graph.node, [o.name for o in model.graph.output], checked, _shapes(model), taken, version)


def _shapes(model: onnx.ModelProto) -> Shapes:
    """The shapes of values, as far as ONNX infers them from those of the inputs, which a run checks."""
    known = onnx.ModelProto()
    known.CopyFrom(model)
    for graph in graphs_of(known.graph):
        del graph.value_info[:]
        for info in (*graph.output, *(() if graph is known.graph else graph.input)):
            info.type.tensor_type.ClearField("shape")
    try:
        inferred = onnx.shape_inference.infer_shapes(known)
    except (onnx.shape_inference.InferenceError, ValueError):
        return {}
    infos = [info for g in graphs_of(inferred.graph) for info in (*g.input, *g.value_info, *g.output)]
    infos = [info for info in infos if info.type.tensor_type.HasField("shape")]
    return {i.name: tuple(d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim) for i in infos}


def _is_right(node: onnx.NodeProto, shapes: Shapes) -> bool:
    """Whether no part without elements has other sizes: it is a vector, or all agree but for the axis."""
    if len(shapes.get(node.output[0], ())) == 1:
        return True
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    parts = [list(shapes.get(name, ())) for name in node.input]
    if of_node(node).joins == "sequence" or any(len(part) != len(parts[0]) for part in parts):
        return False
    if not -len(parts[0]) <= axis < len(parts[0]):
        return False
    for part in parts:
        del part[axis]
    return all(part == parts[0] and all(part) for part in parts)


def _count(
    nodes: NODES, outputs: Iterable[str], checked: Container[str], shapes: Shapes, taken: set[str], version: int
) -> None:
    """Add one check of all concatenations to some nodes, and others to those in their bodies."""
    for node in nodes:
        for body in bodies(node):
            _count(body.node, [o.name for o in body.output], (), shapes, taken, version)
    live = _live(nodes, outputs)
    joins = [n for n in nodes if of_node(n).joins and n.output[0] in live]
    joins = [n for n in joins if n.output[0] not in checked and not _is_right(n, shapes)]
    if not joins:
        return
    last, result = joins[-1], joins[-1].output[0]
    added = Added(taken, result, version)
    last.output[0] = added.name(f"{result}_joined")
    sizes: dict[str, int] = {}
    for node in joins:
        if of_node(node).joins == "sequence":
            sizes[added.write(_ELEMENTS, sequence=node.input[0], none=0)] = 1
        else:
            sizes.update((added.write("size = Size (part)", part=name), 1) for name in node.input)
        sizes[added.write("size = Size (whole)", whole=node.output[0])] = -1
    same = added.write(_SAME, sizes=_vector(list(sizes), added), signs=list(sizes.values()), none=0)
    shown = ", ".join(f"{node.op_type} '{node.name or node.output[0]}'" for node in joins[:_MOST_NAMED])
    label = f"{InputValueError.MARK}{shown}: the parts do not have all elements of the result"
    added.passed(last.output[0], same, label, result)
    place = next(index for index, node in enumerate(nodes) if node.output[:1] == last.output[:1]) + 1
    replace_nodes(nodes, [*nodes[:place], *added.nodes, *nodes[place:]])


def _live(nodes: NODES, outputs: Iterable[str]) -> set[str]:
    """The values on which outputs depend: ONNX Runtime leaves the others out, with what checks them."""
    live = set(outputs)
    for node in reversed(nodes):
        if not live.isdisjoint(node.output):
            live.update(reads(node))
    return live


_ELEMENTS = """
    parts = SequenceLength (sequence)
    elements = Loop (parts, , none) <body = count (int64 number, bool before, int64 sum) => (bool after, int64 total) {
        part = SequenceAt (sequence, number)
        size = Size (part)
        total = Add (sum, size)
        after = Identity (before)
    }>
"""
"""The number of elements of all tensors of a sequence."""

_SAME = f"""
    signed = Mul (sizes, signs)
    rest = ReduceSum <keepdims = 0> (signed)
    is_none = Equal (rest, none)
    same = Cast <to = {TensorProto.INT64}> (is_none)
"""


def _vector(sizes: Sequence[str], added: Added) -> str:
    """Scalars as a vector."""
    if added.version < _FIRST_WITH_SEQUENCES:
        vectors = [added.write("vector = Unsqueeze <axes = [0]> (size)", size=size) for size in sizes]
        return added.write(f"vector = Concat <axis = 0> ({_listed(vectors)})", **_places(vectors))
    text = f"""
        sequence = SequenceConstruct ({_listed(sizes)})
        vector = ConcatFromSequence <axis = 0, new_axis = 1> (sequence)
    """
    return added.write(text, **_places(sizes))


def _places(names: Sequence[str]) -> dict[str, str]:
    return {f"part{place}": name for place, name in enumerate(names)}


def _listed(names: Sequence[str]) -> str:
    return ", ".join(_places(names))

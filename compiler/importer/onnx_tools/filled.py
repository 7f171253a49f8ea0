"""Sizes of 0 with which ONNX Runtime ends the process, never ends, or returns memory that it has not written.

They were found by giving each dimension of the hostile models (tests/hostile), and of what ONNX Runtime fuses, this
size. Where a size is not checked before a run, because only the run knows it, or because its node is in the body of a
Loop, a Scan or an If, the model gets a check of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import onnx
from onnx import helper

from heterocc.compiler.importer.draft.draft import bodies
from heterocc.compiler.importer.onnx_tools.added import NODES, Added, replace_nodes


class Part(NamedTuple):
    """Some axes of an operator's input."""

    place: int
    axes: slice


Group = tuple[Part, ...]
"""Parts of which one is enough, because ONNX Runtime requires that they agree; the first is the one to check."""

_EVERY = slice(None)
_LAST, _LAST_BUT_ONE = slice(-1, None), slice(-2, -1)
_TERMS: Group = (Part(0, _LAST), Part(1, _LAST_BUT_ONE))
_WINDOW: Group = (Part(1, slice(2, None)),)
_AFTER_FIRST = slice(1, None)
_TAPS: Group = (Part(1, _AFTER_FIRST),)

_FILLED: Mapping[str, tuple[Group, ...]] = {
    **dict.fromkeys(("LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"), ((Part(0, _EVERY),),)),
    **dict.fromkeys(("MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"), (_TERMS,)),
    **dict.fromkeys(("Conv", "FusedConv"), (_WINDOW,)),
    "ConvInteger": (_TAPS,),
    "QLinearMatMul": ((Part(0, _LAST), Part(3, _LAST_BUT_ONE)),),
    "FeatureVectorizer": ((Part(0, slice(1)),),),
    "InstanceNormalization": ((Part(0, slice(2, None)),),),
    "MultiHeadAttention": ((Part(2, _LAST),),),
    "QGemm": ((Part(0, _EVERY),),),
    "QLinearConv": ((Part(3, _AFTER_FIRST),), (Part(4, _EVERY),), (Part(5, _EVERY),)),
    "RotaryEmbedding": ((Part(0, _LAST),),),
    "SkipLayerNormalization": ((Part(1, _EVERY),),),
    "SkipSimplifiedLayerNormalization": ((Part(1, _EVERY),),),
    "STFT": ((Part(2, _EVERY),),),
    "Unique": ((Part(0, _EVERY),),),
}
"""By operator: what must have elements."""

_OF_BYTES: Mapping[str, tuple[Group, ...]] = {
    "MatMul": (_TERMS,),
    "Gemm": ((Part(0, _EVERY), Part(1, _EVERY)),),
    "Conv": (_TAPS,),
}
"""The same in models that dequantise values: ONNX Runtime computes these operators with bytes there."""

_VERSION = 17
"""The operator set that a model gets that has none."""

_MAX = 2**63 - 1

_SAME_SHAPE = frozenset({"Cast", "DequantizeLinear", "Identity", "Neg", "QuantizeLinear"})
"""Operators whose result has the shape of their first input."""


Shapes = Mapping[str, tuple[int, ...]]
"""The shapes of constants, by name."""


def is_quantised(model: onnx.ModelProto) -> bool:
    """Whether a model dequantises values."""
    return any(node.op_type == "DequantizeLinear" for nodes in _lists(model) for node in nodes)


def filled_groups(node: onnx.NodeProto, *, quantised: bool) -> tuple[Group, ...]:
    """What must have elements for ONNX Runtime to compute a node, of the inputs that it has."""
    groups = (_OF_BYTES.get(node.op_type) if quantised else None) or _FILLED.get(node.op_type, ())
    return tuple(g for g in groups if g[0].place < len(node.input) and node.input[g[0].place])


def needs_checks(model: onnx.ModelProto) -> bool:
    """Whether a model has an operator with which some sizes of 0 do not go."""
    quantised = is_quantised(model)
    return any(filled_groups(node, quantised=quantised) for nodes in _lists(model) for node in nodes)


def with_filled_sizes(model: onnx.ModelProto, checked: Collection[tuple[str, str]] = ()) -> None:
    """Change a model so that a size of 0 with which ONNX Runtime cannot compute is an error of the run.

    `checked` are operators, each with a value that it reads whose sizes are known, or are checked before a run.
    """
    quantised = is_quantised(model)
    taken = {v for nodes in _lists(model) for n in nodes for v in (n.name, *n.input, *n.output)}
    for owner in (model, *model.functions):
        version = next((o.version for o in owner.opset_import if o.domain in ("", "ai.onnx")), 0)
        if not version:
            owner.opset_import.append(helper.make_opsetid("", _VERSION))
        checks = _Checks(quantised, version or _VERSION, taken)
        if isinstance(owner, onnx.FunctionProto):
            checks.add(owner.node, {}, ())
        else:
            checks.add(owner.graph.node, _constants(owner.graph), frozenset(checked))


def _lists(model: onnx.ModelProto) -> Iterator[NODES]:
    """The nodes of the graph, of all bodies and functions."""
    for nodes in (model.graph.node, *(function.node for function in model.functions)):
        yield from _nested(nodes)


def _nested(nodes: NODES) -> Iterator[NODES]:
    yield nodes
    for node in nodes:
        for body in bodies(node):
            yield from _nested(body.node)


def _constants(graph: onnx.GraphProto) -> Shapes:
    return {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}


@dataclass(frozen=True, slots=True)
class _Checks:
    """Adds checks to the nodes of a model. `version` is that of ONNX's own operators, `taken` are names in use."""

    quantised: bool
    version: int
    taken: set[str]

    def add(self, nodes: NODES, shapes: Shapes, checked: Container[tuple[str, str]]) -> None:
        """Add checks to some nodes, and those in their bodies. `shapes` are those of constants in their reach."""
        shapes = dict(shapes)
        found: list[onnx.NodeProto] = []
        for node in nodes:
            for body in bodies(node):
                hidden = {i.name for i in body.input}
                outside = {name: shape for name, shape in shapes.items() if name not in hidden}
                self.add(body.node, {**outside, **_constants(body)}, ())
            for group in filled_groups(node, quantised=self.quantised):
                part = group[0]
                known = (node.op_type, node.input[part.place]) in checked
                if not known and not any(_is_filled(p, node, shapes) for p in group):
                    found += self._check(node, part)
            found.append(node)
            for name in node.output:
                shapes.pop(name, None)
            shapes.update(_followed(node, shapes))
        if len(found) > len(nodes):
            replace_nodes(nodes, found)

    def _check(self, node: onnx.NodeProto, part: Part) -> list[onnx.NodeProto]:
        """NODES that pass an input on, and fail if one of the axes has no elements; `node` reads their result."""
        first, value = next(name for name in node.output if name), node.input[part.place]
        added = Added(self.taken, f"{first}_{part.place}", self.version)
        if part.axes == _EVERY:
            sizes = added.add("Size", value)
        else:
            sizes = added.add("ReduceProd", self._cut(added, added.add("Shape", value), part.axes), keepdims=0)
        label = f"sizes of 1 or more, input {part.place} of {node.op_type} {node.name or first}"
        node.input[part.place] = added.passed(value, sizes, label)
        return added.nodes

    def _cut(self, added: Added, shape: str, axes: slice) -> str:
        starts, ends = [axes.start or 0], [_MAX if axes.stop is None else axes.stop]
        if self.version < 10:
            return added.add("Slice", shape, starts=starts, ends=ends)
        return added.add("Slice", shape, added.number(starts), added.number(ends))


def _followed(node: onnx.NodeProto, shapes: Shapes) -> Shapes:
    """The shape of a node's result, if constants alone determine it."""
    shape = shapes.get(node.input[0]) if node.input else None
    if node.op_type == "Constant":
        shape = next((tuple(a.t.dims) for a in node.attribute if a.name == "value"), None)
        return {} if shape is None else {node.output[0]: shape}
    if shape is not None and node.op_type in _SAME_SHAPE:
        return {node.output[0]: shape}
    if shape is not None and node.op_type == "Transpose":
        order = next((a.ints for a in node.attribute if a.name == "perm"), range(len(shape))[::-1])
        if sorted(order) == list(range(len(shape))):
            return {node.output[0]: tuple(shape[axis] for axis in order)}
    return {}


def _is_filled(part: Part, node: onnx.NodeProto, shapes: Shapes) -> bool:
    shape = shapes.get(node.input[part.place]) if part.place < len(node.input) else None
    return shape is not None and bool(shape[part.axes]) and all(shape[part.axes])

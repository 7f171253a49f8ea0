"""Sizes of 0 with which ONNX Runtime ends the process, never ends, or returns memory that it has not written.

They stand in the records of operators (`Operator.filled`), and were found by giving each dimension of the hostile
models (tests/hostile), and of what ONNX Runtime fuses, this size. Where a size is not checked before a run, because
only the run knows it, or because its node is in the body of a Loop, a Scan or an If, the model gets a check of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import dataclass

import onnx
from onnx import helper
from onnx.shape_inference import InferenceError, infer_node_outputs

from heterocc.artifacts.errors import InputValueError
from heterocc.compiler.importer.draft.draft import bodies
from heterocc.compiler.importer.onnx_tools.added import NODES, Added, replace_nodes
from heterocc.compiler.operators.record import Group, Part
from heterocc.compiler.operators.table import of_node

_VERSION = 17
"""The operator set that a model gets that has none."""

_MAX = 2**63 - 1

Types = Mapping[str, onnx.TypeProto]
"""The types and shapes of constants, by name."""


def is_quantised(model: onnx.ModelProto) -> bool:
    """Whether a model dequantises values."""
    return any(of_node(node).dequantises for nodes in _lists(model) for node in nodes)


def leaves_unwritten(node: onnx.NodeProto) -> bool:
    """Whether ONNX Runtime's own kernel leaves results unwritten, and the nodes that the import writes do not.

    RotaryEmbedding leaves the end of a head of odd size.
    """
    operator = of_node(node)
    return operator.expanded and bool(operator.filled)


def filled_groups(node: onnx.NodeProto, *, quantised: bool) -> tuple[Group, ...]:
    """What must have elements for ONNX Runtime to compute a node, of the inputs that it has."""
    operator = of_node(node)
    groups = operator.filled_bytes if quantised and operator.filled_bytes is not None else operator.filled
    return tuple(g for g in groups if g[0].place < len(node.input) and node.input[g[0].place])


def needs_checks(model: onnx.ModelProto) -> bool:
    """Whether a model has an operator with which some sizes of 0 do not go."""
    every = (node for nodes in _lists(model) for node in nodes)
    found = [node for node in every if (operator := of_node(node)).filled or operator.filled_bytes]
    quantised = bool(found) and is_quantised(model)
    return any(filled_groups(node, quantised=quantised) for node in found)


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


def _constants(graph: onnx.GraphProto) -> Types:
    return {t.name: helper.make_tensor_type_proto(t.data_type, t.dims) for t in graph.initializer}


@dataclass(frozen=True, slots=True)
class _Checks:
    """Adds checks to the nodes of a model. `version` is that of ONNX's own operators, `taken` are names in use."""

    quantised: bool
    version: int
    taken: set[str]

    def add(self, nodes: NODES, types: Types, checked: Container[tuple[str, str]]) -> None:
        """Add checks to some nodes, and those in their bodies. `types` are those of constants in their reach."""
        types = dict(types)
        found: list[onnx.NodeProto] = []
        for node in nodes:
            for body in bodies(node):
                hidden = {i.name for i in body.input}
                outside = {name: type_ for name, type_ in types.items() if name not in hidden}
                self.add(body.node, {**outside, **_constants(body)}, ())
            for group in filled_groups(node, quantised=self.quantised):
                part = group[0]
                known = (node.op_type, node.input[part.place]) in checked
                if not known and not any(_is_filled(p, node, types) for p in group):
                    found += self._check(node, part)
            found.append(node)
            for name in node.output:
                types.pop(name, None)
            types.update(_followed(node, types, self.version))
        if len(found) > len(nodes):
            replace_nodes(nodes, found)

    def _check(self, node: onnx.NodeProto, part: Part) -> list[onnx.NodeProto]:
        """NODES that pass an input on, and fail if one of the axes has no elements; `node` reads their result."""
        first, value = next(name for name in node.output if name), node.input[part.place]
        added = Added(self.taken, f"{first}_{part.place}", self.version)
        start, stop = part.axes.start or 0, _MAX if part.axes.stop is None else part.axes.stop
        if part == Part(part.place):
            sizes = added.write("count = Size (value)", value=value)
        elif self.version < 10:
            cut = f"cut = Slice <starts = [{start}], ends = [{stop}]> (shape)"
            sizes = added.write(_COUNT.format(cut), value=value)
        else:
            sizes = added.write(
                _COUNT.format("cut = Slice (shape, start, stop)"), value=value, start=[start], stop=[stop]
            )
        shown = f"{node.op_type} '{node.name or first}'"
        label = f"{InputValueError.MARK}{shown}: input {part.place} needs sizes of 1 or more"
        node.input[part.place] = added.passed(value, sizes, label)
        return added.nodes


_COUNT = """
    shape = Shape (value)
    {}
    count = ReduceProd <keepdims = 0> (cut)
"""


def _followed(node: onnx.NodeProto, types: Types, version: int) -> Types:
    """The types of a node's results that have shapes, if constants alone determine them."""
    read = [name for name in node.input if name]
    if (
        node.domain
        or of_node(node).misjudged
        or any(name not in types for name in read)
        or any(True for _ in bodies(node))
    ):
        return {}
    try:
        schema = onnx.defs.get_schema(node.op_type, version)
        found = infer_node_outputs(
            schema, node, {name: types[name] for name in read}, opset_imports=[helper.make_opsetid("", version)]
        )
    except (onnx.defs.SchemaError, InferenceError):
        return {}
    return {name: made for name, made in found.items() if _dims(made) is not None}


def _dims(type_: onnx.TypeProto) -> tuple[int, ...] | None:
    """The shape of a tensor, if all sizes are known."""
    dims = type_.tensor_type.shape.dim
    is_known = type_.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in dims)
    return tuple(d.dim_value for d in dims) if is_known else None


def _is_filled(part: Part, node: onnx.NodeProto, types: Types) -> bool:
    found = types.get(node.input[part.place]) if part.place < len(node.input) else None
    shape = () if found is None else _dims(found) or ()
    return bool(shape[part.axes]) and all(shape[part.axes])

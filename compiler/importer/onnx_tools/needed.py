"""Checks, in the model itself, of sizes that must fit for ONNX Runtime to stay within its arrays.

They are those of operators that it does not check (`Operator.unchecked`), where no condition of the bundle can state
what they need: sizes that only a run knows, and nodes in branches and bodies.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence

import onnx
from onnx import TensorProto

from heterocc.artifacts.errors import InputValueError
from heterocc.compiler.importer.draft.draft import graphs_of
from heterocc.compiler.importer.draft.names import names_in
from heterocc.compiler.importer.onnx_tools.added import Added, replace_nodes
from heterocc.compiler.operators.applied import requirements_of
from heterocc.compiler.operators.record import same_shape
from heterocc.compiler.operators.table import of_node
from heterocc.compiler.symbolic.given import Given
from heterocc.compiler.symbolic.postfix import postfix
from heterocc.compiler.symbolic.requirement import Requirement
from heterocc.compiler.symbolic.sizes import Size, named

_LATEST = 17
"""The operator set of a model that has none."""
_FIRST = 10
"""The operator set from which on ONNX's operators take the integers that the checks compute with."""
_FIRST_TO_COMPARE = 12
"""The same of Min and Max."""


def needs_sizes(model: onnx.ModelProto) -> bool:
    """Whether a model has such a node."""
    return any(_reads_beyond(node) for graph in graphs_of(model.graph) for node in graph.node)


def with_needed_sizes(model: onnx.ModelProto, stated: Container[str] = ()) -> str | None:
    """Change a model so that sizes that such a node cannot take end the run before it.

    `stated` are the first results of nodes of the graph itself that need no check. Returns the name of a node that
    cannot be checked, for example because ONNX does not infer its ranks, which the run compares; None if there is none.
    """
    open_ = [
        node
        for graph in graphs_of(model.graph)
        for node in graph.node
        if _reads_beyond(node) and not (graph is model.graph and node.output[0] in stated)
    ]
    if not open_:
        return None
    ranks = _ranks(model)
    version = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0) or _LATEST
    taken = names_in(model.graph)
    for graph in reversed(list(graphs_of(model.graph))):  # nodes are copied with their bodies
        made: list[onnx.NodeProto] = []
        for node in graph.node:
            if any(node is found for found in open_):
                known = [ranks.get(name, -1) if name else 0 for name in node.input]
                needed = [] if -1 in known else _needed(node, known, version)
                compared = {token for each in needed for side in (each.left, each.right) for token in postfix(side)}
                if -1 in known or version < (_FIRST_TO_COMPARE if compared & {"min", "max"} else _FIRST):
                    return str(node.name or node.output[0])
                made += _checks(node, known, needed, version, taken)
            made.append(node)
        if len(made) > len(graph.node):
            replace_nodes(graph.node, made)
    return None


def _reads_beyond(node: onnx.NodeProto) -> bool:
    return of_node(node).unchecked == "memory"


def _keeps_shape(node: onnx.NodeProto) -> bool:
    return node.domain not in ("", "ai.onnx") and of_node(node).shapes is same_shape


def _ranks(model: onnx.ModelProto) -> dict[str, int]:
    """The ranks that ONNX infers, by value; those of constants alone if it finds the model invalid.

    ONNX knows nothing of other domains: an operator whose result has the shape of its first input is an Identity to it.
    """
    known = model
    if any(_keeps_shape(node) for graph in graphs_of(model.graph) for node in graph.node):
        known = onnx.ModelProto()
        known.CopyFrom(model)
        for node in (node for graph in graphs_of(known.graph) for node in graph.node if _keeps_shape(node)):
            node.CopyFrom(onnx.helper.make_node("Identity", node.input[:1], node.output[:1]))
    try:
        inferred = onnx.shape_inference.infer_shapes(known)
    except (onnx.shape_inference.InferenceError, ValueError):
        inferred = model
    found: dict[str, int] = {}
    for graph in graphs_of(inferred.graph):
        for info in (*graph.input, *graph.value_info, *graph.output):
            if info.type.tensor_type.HasField("shape"):
                found[info.name] = len(info.type.tensor_type.shape.dim)
        found.update((tensor.name, len(tensor.dims)) for tensor in graph.initializer)
    return found


def _needed(node: onnx.NodeProto, ranks: list[int], version: int) -> list[Requirement]:
    """What a node needs of sizes, each of which is called by the place of the input and the axis."""
    dims = [tuple(named(f"{place}.{axis}") for axis in range(rank)) for place, rank in enumerate(ranks)]
    shapes = [shape if name else None for name, shape in zip(node.input, dims, strict=True)]
    return list(requirements_of(Given(node, version, shapes, [None] * len(shapes)), None))


def _checks(
    node: onnx.NodeProto, ranks: list[int], needed: Sequence[Requirement], version: int, taken: set[str]
) -> Iterator[onnx.NodeProto]:
    """The nodes that pass the node's inputs on if their sizes fit; it reads the results of the last."""
    first = next(name for name in node.output if name)
    added = Added(taken, f"{first}_sizes", version)
    shown = f"{node.op_type} '{node.name or first}'"
    given = enumerate(list(node.input))
    shapes = {place: added.write("shape = Shape (value)", value=name) for place, name in given if name}
    for place, shape in shapes.items():
        same = added.write(_RANK, shape=shape, rank=ranks[place])
        label = f"{InputValueError.MARK}{shown}: input {place} must have {ranks[place]} dimensions"
        node.input[place] = added.passed(node.input[place], same, label)
    for each in needed:
        fits = _fits(added, each, shapes)
        label = f"{InputValueError.MARK}{shown}: {each.what} does not fit the other sizes"
        node.input[0] = added.passed(node.input[0], fits, label)
    yield from added.nodes


_RANK = f"""
    found = Size (shape)
    fits = Equal (found, rank)
    number = Cast <to = {TensorProto.INT64}> (fits)
"""


def _fits(added: Added, needed: Requirement, shapes: Mapping[int, str]) -> str:
    """The name of a number that is 1 if a requirement is met, and else 0."""
    left, right = (_computed(added, size, shapes) for size in (needed.left, needed.right))
    return added.write(_RELATIONS[needed.relation], left=left, right=right, none=0, one=1)


_NUMBER = f"\nnumber = Cast <to = {TensorProto.INT64}> (fits)"
_RELATIONS = {
    "equal": "fits = Equal (left, right)" + _NUMBER,
    "at_least": "less = Less (left, right)\nfits = Not (less)" + _NUMBER,
    "multiple": "rest = Mod (left, right)\nfits = Equal (rest, none)" + _NUMBER,
    "broadcast": """
        same = Equal (left, right)
        first = Equal (left, one)
        second = Equal (right, one)
        either = Or (first, second)
        fits = Or (same, either)
    """
    + _NUMBER,
}

_OPERATIONS = {
    "+": "result = Add (left, right)",
    "*": "result = Mul (left, right)",
    "min": "result = Min (left, right)",
    "max": "result = Max (left, right)",
    "//": """
        rest = Mod (left, right)
        whole = Sub (left, rest)
        result = Div (whole, right)
    """,  # Div itself rounds towards 0
}


def _computed(added: Added, size: Size, shapes: Mapping[int, str]) -> str:
    """The name of a size that a run computes from the shapes of the node's inputs."""
    values: list[str] = []
    for token in postfix(size):
        if isinstance(token, int):
            values.append(added.write("number = Identity (value)", value=token))
        elif token[0] == "$":
            place, axis = map(int, token[1:].split("."))
            values.append(added.write("size = Gather (shape, axis)", shape=shapes[place], axis=axis))
        else:
            right, left = values.pop(), values.pop()
            values.append(added.write(_OPERATIONS[token], left=left, right=right))
    return values[0]

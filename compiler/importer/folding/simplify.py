"""Simplification: folding, inlining of decided branches and removal of nodes without effect, until nothing changes."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping

import onnx
import onnx_graphsurgeon as gs

from heterocc.compiler.importer.draft.constants import constant_of
from heterocc.compiler.importer.draft.draft import (
    INLINE_BYTES,
    Draft,
    bodies,
    captured_by,
    graphs_of,
    np_type,
    to_array,
    to_tensor,
)
from heterocc.compiler.importer.draft.names import derived
from heterocc.compiler.importer.draft.surgery import Node, open_branch, put_together, replace, take_apart
from heterocc.compiler.importer.draft.written import copy_of
from heterocc.compiler.importer.folding.fold import fold
from heterocc.compiler.importer.folding.loops import drop_idle_loops
from heterocc.compiler.importer.folding.repeated import has_repeated, merge_repeated
from heterocc.compiler.importer.folding.settle import settle_shapes
from heterocc.compiler.importer.folding.whole_slices import bypass_whole_slices
from heterocc.compiler.importer.onnx_tools.onnx_runtime import objection
from heterocc.compiler.importer.operators.functions import types_of
from heterocc.compiler.importer.shapes.shapes import forget_inferred, infer
from heterocc.compiler.operators.record import Operator
from heterocc.compiler.operators.table import of_node, operators_of
from heterocc.passes.graph import Value

_MAX_ROUNDS = 64
"""The limit on rounds; known models need fewer than ten. `_extent` shows that rounds end without this limit too."""


def simplify(draft: Draft, where: str) -> Mapping[str, Value]:
    """Simplify in place and return the remaining values by name.

    Value and node names must be unique over the graph and its bodies.
    """
    refused: set[str] = set()
    values: Mapping[str, Value] = {}
    for _ in range(_MAX_ROUNDS):
        values = infer(draft, where)
        used = operators_of([draft.graph])
        changed = any(o.name == "CastLike" for o in used) and _plain_casts(draft, values)
        changed |= any(o.scalars for o in used) and _plain_scalars(draft)
        changed |= any(o.control == "loop" for o in used) and drop_idle_loops(draft, values)
        changed |= fold(draft, values, refused)
        changed |= any(o.settled is not None for o in used) and settle_shapes(draft, values)
        changed |= bypass_whole_slices(draft, values)
        changed |= _operate(draft)
        if not changed and not _simplify_bodies(draft, where):
            return values
    draft.notes.append(
        f"constants may be left that could be computed: {_MAX_ROUNDS} rounds of simplifying were not enough"
    )
    return infer(draft, where)


def _plain_casts(draft: Draft, values: Mapping[str, Value]) -> bool:
    """Turn CastLike into Cast if the type is known, so that it can be folded without the second input."""
    changed = False
    for node in draft.graph.node:
        like = values.get(node.input[1]) if node.op_type == "CastLike" and not node.domain else None
        if like is not None and not like.is_opaque:
            node.op_type = "Cast"
            del node.input[1:]
            node.attribute.append(onnx.helper.make_attribute("to", np_type(like.dtype)))
            changed = True
    return changed


def _plain_scalars(draft: Draft) -> bool:
    """Turn constant vectors of one element into scalars where ONNX wants these, which is stricter about constants."""
    changed = False
    for node in draft.graph.node:
        wanted = of_node(node).scalars
        for place, name in enumerate(node.input if wanted else ()):
            array = draft.weights.get(name) if place in wanted else None
            if array is not None and array.ndim and array.size == 1:
                node.input[place] = derived(name, "scalar")
                draft.weights[node.input[place]] = array.reshape(())
                changed = True
    return changed


def _operate(draft: Draft) -> bool:
    """Inline decided branches, and remove nodes without effect, repeated selections and unused nodes.

    Returns whether a branch was inlined, or a node without effect or a repeated one removed.
    """
    draft.drop_unread()
    used = operators_of([draft.graph])
    removable = any(map(_may_be_removable, used)) and any(_is_removable(n, draft) for n in draft.graph.node)
    if not removable and not (any(o.selects for o in used) and has_repeated(draft)):
        return False  # linking the nodes takes longer than the rest of most rounds
    graph = take_apart(draft)
    changed = _take_branches(graph, draft)
    changed |= _bypass(graph, draft)
    changed |= merge_repeated(graph, draft)
    if changed:
        put_together(graph, draft)
    return changed


def _may_be_removable(operator: Operator) -> bool:
    return operator.control == "branches" or operator.copies or operator.training is not None or operator.alone


def _is_removable(node: onnx.NodeProto, draft: Draft) -> bool:
    operator = of_node(node)
    if operator.control == "branches":
        return any(name in draft.weights for name in node.input)  # its condition is its only input
    return operator.copies or operator.training is not None or (operator.alone and len(node.input) == 1)


def _take_branches(graph: gs.Graph, draft: Draft) -> bool:
    """Replace each If with a known condition by the nodes of its branch; return whether any was replaced."""
    nodes: list[Node] = []
    taken = False
    for node in graph.nodes:
        if of_node(node.proto).control != "branches" or not _is_single(node.inputs[0]):
            nodes.append(node)
            continue
        taken = True
        branch = open_branch(node, "then_branch" if _truth(node.inputs[0]) else "else_branch")
        *inside, end = branch.nodes
        written = {t.name for inner in inside for t in inner.outputs}
        draft.weights.update((t.name, t.values) for t in branch.constants)
        ends = list(node.outputs)
        node.outputs.clear()
        copies = []
        for index, outer in enumerate(ends):
            value = end.inputs[index]  # `replace` may have changed it
            if outer.is_empty():
                continue
            if value.name in written:
                replace(value, outer)
            else:
                name = derived(node.name, f"to_{outer.name}")
                copy = copy_of(value.name, outer.name, name)
                copies.append(Node(copy, {t.name: t for t in (value, outer)}))
                draft.origins[name] = draft.origins.get(node.name, ())
        for inner in inside:
            if not draft.origins.get(inner.name):
                draft.origins[inner.name] = draft.origins.get(node.name, ())
            if node.name in draft.affinity:
                draft.affinity.setdefault(inner.name, draft.affinity[node.name])
        nodes += (*inside, *copies)
    graph.nodes = nodes
    return taken


def _bypass(graph: gs.Graph, draft: Draft) -> bool:
    """Remove Identity, Dropout without effect, and variadic operators of one input; return whether any was removed.

    Outputs of the graph keep their names.
    """
    outputs = {o.name for o in graph.outputs}
    # a body that returns an outer value as it is would be invalid, so such an Identity must stay
    returned = {name for node in graph.nodes for name in node.returned}
    changed = False
    for node in graph.nodes:
        if not _does_nothing(node, outputs, draft.opset):
            continue
        source, target = node.inputs[0], node.outputs[0]
        if target.name in returned:
            continue
        if target.name not in outputs:
            node.outputs.clear()
            replace(target, source)
        elif source.inputs and source.name not in outputs and source.name not in returned:
            node.outputs.clear()
            replace(source, target)
        else:
            continue
        changed = True
    return changed


def _does_nothing(node: Node, outputs: set[str], opset: int) -> bool:
    operator = of_node(node.proto)
    if operator.copies or (operator.alone and len(node.inputs) == 1):
        return True
    if node.domain or operator.training is None or opset < 7:
        return False
    if any(mask.outputs or mask.name in outputs for mask in node.outputs[1:]):
        return False
    place = operator.training
    training = node.inputs[place] if len(node.inputs) > place else gs.Variable.empty()
    return training.is_empty() or (_is_single(training) and not _truth(training))


def _is_single(value: gs.Tensor) -> bool:
    """Whether a value is a constant of one element."""
    return isinstance(value, gs.Constant) and value.values.size == 1


def _truth(value: gs.Constant) -> bool:
    return bool(value.values.reshape(-1)[0])


def _simplify_bodies(draft: Draft, where: str) -> bool:
    """Simplify each branch and loop body separately, with the known types of the values that it captures.

    Returns whether the graph must be simplified again: a body became smaller, or lost the shapes that the model
    declares for its outputs. Shapes that `infer` wrote do not count, because it writes them in every round.
    """
    changed = False
    types: dict[str, onnx.TypeProto] | None = None
    for node in draft.graph.node:
        for body in bodies(node):
            types = types or types_of(draft)
            key = _fingerprint(body, types)
            if key in draft.settled:
                continue
            before = _extent(body)
            _simplify_body(draft, body, types, where)
            draft.settled.update((key, _fingerprint(body, types)))
            changed |= _extent(body) < before or node.name not in draft.visited
        draft.visited.add(node.name)
    return changed


def _extent(body: onnx.GraphProto) -> tuple[int, int, int, int]:
    """A measure that every round but the last reduces, in lexicographic order, so that rounds end at any nesting.

    Inlining a branch removes an If and may leave copies, a Cast replaces a CastLike, folding and bypassing remove
    nodes, and large constants move out of the body.
    """
    inner = [_extent(b) for n in body.node for b in bodies(n)]
    own = (
        sum(of_node(n).control == "branches" for n in body.node),
        sum(n.op_type == "CastLike" for n in body.node),
        len(body.node),
        sum(len(t.raw_data) > INLINE_BYTES for t in body.initializer),
    )
    ifs, casts, nodes, large = zip(own, *inner, strict=True)
    return sum(ifs), sum(casts), sum(nodes), sum(large)


def _fingerprint(body: onnx.GraphProto, types: Mapping[str, onnx.TypeProto]) -> bytes:
    """A digest of everything that the simplification of a body depends on."""
    bare = onnx.GraphProto()
    bare.CopyFrom(body)
    for graph in graphs_of(bare):
        forget_inferred(graph)
    digest = hashlib.sha256(bare.SerializeToString(deterministic=True))
    for name in captured_by(body):
        digest.update(types[name].SerializeToString(deterministic=True) if name in types else b"?")
    return digest.digest()


def _simplify_body(draft: Draft, body: onnx.GraphProto, types: Mapping[str, onnx.TypeProto], where: str) -> None:
    outer = captured_by(body)
    if any(name not in types for name in outer) or any(not i.type.WhichOneof("value") for i in body.input):
        return  # inference needs the types
    model = onnx.ModelProto(ir_version=draft.model.ir_version, opset_import=draft.model.opset_import)
    model.graph.CopyFrom(body)
    del model.graph.initializer[:]
    for info in model.graph.input:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")  # a loop's state may change its shape
    model.graph.input.extend(onnx.ValueInfoProto(name=n, type=types[n]) for n in outer if n not in draft.weights)
    weights = {n: draft.weights[n] for n in outer if n in draft.weights}
    weights |= {t.name: to_array(t) for t in body.initializer}
    inner = dataclasses.replace(draft, model=model, weights=weights, lent=frozenset(outer), symbols=None)
    simplify(inner, where)
    if objection(inner.to_proto(), compute=not draft.budget.spent) is not None:
        _name_constants(body)
        return  # the fixed shapes contradict this branch, but a run may never take it
    returned = {o.name for o in body.output}
    del body.node[:]
    body.node.extend(inner.graph.node)
    del body.initializer[:]
    forget_inferred(body)
    for name, array in inner.weights.items():
        if name in draft.weights and name in inner.lent:
            continue
        if array.nbytes <= INLINE_BYTES or name in returned:
            body.initializer.append(to_tensor(name, array))
        else:  # moved to the graph, to be mapped and shared like all other constants
            draft.weights[name] = array


def _name_constants(body: onnx.GraphProto) -> None:
    """Turn Constant nodes into constants, at all levels, as they are in bodies that were simplified."""
    for graph in graphs_of(body):
        returned = {o.name for o in graph.output}
        for node in list(graph.node):
            array = constant_of(node)
            if array is not None and node.output[0] not in returned:
                graph.initializer.append(to_tensor(node.output[0], array))
                graph.node.remove(node)

"""Simplifying: folding, taking decided branches, and removing what does nothing, until nothing changes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import onnx

from heterocc.compiler.importer.draft import (
    INLINE_BYTES,
    Draft,
    bodies,
    captured_by,
    np_type,
    reads,
    to_array,
    to_tensor,
)
from heterocc.compiler.importer.fold import drop_dead, fold
from heterocc.compiler.importer.functions import types_of
from heterocc.compiler.importer.onnx_runtime import objection
from heterocc.compiler.importer.read import graphs_of
from heterocc.compiler.importer.shapes import forget_inferred, infer
from heterocc.passes.graph import Value

_MAX_ROUNDS = 64
"""No model met needs ten; see `_extent` for why even without this bound there is an end."""


def simplify(draft: Draft, where: str) -> Mapping[str, Value]:
    """Simplify in place and give the values that are left.

    Value and node names must be unique over the graph and its bodies.
    """
    refused: set[str] = set()
    values: Mapping[str, Value] = {}
    for _ in range(_MAX_ROUNDS):
        values = infer(draft, where)
        changed = _plain_casts(draft, values)
        changed |= fold(draft, values, refused)
        changed |= _take_branches(draft)
        changed |= _bypass(draft)
        drop_dead(draft)
        if not changed and not _simplify_bodies(draft, where):
            return values
    draft.notes.append(
        f"constants may be left that could be computed: {_MAX_ROUNDS} rounds of simplifying were not enough"
    )
    return infer(draft, where)


def _plain_casts(draft: Draft, values: Mapping[str, Value]) -> bool:
    """Turn CastLike into Cast: once the type is known, what it is like no longer matters, and constants fold."""
    changed = False
    for node in draft.graph.node:
        like = values.get(node.input[1]) if node.op_type == "CastLike" and not node.domain else None
        if like is not None and not like.is_opaque:
            node.op_type = "Cast"
            del node.input[1:]
            node.attribute.append(onnx.helper.make_attribute("to", np_type(like.dtype)))
            changed = True
    return changed


def _take_branches(draft: Draft) -> bool:
    """Replace each If whose condition is known by the nodes of its branch."""
    result: list[onnx.NodeProto] = []
    taken = False
    for node in draft.graph.node:
        if node.op_type != "If" or node.domain or not _is_single(draft, node.input[0]):
            result.append(node)
            continue
        taken = True
        wanted = "then_branch" if bool(draft.weights[node.input[0]].reshape(-1)[0]) else "else_branch"
        body = next(a.g for a in node.attribute if a.name == wanted)
        for tensor in body.initializer:
            draft.weights[tensor.name] = to_array(tensor)
        written = {o for n in body.node for o in n.output}
        renames: dict[str, str] = {}
        copies: list[onnx.NodeProto] = []
        for inner, outer in zip(body.output, node.output, strict=True):
            if not outer:
                continue
            if inner.name in written and inner.name not in renames:
                renames[inner.name] = outer
            else:
                name = f"{node.name}_{outer}"
                copies.append(onnx.helper.make_node("Identity", [inner.name], [outer], name=name))
                draft.origins[name] = draft.origins.get(node.name, ())
        rename_uses(body, renames)
        for copy in copies:
            copy.input[0] = renames.get(copy.input[0], copy.input[0])
        for inner_node in body.node:
            if not draft.origins.get(inner_node.name):
                draft.origins[inner_node.name] = draft.origins.get(node.name, ())
            if node.name in draft.affinity:
                draft.affinity.setdefault(inner_node.name, draft.affinity[node.name])
        result.extend((*body.node, *copies))
    if taken:
        draft.replace_nodes(result)
    return taken


def rename_uses(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename values where they are read and written, also in bodies."""
    if not names:
        return
    for node in graph.node:
        for listed in (node.input, node.output):
            for index, name in enumerate(listed):
                if name in names:
                    listed[index] = names[name]
        for body in bodies(node):
            rename_uses(body, names)
            for output in body.output:
                output.name = names.get(output.name, output.name)


def _bypass(draft: Draft) -> bool:
    """Remove Identity, and Dropout that drops nothing; outputs of the graph keep their names."""
    outputs = {o.name for o in draft.graph.output}
    # a body that returns an outer value as it is would be invalid, so such an Identity must stay
    returned = {o.name for n in draft.graph.node for b in bodies(n) for o in b.output}
    producer = {o: n for n in draft.graph.node for o in n.output if o}
    renames: dict[str, str] = {}

    def final(name: str) -> str:
        while name in renames:
            name = renames[name]
        return name

    removed: set[str] = set()
    for node in draft.graph.node:
        if not _does_nothing(draft, node, outputs):
            continue
        source, target = final(node.input[0]), node.output[0]
        if target in returned:
            continue
        if target not in outputs:
            renames[target] = source
        elif source in producer and source not in outputs and source not in returned:
            renames[source] = target
            producer[target] = producer[source]
        else:
            continue
        removed.add(node.name)
    if not removed:
        return False
    draft.replace_nodes(n for n in draft.graph.node if n.name not in removed)
    rename_uses(draft.graph, {name: final(name) for name in renames})
    return True


def _does_nothing(draft: Draft, node: onnx.NodeProto, outputs: set[str]) -> bool:
    if node.domain:
        return False
    if node.op_type == "Identity":
        return True
    if node.op_type != "Dropout" or draft.opset < 7:
        return False
    mask = node.output[1] if len(node.output) > 1 else ""
    if mask and (mask in outputs or any(mask in reads(n) for n in draft.graph.node)):
        return False
    training = node.input[2] if len(node.input) > 2 else ""
    return not training or (_is_single(draft, training) and not bool(draft.weights[training].reshape(-1)[0]))


def _is_single(draft: Draft, name: str) -> bool:
    """Whether a value is a constant of one element."""
    return name in draft.weights and draft.weights[name].size == 1


def _simplify_bodies(draft: Draft, where: str) -> bool:
    """Simplify branches and loop bodies on their own, with what the graph knows of the values they capture.

    Says whether the graph has to be simplified again: a body became smaller, or lost the shapes that the model states
    for its outputs. Shapes that `infer` wrote into it do not count, as it does so in every round.
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
    """What every round but the last makes smaller, in lexicographic order: so rounds end, however bodies are nested.

    Taking a branch removes an If and may leave copies, a plain cast replaces a CastLike, folding and bypassing remove
    nodes, and large constants leave the body.
    """
    inner = [_extent(b) for n in body.node for b in bodies(n)]
    own = (
        sum(n.op_type == "If" for n in body.node),
        sum(n.op_type == "CastLike" for n in body.node),
        len(body.node),
        sum(len(t.raw_data) > INLINE_BYTES for t in body.initializer),
    )
    ifs, casts, nodes, large = zip(own, *inner, strict=True)
    return sum(ifs), sum(casts), sum(nodes), sum(large)


def _fingerprint(body: onnx.GraphProto, types: Mapping[str, onnx.TypeProto]) -> bytes:
    """A digest of everything that decides how a body is simplified."""
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
        return  # without types nothing can be told
    model = onnx.ModelProto(ir_version=draft.model.ir_version, opset_import=draft.model.opset_import)
    model.graph.CopyFrom(body)
    del model.graph.initializer[:]
    for info in model.graph.input:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")  # a loop's state may change its shape
    model.graph.input.extend(onnx.ValueInfoProto(name=n, type=types[n]) for n in outer if n not in draft.weights)
    inner = Draft(
        model,
        {n: draft.weights[n] for n in outer if n in draft.weights} | {t.name: to_array(t) for t in body.initializer},
        draft.origins,
        draft.affinity,
        draft.notes,
        draft.settled,
        draft.visited,
        draft.budget,
        frozenset(outer),
    )
    simplify(inner, where)
    if objection(inner.to_proto(), compute=not draft.budget.spent) is not None:
        return  # these shapes contradict a branch that a run may never take; it is left for the run to judge
    returned = {o.name for o in body.output}
    del body.node[:]
    body.node.extend(inner.graph.node)
    del body.initializer[:]
    forget_inferred(body)
    for name, array in inner.weights.items():
        if name in draft.weights and name in outer:
            continue
        if array.nbytes <= INLINE_BYTES or name in returned:
            body.initializer.append(to_tensor(name, array))
        else:  # out into the graph, where it is mapped and shared like all other constants
            draft.weights[name] = array

"""Conversion of models between operator sets, if it does not change their results."""

from __future__ import annotations

from collections import Counter
from functools import cache

import onnx
from onnx import helper, version_converter

from heterocc.artifacts.errors import InvalidGraphError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.importer.draft.draft import Draft, graphs_of, keep, opsets
from heterocc.compiler.importer.draft.names import names_in, unused
from heterocc.compiler.importer.draft.order import sort_nodes
from heterocc.compiler.importer.onnx_tools.checker import check, condense
from heterocc.compiler.importer.onnx_tools.infer import infer_onnx
from heterocc.compiler.importer.operators.experimental import hide_experimental, show_experimental
from heterocc.compiler.importer.operators.restated import restate_after, restated_before
from heterocc.compiler.operators.table import of_node

TARGET = 17
"""The operator set to which older models are converted."""


def settle_opset(draft: Draft, where: str) -> None:
    """Convert the model to operator set 17, or to the oldest later one with the same versions of its operators.

    An older model that cannot be converted is not changed, and gets a note with the reason.
    """
    version = opsets(draft.model).get("")
    if version is None:
        return
    _state_defaults(draft)
    _state_flags(draft)
    if version > TARGET:
        lower_opset(draft)
    elif version < TARGET:
        hide_batched_scans(draft, version)
        hide_experimental(draft, version)
        reason = _obstacle(draft, version) or _convert(draft, version, where)
        show_batched_scans(draft, converted=reason is None)
        show_experimental(draft, converted=reason is None)
        if reason is not None:
            draft.notes.append(
                f"the model stays at operator set {version}, of which devices support fewer operators ({reason}); "
                f"export it at {TARGET} or newer if nodes go to another device than you want"
            )


def _state_defaults(draft: Draft) -> None:
    """Add default attributes for which ONNX's shape inference assumes another value."""
    for graph in graphs_of(draft.graph):
        for node in graph.node:
            if node.op_type == "STFT" and not node.domain and all(a.name != "onesided" for a in node.attribute):
                node.attribute.append(onnx.helper.make_attribute("onesided", 1))


def _state_flags(draft: Draft) -> None:
    """Set what is neither 0 nor 1 to 0 in reductions, where ONNX's shape inference and ONNX Runtime ask for 1."""
    for graph in graphs_of(draft.graph):
        for node in graph.node:
            if not node.domain and node.op_type.startswith(("Reduce", "ArgM")):
                for attribute in node.attribute:
                    if attribute.name in ("keepdims", "noop_with_empty_axes") and attribute.i != 1:
                        attribute.i = 0


def lower_opset(draft: Draft) -> None:
    """Lower the operator set as far as possible without a change of any operator's version."""
    version = opsets(draft.model).get("", TARGET)
    used = {n.op_type for g in graphs_of(draft.graph) for n in g.node if not n.domain}
    needed = max((_since(op_type, version) for op_type in used), default=TARGET)
    for entry in draft.model.opset_import:
        if not entry.domain and version > TARGET:
            entry.version = max(TARGET, needed)


def drop_unused_domains(draft: Draft) -> None:
    """Remove imports of domains that the model does not use, except ONNX's own."""
    used = {n.domain for g in graphs_of(draft.graph) for n in g.node}
    keep(draft.model.opset_import, lambda o: o.domain in used or not o.domain)


def _since(op_type: str, version: int) -> int:
    try:
        return int(onnx.defs.get_schema(op_type, version, "").since_version)
    except onnx.defs.SchemaError:
        return version


def _obstacle(draft: Draft, version: int) -> str | None:
    """The reason not to use ONNX's converter, or None.

    It does not convert subgraphs, so their operators must have the same meaning in both versions.
    """
    if version < FIRST_WITHOUT_BATCH and any(of_node(n).control == "scan" for n in draft.graph.node):
        return f"Scan has lengths of sequences in {version}"
    for graph in list(graphs_of(draft.graph))[1:]:
        for node in graph.node:
            if not node.domain and _signature(node.op_type, version) != _signature(node.op_type, TARGET):
                return f"{node.op_type} inside a control-flow body differs between {version} and {TARGET}"
    return None


def _signature(op_type: str, version: int) -> tuple[object, ...]:
    """The parts of an operator's schema that determine its meaning: inputs, outputs, attributes and their defaults."""
    try:
        schema = onnx.defs.get_schema(op_type, version, "")
    except onnx.defs.SchemaError:
        return ()
    defaults = tuple(
        (a.name, str(a.type), a.required, a.default_value.SerializeToString(deterministic=True))
        for _, a in sorted(schema.attributes.items())
    )
    return (
        tuple((i.name, str(i.option)) for i in schema.inputs),
        tuple((o.name, str(o.option)) for o in schema.outputs),
        defaults,
    )


def _convert(draft: Draft, version: int, where: str) -> str | None:
    """Convert in place; return the reason if the converter fails or its result is unusable."""
    before = draft.to_proto()
    try:
        after = version_converter.convert_version(restated_before(before, version), TARGET)
    except Exception as error:  # the converter's C++ side raises RuntimeError and others
        pass_foreign(error)
        return f"the converter says: {condense(str(error))}"
    if _foreign(before) != _foreign(after):
        return "the converter loses operators of other domains"
    restate_after(after, version, cache(lambda: _types(draft.to_proto())))
    origins, affinity = _carry(draft, before, after)
    imported = {o.domain for o in after.opset_import}
    after.opset_import.extend(o for o in before.opset_import if o.domain not in imported)
    after.ir_version = before.ir_version
    trial = Draft(onnx.ModelProto(), dict(draft.weights))
    trial.adopt(after)
    try:
        sort_nodes(trial.graph, where)
        check(trial, where)
    except InvalidGraphError as error:
        return f"the converted model is invalid: {error.message}"
    draft.weights, draft.origins, draft.affinity = trial.weights, origins, affinity
    draft.model = trial.model
    return None


def _types(model: onnx.ModelProto) -> dict[str, int]:
    """The element types of a model's values, as far as they are known."""
    try:
        graph = infer_onnx(model, "").graph
    except (InvalidGraphError, onnx.shape_inference.InferenceError):
        graph = model.graph
    known = (*graph.input, *graph.value_info, *graph.output)
    return {i.name: i.type.tensor_type.elem_type for i in known if i.type.HasField("tensor_type")}


def _carry(
    draft: Draft, before: onnx.ModelProto, after: onnx.ModelProto
) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """The origins and affinities of all nodes after a conversion.

    Nodes that the converter made get unique names, and the origin and affinity of the node that they replace.
    """
    writer = {o: n.name for n in before.graph.node for o in n.output if o}
    taken = {n.name for g in graphs_of(before.graph) for n in g.node}
    origins, affinity = dict(draft.origins), dict(draft.affinity)
    source_of_reader: dict[str, str] = {}
    seen: set[str] = set()
    for index, node in reversed(list(enumerate(after.graph.node))):
        # a node that writes only new values prepares an input of a node that replaces one of the model
        known = node.name if node.name in taken else next((writer[o] for o in node.output if o in writer), None)
        source = known or next((source_of_reader[o] for o in node.output if o in source_of_reader), None)
        if node.name not in taken or node.name in seen:
            node.name = name = unused(f"{source or node.op_type}_{node.op_type}_{index}", taken)
            origins[name] = draft.origins.get(source, ()) if source else ()
            if source in draft.affinity:
                affinity[name] = draft.affinity[source]
        seen.add(node.name)
        if source:
            source_of_reader.update((name, source) for name in node.input if name not in writer)
    return origins, affinity


def _foreign(model: onnx.ModelProto) -> Counter[tuple[str, str]]:
    return Counter((n.domain, n.op_type) for g in graphs_of(model.graph) for n in g.node if n.domain)


_DOMAIN = "heterocc.batched"
"""The domain of such nodes while ONNX's converter runs, which converts only those of batches of 1."""

FIRST_WITHOUT_BATCH = 9


def hide_batched_scans(draft: Draft, version: int) -> None:
    """Hide the graph's Scans of operator set 8 from ONNX's converter; those with lengths of sequences stay."""
    if version >= FIRST_WITHOUT_BATCH:
        return
    for node in draft.graph.node:
        if of_node(node).control == "scan" and node.input and not node.input[0]:
            node.domain = _DOMAIN
            if all(entry.domain != _DOMAIN for entry in draft.model.opset_import):
                draft.model.opset_import.add(domain=_DOMAIN, version=1)


def show_batched_scans(draft: Draft, *, converted: bool) -> None:
    """Write the hidden nodes as later Scans if the model was `converted`; else put them back as they were."""
    taken = names_in(draft.graph) | draft.weights.keys()
    for node in draft.graph.node:
        if node.domain == _DOMAIN:
            node.domain = ""
            if converted:
                _write(node, taken)
    keep(draft.model.opset_import, lambda entry: entry.domain != _DOMAIN)


def _write(node: onnx.NodeProto, taken: set[str]) -> None:
    """Make a Scan over the batch, in the body of which a Scan runs over the sequence of one item."""
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    body, scanned = given["body"], given["num_scan_inputs"]
    outer = list(node.input[1:])
    states = len(outer) - scanned

    items = [unused(f"{name}_item", taken) for name in outer]
    results = [unused(f"{name}_item", taken) for name in node.output]
    label = unused(f"{node.name}_item", taken)
    inner = helper.make_node(node.op_type, items, results, label, body=body, num_scan_inputs=scanned)
    if "directions" in given:
        inner.attribute.append(helper.make_attribute("scan_input_directions", given["directions"]))
    loop = onnx.GraphProto(name=f"{body.name}_items", node=[inner])
    for names, infos, added in ((items, body.input, loop.input), (results, body.output, loop.output)):
        for place, (name, info) in enumerate(zip(names, infos, strict=True)):
            item = added.add(name=name)
            item.type.tensor_type.elem_type = info.type.tensor_type.elem_type
            if place < states and info.type.tensor_type.HasField("shape"):
                item.type.tensor_type.shape.CopyFrom(info.type.tensor_type.shape)
    del node.input[:]
    node.input.extend(outer)
    del node.attribute[:]
    node.attribute.extend([helper.make_attribute("body", loop), helper.make_attribute("num_scan_inputs", len(outer))])

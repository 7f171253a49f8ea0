"""Inlining of model-local functions, and of operators that ONNX defines as functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import onnx
from onnx import helper, inliner

from heterocc.artifacts.errors import InvalidGraphError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.importer.draft.depth_first import depth_first
from heterocc.compiler.importer.draft.draft import Draft, bodies, graphs_of, nodes_of, reads, set_nodes, tensor_type
from heterocc.compiler.importer.draft.names import Namer, rename_values
from heterocc.compiler.importer.draft.order import cycle_text, sort_nodes
from heterocc.compiler.importer.onnx_tools.checker import check, condense
from heterocc.compiler.importer.operators.opset import drop_unused_domains
from heterocc.compiler.importer.operators.strict import make_strict
from heterocc.compiler.operators.table import of_node

_DEFINED = "heterocc.defined"
"""The domain of functions that stand for operators of ONNX while these are expanded."""

_MAX_DEPTH = 200
_MAX_NODES = 100_000
"""The limit on the nodes that all calls together expand to; a few nested functions can exceed any number."""

_MAX_GROWTH = 20
"""How many times its nodes as written a model may expand to, if that is more than _MAX_NODES."""

_Key = tuple[str, str]
"""The domain and name of a function."""

_MAIN = ("", "")
"""The key of the main graph; keys of functions are pairs of domain and name."""


def expand_local(draft: Draft, namer: Namer, where: str) -> None:
    """Expand every call of a model-local function, also inside bodies and inside other functions.

    Raises InvalidGraphError for a function that cannot be expanded.
    """
    if not draft.model.functions:
        return
    keys = {(f.domain, f.name) for f in draft.model.functions}
    _check_size(draft, where)
    _fill_local_defaults(draft)
    _settle_operator_sets(draft)
    _expand(draft, lambda node: (node.domain, node.op_type) in keys, namer, where, schema=False)
    del draft.model.functions[:]
    sort_nodes(draft.graph, where)
    check(draft, where)
    drop_unused_domains(draft)


def _settle_operator_sets(draft: Draft) -> None:
    """Let functions import the model's operator sets where all their operators are the same in these.

    The inliner converts a function of another operator set, for which it needs the types of all its values.
    """
    versions = {o.domain: o.version for o in draft.model.opset_import}

    def version(node: onnx.NodeProto, number: int) -> int | None:
        try:
            return int(onnx.defs.get_schema(node.op_type, number, node.domain).since_version)
        except onnx.defs.SchemaError:
            return None

    for function in draft.model.functions:
        for imported in function.opset_import:
            wanted = versions.get(imported.domain, imported.version)
            nodes = [node for node in nodes_of(function.node) if node.domain == imported.domain]
            if all(version(node, wanted) == version(node, imported.version) for node in nodes):
                imported.version = wanted


def _check_size(draft: Draft, where: str) -> None:
    """Raise InvalidGraphError for recursion, which ONNX forbids, and for functions that expand to too many nodes."""
    nodes: dict[_Key, Iterable[onnx.NodeProto]] = {_MAIN: draft.graph.node}
    nodes.update(((f.domain, f.name), f.node) for f in draft.model.functions)
    operators: dict[_Key, list[_Key]] = {
        key: [(n.domain, n.op_type) for n in nodes_of(found)] for key, found in nodes.items()
    }
    calls = {key: list(dict.fromkeys(c for c in found if c in nodes)) for key, found in operators.items()}
    order, cycle = depth_first([_MAIN], calls.__getitem__)
    if cycle:
        names = [name for _, name in cycle]
        raise InvalidGraphError(f"function '{names[0]}' calls itself: {cycle_text(names)}", where=where)
    sizes: dict[_Key, int] = {}
    levels: dict[_Key, int] = {}
    for key in order:
        sizes[key] = sum(sizes.get(called, 1) for called in operators[key])
        levels[key] = 1 + max((levels[called] for called in calls[key]), default=0)
    if levels[_MAIN] - 1 > _MAX_DEPTH:
        raise InvalidGraphError(f"functions call each other more than {_MAX_DEPTH} levels deep", where=where)
    most = max(_MAX_NODES, _MAX_GROWTH * sum(map(len, operators.values())))
    if sizes[_MAIN] > most:
        raise InvalidGraphError(f"the model's functions expand to more than {most} nodes", where=where)


def _called_by(
    call: onnx.NodeProto, functions: Mapping[tuple[str, str], onnx.FunctionProto]
) -> list[onnx.FunctionProto]:
    """The function of a call and those that it calls, directly or not.

    The inliner copies all functions that it is given, so it gets no others.
    """
    found: dict[tuple[str, str], onnx.FunctionProto] = {}
    open_ = [(call.domain, call.op_type)]
    open_ += [(n.domain, n.op_type) for body in bodies(call) for n in nodes_of(body.node)]
    while open_:
        key = open_.pop()
        if key in functions and key not in found:
            found[key] = functions[key]
            open_ += [(n.domain, n.op_type) for n in nodes_of(functions[key].node)]
    return list(found.values())


def expand_standard(draft: Draft, namer: Namer, where: str) -> bool:
    """Expand operators that devices support only by their definition; return whether any was expanded."""
    return _expand(draft, _wants_definition, namer, where, schema=True)


def _wants_definition(node: onnx.NodeProto) -> bool:
    return not node.domain and of_node(node).expanded


def _expand(draft: Draft, wanted: Callable[[onnx.NodeProto], bool], namer: Namer, where: str, *, schema: bool) -> bool:
    """Replace the wanted calls by the functions' bodies, in the graph and its subgraphs; return whether any was."""
    graphs = [graph for graph in graphs_of(draft.graph) if any(wanted(node) for node in graph.node)]
    if not graphs:
        return False
    types = types_of(draft)
    functions = {} if schema else {(f.domain, f.name): f for f in draft.model.functions}
    expanded = False
    for graph in graphs:
        result: list[onnx.NodeProto] = []
        for node in graph.node:
            if not wanted(node):
                result.append(node)
                continue
            body = _body_of(draft, node, types, functions, namer, where, schema=schema)
            expanded |= node not in body
            result.extend(body)
        set_nodes(graph, result)
    return expanded


def types_of(draft: Draft) -> dict[str, onnx.TypeProto]:
    """The known types of the graph's values, by name."""
    graph = draft.graph
    types = {i.name: i.type for i in (*graph.value_info, *graph.output, *graph.input) if i.type.WhichOneof("value")}
    for name, array in draft.weights.items():
        types[name] = helper.make_tensor_type_proto(tensor_type(array), array.shape)
    return types


def _body_of(
    draft: Draft,
    call: onnx.NodeProto,
    types: Mapping[str, onnx.TypeProto],
    functions: Mapping[tuple[str, str], onnx.FunctionProto],
    namer: Namer,
    where: str,
    *,
    schema: bool,
) -> list[onnx.NodeProto]:
    """The nodes that replace a call, with unique names and the call's origin; the call if ONNX cannot expand it."""
    label = (draft.origins[call.name] or (call.name,))[0]
    graph = helper.make_graph(
        [call],
        "call",
        [onnx.ValueInfoProto(name=n, type=types.get(n)) for n in dict.fromkeys(reads(call))],
        [onnx.ValueInfoProto(name=n, type=types.get(n)) for n in call.output if n],
    )
    model = helper.make_model(
        graph,
        opset_imports=draft.model.opset_import,
        ir_version=draft.model.ir_version,
        functions=_called_by(call, functions),
    )
    if schema:
        _fill_defaults(model)
    try:
        if schema and "" in call.input:
            _define(model)
            model = inliner.inline_local_functions(model, convert_version=True)
        elif schema:
            key = (call.domain, call.op_type)
            model = inliner.inline_selected_functions(model, [key], inline_schema_functions=True)
        else:
            model = inliner.inline_local_functions(model, convert_version=True)
    except Exception as error:
        pass_foreign(error)
        if schema:
            return [call]  # ONNX cannot expand every form; the query decides whether a device supports it
        raise InvalidGraphError(
            f"function '{call.op_type}' cannot be expanded: {condense(str(error))}", where=f"{where}: node '{label}'"
        ) from error
    if schema:
        make_strict(call, model.graph)
    known = {*(o.domain for o in draft.model.opset_import), _DEFINED}
    draft.model.opset_import.extend(o for o in model.opset_import if o.domain not in known)
    outer = {name: name for name in (*reads(call), *call.output)}
    rename_values(model.graph, outer, lambda name: namer.give(f"{call.name}_{name}", "v"))
    body = list(model.graph.node)
    if len(body) == 1 and (body[0].domain, body[0].op_type) == (call.domain, call.op_type):
        return [call]
    for graph_ in graphs_of(model.graph):
        del graph_.value_info[:]
        for node in graph_.node:
            affinity = next(
                (e.value for e in node.metadata_props if e.key == "affinity"), draft.affinity.get(call.name)
            )
            node.name = namer.give(f"{call.name}_{node.name or node.op_type}", "n")
            draft.origins[node.name] = draft.origins[call.name]
            if affinity is not None:
                draft.affinity[node.name] = affinity
    return body


def _define(model: onnx.ModelProto) -> None:
    """Add the definition of the model's only call as a local function.

    ONNX's inliner makes no definition that depends on the types of inputs for a call without one of its first inputs.
    """
    call = model.graph.node[0]
    version = next(o.version for o in model.opset_import if o.domain == call.domain)
    schema = onnx.defs.get_schema(call.op_type, version, call.domain)
    types = {info.name: info.type for info in model.graph.input}
    given = [types.get(name, onnx.TypeProto()).SerializeToString() for name in call.input]
    if not schema.has_context_dependent_function:
        raise ValueError("its definition does not depend on its call")
    known = sorted(schema.context_dependent_function_opset_versions)
    newest = next((v for v in reversed(known) if v <= version), known[0])
    made = schema.get_context_dependent_function_with_opset_version(newest, call.SerializeToString(), given)
    function = onnx.FunctionProto.FromString(made)
    if not function.node:
        raise ValueError("ONNX does not define it for these inputs: of sizes that are not fixed, for example")
    function.domain = call.domain = _DEFINED
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid(_DEFINED, 1))


def _fill_local_defaults(draft: Draft) -> None:
    """Add default attributes to all calls of model-local functions; the inliner does not resolve them in the body."""
    defaults = {(f.domain, f.name): f.attribute_proto for f in draft.model.functions}
    for owner in (draft.graph, *draft.model.functions):
        for node in nodes_of(owner.node):
            present = {a.name for a in node.attribute}
            node.attribute.extend(a for a in defaults.get((node.domain, node.op_type), ()) if a.name not in present)


def _fill_defaults(model: onnx.ModelProto) -> None:
    """Add default attributes to the call; the inliner does not resolve them in the body."""
    call = model.graph.node[0]
    version = next(o.version for o in model.opset_import if o.domain == call.domain)
    present = {a.name for a in call.attribute}
    for name, attribute in sorted(onnx.defs.get_schema(call.op_type, version, call.domain).attributes.items()):
        if name not in present and attribute.default_value.name:
            call.attribute.append(attribute.default_value)

"""Models that are parts of a model: some of its nodes, with new inputs and outputs where others were cut off."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import onnx

from heterocc.compiler.importer.draft.draft import reads

Types = Mapping[str, onnx.TypeProto]
Constants = Mapping[str, onnx.TensorProto]


def types_of(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """The types of all values of the graph that the model states or ONNX infers."""
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception:  # a model whose shapes cannot be inferred may be what is looked for
        graph = model.graph
    found = {i.name: i.type for i in (*graph.value_info, *graph.output, *graph.input) if i.HasField("type")}
    for tensor in graph.initializer:
        found[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
    return found


def with_nodes(
    model: onnx.ModelProto, kept: Collection[int], types: Types, constants: Constants
) -> onnx.ModelProto | None:
    """The model with the nodes of these indices only; None if it has no output, or an input of unknown type.

    Values of removed nodes become constants if their values are in `constants`, else inputs; values that removed
    nodes read become outputs.
    """
    graph = model.graph
    nodes = [node for index, node in enumerate(graph.node) if index in kept]
    made = {name for node in nodes for name in node.output if name}
    wanted = list(dict.fromkeys(name for node in nodes for name in reads(node) if name and name not in made))
    given = {info.name: info for info in graph.input}
    stored = {t.name for t in graph.initializer} | {s.values.name for s in graph.sparse_initializer}
    inputs, added = [], []
    for name in wanted:
        if name in given and name not in stored:
            inputs.append(given[name])
        elif name in constants and name not in stored:
            added.append(constants[name])
        elif name not in stored:
            if name not in types:
                return None
            inputs.append(onnx.ValueInfoProto(name=name, type=types[name]))
    read_here = {name for node in nodes for name in reads(node)}
    read_anywhere = {name for node in graph.node for name in reads(node)}
    listed = [info for info in graph.output if info.name in made]
    names = {info.name for info in listed}
    for node in nodes:
        for name in node.output:
            if name in read_anywhere and name not in read_here and name not in names:
                if name not in types:
                    return None
                listed.append(onnx.ValueInfoProto(name=name, type=types[name]))
    if not listed:
        return None
    return assemble(model, nodes, inputs, listed, added)


def assemble(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """The model with another graph; of its initializers those that are read, and `constants` beside them."""
    result = onnx.ModelProto(ir_version=model.ir_version, producer_name=model.producer_name, functions=model.functions)
    result.opset_import.extend(model.opset_import)
    graph = result.graph
    graph.name = model.graph.name or "reduced"
    graph.node.extend(nodes)
    graph.input.extend(inputs)
    graph.output.extend(outputs)
    used = {name for node in nodes for name in reads(node)} | {info.name for info in outputs}
    graph.initializer.extend(t for t in model.graph.initializer if t.name in used)
    graph.initializer.extend(constants)
    graph.sparse_initializer.extend(s for s in model.graph.sparse_initializer if s.values.name in used)
    return result


def ancestors(model: onnx.ModelProto, output: str) -> frozenset[int]:
    """The indices of the nodes that a value depends on."""
    wanted, found = {output}, set()
    for index in range(len(model.graph.node) - 1, -1, -1):
        node = model.graph.node[index]
        if wanted & set(node.output):
            found.add(index)
            wanted |= set(reads(node))
    return frozenset(found)

"""Steps of a reduction: each proposes smaller models until none of them is accepted."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from heterocc.compiler.importer.draft.draft import bodies, reads
from heterocc.compiler.regression.reduction.parts import Constants, ancestors, assemble, types_of, with_nodes

Accept = Callable[[onnx.ModelProto | None], bool]
"""Tests a candidate: True if it is still interesting. None, a candidate that cannot be built, is refused."""

_LARGE = 4096
"""Bytes of an initializer above which it is tried as an input."""
_FEW = 64
"""Elements of an integer initializer whose values may be sizes."""


def strip(model: onnx.ModelProto, accept: Accept) -> onnx.ModelProto:
    """Remove documentation, metadata, stated shapes, unused functions and operator sets."""
    candidate = _copy(model)
    graph = candidate.graph
    for message in (candidate, graph, *graph.node, *graph.input, *graph.output):
        for field in ("doc_string", "metadata_props"):
            if any(f.name == field for f in message.DESCRIPTOR.fields):
                message.ClearField(field)
    del graph.value_info[:]
    del graph.quantization_annotation[:]
    del candidate.training_info[:]
    used = {node.domain for node in graph.node}
    if not any(True for node in graph.node for _ in bodies(node)):
        kept = [f for f in candidate.functions if any((n.domain, n.op_type) == (f.domain, f.name) for n in graph.node)]
        if not any((n.domain, n.op_type) == (f.domain, f.name) for k in kept for n in k.node for f in model.functions):
            del candidate.functions[:]
            candidate.functions.extend(kept)
        opsets = [entry for entry in candidate.opset_import if entry.domain in used | {""} or candidate.functions]
        del candidate.opset_import[:]
        candidate.opset_import.extend(opsets)
    if candidate.SerializeToString() == model.SerializeToString():
        return model
    return candidate if accept(candidate) else model


def one_output(model: onnx.ModelProto, accept: Accept, constants: Constants) -> onnx.ModelProto:
    """Keep one output and the nodes that it depends on, or else remove single outputs."""
    names = [info.name for info in model.graph.output]
    if len(names) < 2:
        return model
    types = types_of(model)
    for name in names:
        candidate = with_nodes(model, ancestors(model, name), types, constants)
        if candidate is not None:
            kept = [info for info in candidate.graph.output if info.name == name]
            candidate = assemble(candidate, candidate.graph.node, candidate.graph.input, kept)
        if accept(candidate):
            assert candidate is not None
            return candidate
    for name in names:
        left = [info for info in model.graph.output if info.name != name]
        if left and len(left) < len(model.graph.output):
            candidate = assemble(model, model.graph.node, model.graph.input, left)
            if accept(candidate):
                model = candidate
    return model


def fewer_nodes(model: onnx.ModelProto, accept: Accept, constants: Constants) -> onnx.ModelProto:
    """Zeller's ddmin on the list of nodes: single chunks, then complements of chunks, in ever smaller chunks."""
    parts = 2
    while len(model.graph.node) > 1:
        total, types = len(model.graph.node), types_of(model)
        size = math.ceil(total / parts)
        chunks = [range(start, min(start + size, total)) for start in range(0, total, size)]
        every = frozenset(range(total))
        proposals: list[tuple[frozenset[int], int]] = [(frozenset(chunk), 2) for chunk in chunks]
        if parts > 2:
            # From the end, because later nodes depend on earlier ones.
            proposals += [(every - frozenset(chunk), max(parts - 1, 2)) for chunk in reversed(chunks)]
        for kept, next_parts in proposals:
            candidate = with_nodes(model, kept, types, constants)
            if accept(candidate):
                assert candidate is not None
                model, parts = candidate, next_parts
                break
        else:
            if size == 1:
                return model
            parts = min(2 * parts, total)
    return model


def bypassed_nodes(model: onnx.ModelProto, accept: Accept) -> onnx.ModelProto:
    """Replace the result of a node by one of its inputs of the same type."""
    index = len(model.graph.node) - 1
    while index >= 0:
        model = next(filter(accept, _bypasses(model, index)), model)
        index = min(index, len(model.graph.node)) - 1
    return model


def _bypasses(model: onnx.ModelProto, index: int) -> Iterator[onnx.ModelProto]:
    node, types = model.graph.node[index], types_of(model)
    if len([name for name in node.output if name]) != 1 or len(model.graph.node) < 2:
        return
    old = node.output[0]
    if any(info.name == old for info in model.graph.output):
        return
    for name in dict.fromkeys(node.input):
        if name and name in types and types.get(old) == types[name]:
            candidate = _copy(model)
            del candidate.graph.node[index]
            _rename(candidate, old, name)
            yield _pruned(candidate)


def fewer_inputs(model: onnx.ModelProto, accept: Accept) -> onnx.ModelProto:
    """Read one input in place of another of the same type, and leave out optional inputs of nodes."""
    for info in list(model.graph.input)[1:]:
        for other in model.graph.input:
            if other.name == info.name:
                break
            if other.type == info.type:
                candidate = _copy(model)
                _rename(candidate, info.name, other.name)
                candidate = _pruned(candidate)
                if accept(candidate):
                    model = candidate
                    break
    for index in range(len(model.graph.node)):
        for place in range(len(model.graph.node[index].input) - 1, 0, -1):
            candidate = _copy(model)
            inputs = candidate.graph.node[index].input
            if not inputs[place]:
                continue
            inputs[place] = ""
            while inputs and not inputs[-1]:
                inputs.pop()
            candidate = _pruned(candidate)
            if accept(candidate):
                model = candidate
    return model


def fewer_attributes(model: onnx.ModelProto, accept: Accept) -> onnx.ModelProto:
    """Leave out attributes that have a default."""
    for index in range(len(model.graph.node)):
        for place in range(len(model.graph.node[index].attribute) - 1, -1, -1):
            candidate = _copy(model)
            del candidate.graph.node[index].attribute[place]
            if accept(candidate):
                model = candidate
    return model


def smaller_sizes(model: onnx.ModelProto, accept: Accept) -> onnx.ModelProto:
    """Replace a size by a smaller one wherever inputs and initializers have it, so that the nodes still fit."""
    sizes = {d.dim_value for i in model.graph.input for d in i.type.tensor_type.shape.dim}
    sizes |= {d for t in model.graph.initializer for d in t.dims}
    for size in sorted((s for s in sizes if s > 1), reverse=True):
        for smaller in sorted({1, 2, 4, size // 2} & set(range(size))):
            found = next((c for n in (False, True) if accept(c := _resized(model, size, smaller, numbers=n))), None)
            if found is not None:
                model = found
                break
    return model


def large_constants_as_inputs(model: onnx.ModelProto, accept: Accept) -> onnx.ModelProto:
    """Make large initializers inputs, so that the file is small."""
    for tensor in list(model.graph.initializer):
        if tensor.ByteSize() > _LARGE:
            candidate = _copy(model)
            kept = [t for t in candidate.graph.initializer if t.name != tensor.name]
            del candidate.graph.initializer[:]
            candidate.graph.initializer.extend(kept)
            type_ = onnx.helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
            if all(info.name != tensor.name for info in candidate.graph.input):
                candidate.graph.input.append(onnx.ValueInfoProto(name=tensor.name, type=type_))
            if accept(candidate):
                model = candidate
    return model


def _resized(model: onnx.ModelProto, size: int, smaller: int, *, numbers: bool) -> onnx.ModelProto | None:
    """The model with another size; with `numbers` also in constants of few integers, and in the groups of Conv."""
    candidate = _copy(model)
    graph = candidate.graph
    for info in graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_value == size:
                dim.dim_value = smaller
    for place, tensor in enumerate(graph.initializer):
        integers = numbers and tensor.data_type in (TensorProto.INT64, TensorProto.INT32)
        if size not in tensor.dims and not integers:
            continue
        try:
            array = numpy_helper.to_array(tensor)
        except (ValueError, TypeError, KeyError):
            return None
        array = array[tuple(slice(smaller if d == size else d) for d in array.shape)]
        if integers and array.size <= _FEW:
            array = np.where(array == size, smaller, array).astype(array.dtype)
        graph.initializer[place].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array), tensor.name))
    if numbers:
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.name == "group" and attribute.i == size:
                    attribute.i = smaller
    for info in graph.output:
        info.type.tensor_type.ClearField("shape")
    try:
        inferred = onnx.shape_inference.infer_shapes(candidate, strict_mode=True, data_prop=True)
    except Exception:  # the nodes do not fit the sizes
        return None
    del graph.output[:]
    graph.output.extend(inferred.graph.output)
    return candidate


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    result = onnx.ModelProto()
    result.CopyFrom(model)
    return result


def _rename(model: onnx.ModelProto, old: str, new: str) -> None:
    """Let every node, also in bodies, read another value."""

    def rename(nodes: Sequence[onnx.NodeProto]) -> None:
        for node in nodes:
            for place, name in enumerate(node.input):
                if name == old:
                    node.input[place] = new
            for body in bodies(node):
                if old not in {info.name for info in body.input}:
                    rename(body.node)
                    for info in body.output:
                        if info.name == old:
                            info.name = new

    rename(model.graph.node)


def _pruned(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without inputs and initializers that no node reads."""
    used = {name for node in model.graph.node for name in reads(node)}
    inputs = [info for info in model.graph.input if info.name in used]
    return assemble(model, model.graph.node, inputs, model.graph.output)

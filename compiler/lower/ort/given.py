"""A whole model in ONNX Runtime as it was given, in which ONNX Runtime may find more to fuse than in the import."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from heterocc.compiler.importer.draft.draft import graphs_of, value_of
from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.operators.table import of_node
from heterocc.passes.graph import Value
from heterocc.runtime.execute.onnx_wire import unexpected_external

Given = tuple[onnx.ModelProto, Mapping[str, np.ndarray], Mapping[str, Value], Mapping[str, str]]
"""A model, its large constants, which are stubs in it, what is known of its values, and their names by the import's."""


def whole_as_given(job: PartitionJob) -> Given | None:
    """The model as it was given, for a partition of all nodes; None if the imported graph has to take its place.

    Inputs and outputs are in the order of the partition's. It must have those of the import, and nothing that the
    import replaces for reasons of safety.
    """
    model, given = job.model, job.model.given
    whole = len(job.nodes) == len(model.graph.nodes)
    if given is None or not whole or model.classes or model.loose or model.defaults or given.proto.functions:
        return None
    names = given.names
    if any(value not in names for value in (*job.inputs, *job.outputs)):
        return None
    proto, large = given.with_constants()
    for ends, wanted in ((proto.graph.input, job.inputs), (proto.graph.output, job.outputs)):
        infos = {info.name: info for info in ends}
        own = [names[value] for value in wanted]
        if sorted(infos) != sorted(own) or (own != list(wanted) and sorted(own) == sorted(wanted)):
            return None  # the second: the runtime takes values by these names, in whatever order
        del ends[:]
        ends.extend(infos[name] for name in own)
    if unexpected_external(proto.SerializeToString(), large) is not None:
        return None
    values = _typed(proto)
    divided = [n.output[0] for g in graphs_of(proto.graph) for n in g.node if of_node(n).symbol == "/"]
    return (proto, large, values, names) if all(name in values for name in divided) else None


def _typed(proto: onnx.ModelProto) -> dict[str, Value]:
    """The values of which ONNX infers the type, by name; none if it finds the model invalid."""
    try:
        inferred = onnx.shape_inference.infer_shapes(proto)
    except (onnx.shape_inference.InferenceError, ValueError):
        return {}
    infos = [info for graph in graphs_of(inferred.graph) for info in (*graph.input, *graph.value_info, *graph.output)]
    return {info.name: value_of(info) for info in infos if info.type.WhichOneof("value") is not None}

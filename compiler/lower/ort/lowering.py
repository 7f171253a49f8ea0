"""The device of last resort: a partition that stays ONNX and runs in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import onnx

from heterocc.artifacts.dtypes import NARROW, STORAGE
from heterocc.artifacts.errors import LoweringError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.artifacts.packed import contiguous
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.importer.draft.draft import graphs_of, nodes_of, to_tensor, value_of
from heterocc.compiler.importer.filled import agreeing_joins, filled_requirements
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.onnx_tools.filled import is_quantised, leaves_unwritten
from heterocc.compiler.importer.onnx_tools.joins import with_counted_parts
from heterocc.compiler.importer.onnx_tools.needed import with_needed_sizes
from heterocc.compiler.importer.onnx_tools.propagation import MAX_LISTED, listed
from heterocc.compiler.importer.onnx_tools.quotients import with_safe_quotients
from heterocc.compiler.importer.onnx_tools.safe import make_safe
from heterocc.compiler.importer.symbols.requirements import needs_are_stated
from heterocc.compiler.lower.backend import Dumps, KernelInfo, LoweredPartition, PartitionJob
from heterocc.compiler.lower.ort.left_constants import left_constants, with_left_constants
from heterocc.compiler.lower.ort.own_integers import with_own_integers
from heterocc.compiler.operators.table import of_node
from heterocc.passes.graph import Value
from heterocc.runtime.execute.narrow import ort_value
from heterocc.runtime.execute.onnx_wire import unexpected_external
from heterocc.runtime.execute.ort_session import limit_folding, open_session, session_options

INLINE_BYTES = 1024
"""Initializers below this size stay inside the ONNX model."""

_WITHOUT_ARRAYS = frozenset({"float4_e2m1fn", "float8_e8m0fnu", "int2", "uint2"})
"""Dtypes that ONNX Runtime may compute with, but that its Python package takes and returns no arrays of."""


class OrtLowering:
    """The ONNX Runtime back end: see Lowering."""

    def lower(self, job: PartitionJob) -> LoweredPartition:
        """The partition as an ONNX model with its larger initializers external. Raises LoweringError (HC203)."""
        border = _border(job.model, (*job.inputs, *job.outputs))
        given = whole_as_given(job) if border is None else None
        made = None if given is None else _safe(job, *given)
        proto, outside = made or _imported(job)
        reason = border or _refusal(proto, outside, optimise=True)
        if reason is not None and made is not None:
            proto, outside = _imported(job)
            reason = _refusal(proto, outside, optimise=True)
        if reason is not None:
            raise LoweringError(f"ONNX Runtime refuses partition {job.name}: {reason}")
        kernels = tuple(KernelInfo(n, (n,), job.model.graph.node_by_name[n].outputs) for n in job.nodes)
        return LoweredPartition(
            kind="onnx",
            code=proto.SerializeToString(deterministic=True),
            params=tuple(outside.values()),
            param_names=tuple(outside),
            kernels=kernels,
            dumps=Dumps(lambda: [("model.txt", onnx.printer.to_text(proto) + "\n")]),
        )

    def trial(self, model: ImportedModel, node: str, device: TargetDevice) -> str | None:
        """The reason why ONNX Runtime cannot run the node alone, or None if it can."""
        found = model.graph.node_by_name[node]
        inputs = tuple(v for v in dict.fromkeys(found.inputs) if v not in model.graph.constants)
        ends = {*model.graph.inputs, *model.graph.outputs}
        border = _border(model, (v for v in (*inputs, *found.outputs) if v in ends))
        if border is not None:
            return border
        proto = model.subgraph((node,), inputs, found.outputs)
        outside = [t.name for t in proto.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
        return _refusal(proto, {name: model.weights[name] for name in outside})


def _imported(job: PartitionJob) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The partition as a model that is safe to run, and its constants outside of it. Raises LoweringError."""
    proto = job.model.subgraph(job.nodes, job.inputs, job.outputs)
    made = _safe(job, proto, job.model.weights, job.model.graph.values, None)
    if made is None:
        raise LoweringError(f"ONNX Runtime may read beyond the arrays of {job.name}, whose sizes no run can check")
    return made


def _safe(
    job: PartitionJob,
    proto: onnx.ModelProto,
    weights: Mapping[str, np.ndarray],
    values: Mapping[str, Value],
    names: Mapping[str, str] | None,
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]] | None:
    """A model without what ends ONNX Runtime's process, and its constants outside of it; None if it stays unsafe.

    `names` are those of values in the model by those in the partition, if they differ.
    """
    with_safe_quotients(proto, values, weights)
    checked, joins, stated = _checked(job), _joins(job), _stated(job)
    if names is not None:
        checked = {(op_type, names[value]) for op_type, value in checked if value in names}
        joins = {names[value] for value in joins if value in names}
        stated = {names[value] for value in stated if value in names}
    if with_needed_sizes(proto, stated) is not None:
        return None
    with_counted_parts(proto, joins)
    make_safe(proto, checked)
    copies = with_own_integers(proto)
    repeated = with_left_constants(proto.graph, values)
    copies.update((own, copies.get(name, name)) for own, name in repeated.items())
    outside: dict[str, np.ndarray] = {}
    for tensor in proto.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            array = weights[copies.get(tensor.name, tensor.name)]
            if array.dtype.name in STORAGE:
                outside[tensor.name] = np.ascontiguousarray(array)
            else:  # the bundle format does not have 4-bit dtypes
                tensor.CopyFrom(to_tensor(tensor.name, array))
    return proto, outside


def _checked(job: PartitionJob) -> set[tuple[str, str]]:
    """The operators of a partition, each with a value that it reads whose sizes are known, or checked before a run."""
    model, quantised = job.model, is_quantised(job.model.proto)
    return {
        (model.protos[name].op_type, value)
        for name in job.nodes
        for value in filled_requirements(model.protos[name], model.graph.values, model.symbols, quantised=quantised)
    }


def _stated(job: PartitionJob) -> set[str]:
    """The first results of nodes whose sizes are known, or are a condition of the bundle."""
    model = job.model
    return {
        model.protos[name].output[0]
        for name in job.nodes
        if needs_are_stated(model.protos[name], model.graph.values, model.symbols, model.opsets.get("", 1))
    }


def _joins(job: PartitionJob) -> set[str]:
    """The results of concatenations whose parts a run need not compare."""
    return agreeing_joins((job.model.protos[name] for name in job.nodes), job.model.graph.values, job.model.symbols)


def _border(model: ImportedModel, names: Iterable[str]) -> str | None:
    """The reason why ONNX Runtime's Python package cannot pass these values to the code or from it, or None."""
    dtypes = {name: model.graph.values[name].dtype for name in names}
    ends = {*model.graph.inputs, *model.graph.outputs}
    without = next((n for n, dtype in dtypes.items() if dtype in _WITHOUT_ARRAYS and n in ends), None)
    if without is not None:
        source = model.sources.get(without, without)
        return f"its Python package has no arrays of {dtypes[without]}, the dtype of '{source}'"
    narrow = next((dtype for dtype in dtypes.values() if dtype in NARROW), None)
    if narrow is not None and "string" in dtypes.values():
        return f"its Python package does not pass strings and {narrow} together: cast one of them in the model"
    return None


def _refusal(proto: onnx.ModelProto, weights: dict[str, np.ndarray], *, optimise: bool = False) -> str | None:
    """The reason why ONNX Runtime cannot create a session, or None.

    With `optimise` the session optimises the graph as the runtime will; without, checking is faster.
    """
    options = session_options(threads=1, optimise="all" if optimise else "none")
    values = [ort_value(contiguous(a)) for a in weights.values()]
    limit_folding(options, sum(a.nbytes for a in weights.values()))
    if values:
        options.add_external_initializers(list(weights), values)
    try:
        open_session(proto.SerializeToString(), options)
    except Exception as error:  # ONNX Runtime's exception classes have no public base
        pass_foreign(error)
        lines = str(error).splitlines()
        return lines[0][:300] if lines else type(error).__name__
    return None


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
    if any(True for _ in left_constants(model.proto.graph.node, model.graph.constants, model.graph.values)):
        return None  # of the model as it was given, ONNX Runtime would compute them when it loads it
    names = given.names
    if any(value not in names for value in (*job.inputs, *job.outputs)):
        return None
    proto, large = given.with_constants()
    if listed(proto.graph) > MAX_LISTED or any(map(leaves_unwritten, nodes_of(proto.graph.node))):
        return None
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

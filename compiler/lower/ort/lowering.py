"""The device of last resort: a partition that stays ONNX and runs in ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx

from heterocc.artifacts.dtypes import STORAGE
from heterocc.artifacts.errors import LoweringError
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.importer.draft.draft import to_tensor
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.lower.backend import Dumps, KernelInfo, LoweredPartition, PartitionJob
from heterocc.runtime.execute.narrow import ort_value
from heterocc.runtime.execute.ort_session import open_session, session_options

INLINE_BYTES = 1024
"""Initializers below this size stay inside the ONNX model."""


class OrtLowering:
    """The ONNX Runtime back end: see Lowering."""

    def lower(self, job: PartitionJob) -> LoweredPartition:
        """The partition as an ONNX model with its larger initializers external. Raises LoweringError (HC203)."""
        proto = job.model.subgraph(job.nodes, job.inputs, job.outputs)
        outside = []
        for tensor in proto.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                array = job.model.weights[tensor.name]
                if array.dtype.name in STORAGE:
                    outside.append(tensor)
                else:  # the bundle format does not have 4-bit dtypes
                    tensor.CopyFrom(to_tensor(tensor.name, array))
        params = tuple(np.ascontiguousarray(job.model.weights[t.name]) for t in outside)
        names = tuple(t.name for t in outside)
        reason = _refusal(proto, dict(zip(names, params, strict=True)), optimise=True)
        if reason is not None:
            raise LoweringError(f"ONNX Runtime refuses partition {job.name}: {reason}")
        kernels = tuple(KernelInfo(n, (n,), job.model.graph.node_by_name[n].outputs) for n in job.nodes)
        return LoweredPartition(
            kind="onnx",
            code=proto.SerializeToString(deterministic=True),
            params=params,
            param_names=names,
            kernels=kernels,
            dumps=Dumps(lambda: [("model.txt", onnx.printer.to_text(proto) + "\n")]),
        )

    def trial(self, model: ImportedModel, node: str, device: TargetDevice) -> str | None:
        """The reason why ONNX Runtime cannot create a session for the node alone, or None if it can."""
        found = model.graph.node_by_name[node]
        inputs = tuple(v for v in dict.fromkeys(found.inputs) if v not in model.graph.constants)
        proto = model.subgraph((node,), inputs, found.outputs)
        outside = [t.name for t in proto.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
        return _refusal(proto, {name: model.weights[name] for name in outside})


def _refusal(proto: onnx.ModelProto, weights: dict[str, np.ndarray], *, optimise: bool = False) -> str | None:
    """The reason why ONNX Runtime cannot create a session, or None.

    With `optimise` the session optimises the graph as the runtime will; without, checking is faster.
    """
    options = session_options(threads=1, optimise="all" if optimise else "none")
    values = [ort_value(np.asarray(a, order="C")) for a in weights.values()]
    if values:
        options.add_external_initializers(list(weights), values)
    try:
        open_session(proto.SerializeToString(), options)
    except Exception as error:  # ONNX Runtime's exception classes have no public base
        lines = str(error).splitlines()
        return lines[0][:300] if lines else type(error).__name__
    return None

"""Graph inputs without elements: their value is known, so that axes or pads that no caller can choose are constants."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from heterocc.compiler.importer.draft.draft import Draft, graphs_of
from heterocc.compiler.importer.draft.names import Namer


def know_empty_inputs(draft: Draft, namer: Namer) -> None:
    """Let the readers of each graph input without elements read a constant; the input itself stays."""
    known: dict[str, str] = {}
    for info in draft.graph.input:
        tensor = info.type.tensor_type
        dims = [d.dim_value for d in tensor.shape.dim if d.HasField("dim_value")]
        if not tensor.HasField("shape") or len(dims) != len(tensor.shape.dim) or 0 not in dims:
            continue
        if tensor.elem_type in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
            continue
        known[info.name] = namer.give(f"{info.name}_empty", "v")
        draft.weights[known[info.name]] = np.zeros(dims, helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    if known:
        for graph in graphs_of(draft.graph):
            for node in graph.node:
                for index, name in enumerate(node.input):
                    node.input[index] = known.get(name, name)

"""Lowers small ONNX graphs for the first OpenCL device, runs them there, and holds them against ONNX Runtime."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm_ffi
from onnx import helper, numpy_helper

from heterocc.compiler.devices.device import Device
from heterocc.compiler.devices.present import inventory
from heterocc.compiler.imported import ImportedModel
from heterocc.compiler.lower.base import LoweredPartition, PartitionJob
from heterocc.compiler.lower.opencl.lowering import OpenclLowering
from heterocc.compiler.onnx_import import import_model
from heterocc.runtime.native import load_opencl

OPSET = 17

Node = onnx.NodeProto


def node(op_type: str, *inputs: str, outputs: Sequence[str] = (), **attributes: Any) -> Node:
    """A node whose output is called after it, unless told otherwise."""
    return helper.make_node(op_type, list(inputs), list(outputs), **attributes)


@dataclass
class Graph:
    """Nodes over seeded inputs and constants; every node without named outputs is an output of the model."""

    inputs: Mapping[str, np.ndarray]
    nodes: list[Node]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        """The graph as a checked model with inferred output types."""
        read = {name for n in self.nodes for name in n.input}
        for index, n in enumerate(self.nodes):
            n.name = f"{n.op_type}_{index}"
            if not n.output:
                n.output.append(f"y_{n.name}")
        written = [name for n in self.nodes for name in n.output if name and name not in read]
        graph = helper.make_graph(
            self.nodes,
            "graph",
            [_info(name, array) for name, array in self.inputs.items()],
            [onnx.ValueInfoProto(name=name) for name in written],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        onnx.checker.check_model(inferred)
        return inferred

    def reference(self) -> list[np.ndarray]:
        """The outputs as ONNX Runtime computes them."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(self.model().SerializeToString(), options)
        return [np.asarray(a) for a in session.run(None, dict(self.inputs))]


def _info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


@functools.cache
def first_device() -> Device:
    """The first OpenCL device here."""
    return next(d for d in inventory().devices if d.backend == "opencl")


def imported(graph: Graph, folder: Path) -> ImportedModel:
    """The graph as the compiler imports it."""
    path = folder / "model.onnx"
    onnx.save(graph.model(), path)
    return import_model(path)


def whole(model: ImportedModel, device: Device) -> PartitionJob:
    """The whole model as one partition."""
    names = tuple(n.name for n in model.graph.nodes)
    return PartitionJob("p0", model, device, names, model.graph.inputs, model.graph.outputs)


def lower(graph: Graph, folder: Path, device: Device | None = None) -> tuple[ImportedModel, LoweredPartition]:
    """Import and lower the whole graph."""
    model = imported(graph, folder)
    return model, OpenclLowering().lower(whole(model, device or first_device()))


def run(model: ImportedModel, lowered: LoweredPartition, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a lowered model on the first OpenCL device, in model order."""
    load_opencl()
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(lowered.code)
        file.flush()
        library = tvm_ffi.get_global_func("ffi.Module.load_from_file.so")(file.name, "so")
    machine = library.get_function("vm_load_executable")()
    machine.get_function("vm_initialization")(4, 0, 2, 1, 0, 2)
    graph = model.graph
    fed = [upload(inputs[model.sources[name]]) for name in graph.inputs]
    results = []
    for name in graph.outputs:
        value = graph.values[name]
        results.append(upload(np.full(value.shape or (), 1, value.dtype)))
    params = tvm_ffi.Array([upload(a) for a in lowered.params])
    machine.get_function("main")(*fed, *results, params)
    return [download(r) for r in results]


def check(graph: Graph, folder: Path, tolerance: float = 1e-5, device: Device | None = None) -> LoweredPartition:
    """Lower, run and compare; the error names the outputs that are wrong. Absolute and relative tolerance are equal."""
    expected = graph.reference()
    model, lowered = lower(graph, folder, device)
    wrong = []
    for name, got, want in zip(model.graph.outputs, run(model, lowered, graph.inputs), expected, strict=True):
        same = got.dtype == want.dtype and got.shape == want.shape
        if not same or not np.allclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True):
            wrong.append(f"{model.sources[name]}: {got.dtype}{got.shape} against {want.dtype}{want.shape}")
    assert wrong == []
    return lowered


def upload(array: np.ndarray) -> Any:
    device = tvm_ffi.device("opencl", 0)
    allocate = tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope")
    tensor = allocate(tvm_ffi.Shape(array.shape), tvm_ffi.dtype(str(array.dtype)), device, None)
    tvm_ffi.get_global_func("runtime.TVMTensorCopyFromTo")(tvm_ffi.from_dlpack(np.array(array)), tensor)
    return tensor


def download(tensor: Any) -> np.ndarray:
    array = np.empty(tuple(tensor.shape), str(tensor.dtype))
    tvm_ffi.get_global_func("runtime.TVMTensorCopyFromTo")(tensor, tvm_ffi.from_dlpack(array))
    return array

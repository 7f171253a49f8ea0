"""Small ONNX graphs that are lowered for a GPU, run on it, and compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm_ffi
from onnx import helper, numpy_helper

from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.present import accelerators
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.backend import LoweredPartition, Lowering, PartitionJob
from tests import device_run
from tests.device_run import download

OPSET = 17

Node = onnx.NodeProto


def node(op_type: str, *inputs: str, outputs: Sequence[str] = (), **attributes: Any) -> Node:
    """A node, by default with an output of its name."""
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
        """The outputs of ONNX Runtime without its optimiser, which fails for Relu and Clip of float64."""
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(self.model().SerializeToString(), options)
        return [np.asarray(a) for a in session.run(None, dict(self.inputs))]


def _info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def conv_of(
    rng: np.random.Generator, shape: tuple[int, ...], weight: tuple[int, ...], *after: str, **attributes: object
) -> Graph:
    """A convolution with bias of normal numbers, followed by elementwise operators."""
    nodes = [node("Conv", "x", "w", "b", outputs=["c0"], **attributes)]
    nodes += [node(op_type, f"c{i}", outputs=[f"c{i + 1}"]) for i, op_type in enumerate(after)]
    x, w, b = (rng.standard_normal(s, dtype=np.float32) for s in (shape, weight, weight[:1]))
    return Graph({"x": x}, nodes, {"w": w / 8, "b": b})


def imported(graph: Graph, folder: Path) -> ImportedModel:
    """The graph as the compiler imports it."""
    path = folder / "model.onnx"
    onnx.save(graph.model(), path)
    return import_model(path)


def whole(model: ImportedModel, device: TargetDevice) -> PartitionJob:
    """The whole model as one partition."""
    names = tuple(n.name for n in model.graph.nodes)
    return PartitionJob("p0", model, device, names, model.graph.inputs, model.graph.outputs)


@dataclass(frozen=True)
class Runner:
    """Lowers for the first device of an API and runs there; `load` makes the API known to TVM."""

    backend: str
    lowering: Lowering
    load: Callable[[], object]

    def first_device(self) -> TargetDevice:
        """The API's first device here."""
        return next(d for d in accelerators().devices if d.backend == self.backend)

    def lower(
        self, graph: Graph, folder: Path, device: TargetDevice | None = None
    ) -> tuple[ImportedModel, LoweredPartition]:
        """Import and lower the whole graph."""
        model = imported(graph, folder)
        return model, self.lowering.lower(whole(model, device or self.first_device()))

    def run(
        self, model: ImportedModel, lowered: LoweredPartition, inputs: Mapping[str, np.ndarray]
    ) -> list[np.ndarray]:
        """The outputs of a lowered model on the first device, in model order."""
        self.load()
        machine = device_run.machine(lowered.code, tvm_ffi.device(self.backend, 0))
        graph = model.graph
        fed = [self.upload(inputs[model.sources[name]]) for name in graph.inputs]
        values = [graph.values[name] for name in graph.outputs]
        results = [self.upload(np.full(value.shape or (), 1, value.dtype)) for value in values]
        machine.get_function("main")(*fed, *results, tvm_ffi.Array([self.upload(a) for a in lowered.params]))
        return [download(r) for r in results]

    def check(
        self, graph: Graph, folder: Path, tolerance: float = 1e-5, device: TargetDevice | None = None
    ) -> LoweredPartition:
        """Lower, run and compare; the error names the outputs that are wrong. `tolerance` is absolute and relative."""
        expected = graph.reference()
        model, lowered = self.lower(graph, folder, device)
        wrong = []
        for name, got, want in zip(model.graph.outputs, self.run(model, lowered, graph.inputs), expected, strict=True):
            same = got.dtype == want.dtype and got.shape == want.shape
            if not same or not np.allclose(got, want, rtol=tolerance, atol=tolerance, equal_nan=True):
                wrong.append(f"{model.sources[name]}: {got.dtype}{got.shape} against {want.dtype}{want.shape}")
        assert wrong == []
        return lowered

    def upload(self, array: np.ndarray) -> Any:
        """The array on the first device; `load` must have been called before."""
        return device_run.upload(array, tvm_ffi.device(self.backend, 0))

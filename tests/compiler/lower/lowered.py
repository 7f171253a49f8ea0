"""Small models that are lowered and run in this process."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper, numpy_helper, shape_inference

from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.lower.backend import LoweredPartition, PartitionJob
from heterocc.compiler.lower.cpu.lowering import CpuLowering
from heterocc.passes.graph import Graph, Node, Value
from tests.reference import reference_session

CPU = TargetDevice("CPU", "cpu")


class Model(ImportedModel):
    """An imported model without simplification, so that lowering gets exactly the test's nodes."""

    def subgraph(self, nodes: Sequence[str], inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
        wanted = [n for n in self.proto.graph.node if n.name in set(nodes)]
        used = dict.fromkeys(i for n in wanted for i in n.input if i in self.weights)
        used.update(dict.fromkeys(o for o in outputs if o in self.weights))
        graph = helper.make_graph(
            wanted,
            "part",
            [self._info(v) for v in inputs],
            [self._info(v) for v in outputs],
            [self._initializer(name) for name in used],
        )
        made: onnx.ModelProto = helper.make_model(graph, opset_imports=list(self.proto.opset_import), ir_version=10)
        return made

    def _initializer(self, name: str) -> onnx.TensorProto:
        tensor = numpy_helper.from_array(self.weights[name], name)
        if self.weights[name].nbytes < 1024:
            return tensor
        outside = onnx.TensorProto(name=name, data_type=tensor.data_type, dims=tensor.dims)
        outside.data_location = onnx.TensorProto.EXTERNAL
        outside.external_data.add(key="location", value="heterocc")
        return outside

    def _info(self, name: str) -> onnx.ValueInfoProto:
        value = self.graph.values[name]
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype)), value.shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    constants: Mapping[str, np.ndarray] | None = None,
    opset: int = 18,
) -> Model:
    """A model of `nodes`; inputs by name → array (its dtype and shape count), outputs by name."""
    constants = dict(constants or {})
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()
    ]
    graph = helper.make_graph(
        list(nodes),
        "g",
        infos,
        [helper.make_empty_tensor_value_info(o) for o in outputs],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    inferred = shape_inference.infer_shapes(proto, data_prop=True)
    values = {n: Value(n, a.dtype.name, a.shape) for n, a in (*inputs.items(), *constants.items())}
    for info in (*inferred.graph.value_info, *inferred.graph.output):
        kind = info.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type).name if kind.elem_type else ""
        if dtype:
            values.setdefault(info.name, Value(info.name, dtype, tuple(d.dim_value for d in kind.shape.dim)))
    for index, node in enumerate(proto.graph.node):
        node.name = node.name or f"n{index}"
    made = tuple(
        Node(n.name, n.op_type, tuple(i for i in n.input if i), tuple(o for o in n.output if o), (f"model/{n.name}",))
        for n in proto.graph.node
    )
    held = Graph("g", made, values, tuple(inputs), tuple(outputs), frozenset(constants))
    return Model("g", "0" * 64, held, proto, constants, {}, {"": opset})


def job(made: ImportedModel, device: TargetDevice = CPU) -> PartitionJob:
    """The whole model as one partition."""
    graph = made.graph
    return PartitionJob("p0", made, device, tuple(n.name for n in graph.nodes), graph.inputs, graph.outputs)


def load(code: bytes) -> Any:
    """The virtual machine of a compiled partition, on the CPU."""
    # Loading is cached by path: every load has a separate one.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "code.so"
        path.write_bytes(code)
        machine = tvm.runtime.load_module(str(path))["vm_load_executable"]()
    machine["vm_initialization"](1, 0, 2)
    return machine


def execute(work: PartitionJob, lowered: LoweredPartition, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a compiled partition into outputs that held other values before."""
    machine = load(lowered.code)
    values = work.model.graph.values
    inputs = [tvm.runtime.tensor(feeds[name]) for name in work.inputs]
    outputs = [tvm.runtime.tensor(np.full(values[o].shape, 77, values[o].dtype)) for o in work.outputs]
    result = machine["main"](*inputs, *outputs, [tvm.runtime.tensor(a) for a in lowered.params])
    assert len(result) == 0
    return {name: array.numpy() for name, array in zip(work.outputs, outputs, strict=True)}


def run_cpu(made: ImportedModel, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Lower the whole model for this machine's CPU and run it."""
    work = job(made)
    return execute(work, CpuLowering().lower(work), feeds)


def run_ort(made: ImportedModel, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same model in ONNX Runtime."""
    session = reference_session(made.proto)
    return dict(zip(made.graph.outputs, session.run(list(made.graph.outputs), dict(feeds)), strict=True))


def assert_same(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], rtol: float = 1e-4) -> None:
    """Compare outputs by name; absolute tolerance relative to the largest finite value."""
    assert list(found) == list(wanted)
    for name, right in wanted.items():
        got = found[name]
        assert got.dtype == right.dtype and got.shape == right.shape, name
        if right.dtype.kind == "f":
            atol = rtol * float(np.max(np.abs(right[np.isfinite(right)]), initial=1e-2))
            np.testing.assert_allclose(got.astype(np.float64), right.astype(np.float64), rtol=rtol, atol=atol)
        else:
            np.testing.assert_array_equal(got, right)

"""Small ONNX models made in code, and the comparison of an imported model with the file it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.pipeline import import_model
from heterocc.runtime.execute.ort_session import session_options
from tests.reference import reference_session

F32 = TensorProto.FLOAT
I64 = TensorProto.INT64

Dims = Sequence[int | str | None] | None


def node(op_type: str, inputs: str, outputs: str, name: str = "", **attributes: Any) -> onnx.NodeProto:
    """A node; inputs and outputs are separated by blanks, `-` is an absent one."""
    split = ["" if n == "-" else n for n in inputs.split()], ["" if n == "-" else n for n in outputs.split()]
    return helper.make_node(op_type, *split, name=name, **attributes)


def value(name: str, dims: Dims = None, elem_type: int = F32) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, dims)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Mapping[str, np.ndarray] | None = None,
    *,
    opset: int = 17,
    ir_version: int = 10,
    domains: Sequence[tuple[str, int]] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(array, name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), tensors)
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in domains)]
    made: onnx.ModelProto = helper.make_model(
        graph, opset_imports=imports, ir_version=ir_version, functions=list(functions)
    )
    return made


def save(folder: Path, proto: onnx.ModelProto, name: str = "m.onnx") -> Path:
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


def run_imported(imported: ImportedModel, feeds: Mapping[str, np.ndarray]) -> list[Any]:
    """Outputs of the whole imported graph in ONNX Runtime; `feeds` are by the model's own input names."""
    graph = imported.graph
    proto = imported.subgraph([n.name for n in graph.nodes], graph.inputs, graph.outputs)
    options = session_options()
    large = [t.name for t in proto.graph.initializer if t.data_location == TensorProto.EXTERNAL]
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(imported.weights[n])) for n in large]
    options.add_external_initializers(large, values)
    session = reference_session(proto, options)
    given = {name: feeds.get(imported.sources[name], imported.defaults.get(name)) for name in graph.inputs}
    return list(session.run(None, given))


def run_original(path: Path, feeds: Mapping[str, np.ndarray]) -> list[Any]:
    session = reference_session(path)
    return list(session.run(None, dict(feeds)))


def assert_close(found: Sequence[Any], expected: Sequence[Any]) -> None:
    """The tolerance of all comparisons with ONNX Runtime: relative 1e-3, absolute 1e-4 of the largest value."""
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        if isinstance(theirs, list):
            assert_close(ours, theirs)
            continue
        if not isinstance(theirs, np.ndarray):
            assert ours == theirs
            continue
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        if not np.issubdtype(theirs.dtype, np.inexact):
            np.testing.assert_array_equal(ours, theirs)
            continue
        largest = float(np.max(np.abs(theirs), initial=0.0, where=np.isfinite(theirs)))
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=max(1e-5, 1e-4 * largest))


def imported_like(
    path: Path, feeds: Mapping[str, np.ndarray], shapes: Mapping[str, Sequence[int]] | None = None
) -> ImportedModel:
    """Import the file and hold it against ONNX Runtime's results on the file itself."""
    imported = import_model(path, shapes=shapes)
    assert_close(run_imported(imported, feeds), run_original(path, feeds))
    return imported


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def op_types(imported: ImportedModel) -> list[str]:
    return [n.op_type for n in imported.graph.nodes]


def branch(
    name: str, *nodes: onnx.NodeProto, output: str = "r", constants: dict[str, np.ndarray] | None = None
) -> object:
    tensors = [numpy_helper.from_array(a, n) for n, a in (constants or {}).items()]
    return helper.make_graph(list(nodes), name, [], [onnx.ValueInfoProto(name=output)], tensors)


def conv_chain(*, bias: bool = True, dtype: type = np.float32) -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    constants = {
        "w": noise(4, 3, 3, 3),
        "b": noise(4, seed=1),
        "gamma": noise(4, seed=2),
        "beta": noise(4, seed=3),
        "mean": noise(4, seed=4),
        "var": np.abs(noise(4, seed=5)) + 0.1,
        "m": noise(4, 1, 1, seed=6),
        "a": noise(1, seed=7),
    }
    nodes = [
        node("Conv", "x w b" if bias else "x w", "c", "conv"),
        node("BatchNormalization", "c gamma beta mean var", "n", "norm"),
        node("Mul", "m n", "p", "scale"),
        node("Add", "p a", "y", "shift"),
    ]
    if not bias:
        del constants["b"]
    return nodes, {k: v.astype(dtype) for k, v in constants.items()}

"""Models of `ai.onnx.ml` built in code, with any number of rows, and their comparison with ONNX Runtime."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm
from onnx import TensorProto, helper
from tvm import relax

from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.lower.cpu.lowering import CpuLowering
from tests.compiler.lower.lowered import CPU

ML = "ai.onnx.ml"
Feed = Mapping[str, np.ndarray]


def ml_node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """A node of `ai.onnx.ml`; inputs and outputs are separated by blanks."""
    return helper.make_node(op_type, inputs.split(), outputs.split(), domain=ML, **attributes)


def ml_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[int | str | None]]],
    outputs: Mapping[str, int],
    version: int = 3,
    opset: int = 17,
    constants: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """A model; inputs are element types and shapes by name, outputs element types."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, kind, dims) for n, (kind, dims) in inputs.items()],
        [helper.make_tensor_value_info(n, kind, None) for n, kind in outputs.items()],
        list(constants),
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(ML, version)]
    made: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return made


def on_cpu(proto: onnx.ModelProto) -> Callable[[Feed], list[np.ndarray]]:
    """A function that runs CPU code of the whole model, for all sizes of its dynamic dimensions."""
    model = import_model(proto, keep_dims=True)
    graph = model.graph
    job = PartitionJob("p0", model, CPU, tuple(n.name for n in graph.nodes), graph.inputs, graph.outputs)
    lowered = CpuLowering().lower(job)
    # Loading is cached by path: every load has a separate one.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "code.so"
        path.write_bytes(lowered.code)
        entry = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())["main"]
    params = tuple(tvm.runtime.tensor(p) for p in lowered.params)

    def run(feed: Feed) -> list[np.ndarray]:
        given = [tvm.runtime.tensor(feed[model.sources[name]]) for name in graph.inputs]
        return [o.numpy() for o in entry(*given, params)]

    return run


def reference(proto: onnx.ModelProto) -> Callable[[Feed], list[np.ndarray]]:
    """The model in ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda feed: list(session.run(None, dict(feed)))


def assert_equal(proto: onnx.ModelProto, feeds: Sequence[Feed], rtol: float = 1e-5) -> None:
    """Compare CPU code with ONNX Runtime: integers exactly."""
    found, wanted = on_cpu(proto), reference(proto)
    for feed in feeds:
        for got, right in zip(found(feed), wanted(feed), strict=True):
            assert got.dtype == right.dtype and got.shape == right.shape
            if right.dtype.kind == "f":
                np.testing.assert_allclose(got, right, rtol=rtol, atol=rtol)
            else:
                np.testing.assert_array_equal(got, right)


MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def random_trees(
    rng: np.random.Generator,
    *,
    trees: int = 5,
    depth: int = 4,
    features: int = 3,
    modes: Sequence[str] = MODES,
    targets: Sequence[int] = (0,),
    each: int = 1,
    prefix: str = "target",
    missing: bool = True,
    low: float = -1.0,
    chain: bool = False,
) -> dict[str, Any]:
    """Attributes of a random ensemble, of integer splits, so that equality happens; `each` weights in each leaf.

    A chain has one leaf at every level, and a depth of exactly `depth`.
    """
    nodes: list[tuple[int, int, int, str, float, int, int, int]] = []
    leaves: list[tuple[int, int, int, float]] = []

    def grow(tree: int, number: list[int], level: int) -> int:
        own = number[0]
        number[0] += 1
        if level == depth or (not chain and level and rng.random() < 0.2):
            nodes.append((tree, own, 0, "LEAF", 0.0, 0, 0, 0))
            for target in rng.choice(targets, min(each, len(targets)), replace=False):
                leaves.append((tree, own, int(target), float(np.float32(rng.uniform(low, 1)))))
            return own
        place = len(nodes)
        nodes.append((tree, own, 0, "LEAF", 0.0, 0, 0, 0))
        true = grow(tree, number, depth if chain else level + 1)
        false = grow(tree, number, level + 1)
        mode, tracks = str(rng.choice(modes)), int(missing and rng.random() < 0.5)
        nodes[place] = (tree, own, int(rng.integers(features)), mode, float(rng.integers(-2, 3)), true, false, tracks)
        return own

    for tree in range(trees):
        grow(tree, [0], 0)
    columns = list(zip(*nodes, strict=True))
    names = ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
    found = {f"nodes_{name}": list(column) for name, column in zip(names, columns, strict=False)}
    if missing:
        found["nodes_missing_value_tracks_true"] = list(columns[7])
    weights = list(zip(*leaves, strict=True))
    for name, column in zip(("treeids", "nodeids", "ids", "weights"), weights, strict=True):
        found[f"{prefix}_{name}"] = list(column)
    return found


def rows(rng: np.random.Generator, count: int, features: int = 3, *, nan: bool = False) -> np.ndarray:
    """Data that often equals a split."""
    data = rng.integers(-3, 4, (count, features)) + rng.choice([0, 0.5], (count, features))
    if nan:
        data[rng.random(data.shape) < 0.2] = np.nan
    return data.astype(np.float32)


def regressor(attributes: Mapping[str, Any], targets: int = 1, features: int = 3, **more: Any) -> onnx.ModelProto:
    """A TreeEnsembleRegressor of x [rows, features]."""
    node = ml_node("TreeEnsembleRegressor", "x", "y", n_targets=targets, **attributes, **more)
    return ml_model([node], {"x": (TensorProto.FLOAT, ["n", features])}, {"y": TensorProto.FLOAT})


def classifier(attributes: Mapping[str, Any], labels: Sequence[int], features: int = 3, **more: Any) -> onnx.ModelProto:
    """A TreeEnsembleClassifier of x [rows, features]."""
    node = ml_node("TreeEnsembleClassifier", "x", "y z", classlabels_int64s=list(labels), **attributes, **more)
    outputs = {"y": TensorProto.INT64, "z": TensorProto.FLOAT}
    return ml_model([node], {"x": (TensorProto.FLOAT, ["n", features])}, outputs)

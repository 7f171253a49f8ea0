"""Tables of dequantised integers whose rows are gathered, and which a product of the same model multiplies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.artifacts.errors import HeteroccError
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.lower.converters.quantised import quantised_operators
from heterocc.compiler.lower.cpu.lowering import CpuLowering
from heterocc.compiler.lower.straight import constant
from heterocc.runtime import load
from heterocc.runtime.execute.ort_session import session_options
from tests.compiler.lower.lowered import CPU
from tests.reference import reference_session

WORDS, WIDTH = 100, 64


def _model(kind: str, op_type: str, block: int) -> onnx.ModelProto:
    """Rows of a table, and the product of their hyperbolic tangents and the same table."""
    numbers = np.random.default_rng(0)
    least = 0 if kind == "uint8" else -128
    middle = 128 if kind == "uint8" else 0
    counts = [WORDS, WIDTH // block] if block else [WORDS]
    attributes = {"axis": 1, "block_size": block} if block else {"axis": 0}
    arrays = {
        "table": numbers.integers(least, least + 256, (WORDS, WIDTH)).astype(kind),
        "scales": numbers.uniform(0.001, 0.01, counts).astype(np.float32),
        "zeros": np.full(counts, middle, kind),
    }
    nodes = [
        helper.make_node("DequantizeLinear", list(arrays), ["numbers"], **attributes),
        helper.make_node("Gather", ["numbers", "ids"], ["rows"], axis=0),
        helper.make_node("Tanh", ["rows"], ["x"]),
    ]
    if op_type == "Gemm":
        nodes.append(helper.make_node("Gemm", ["x", "numbers"], ["y"], transB=1))
    else:
        nodes.append(helper.make_node("Transpose", ["numbers"], ["columns"], perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", ["x", "columns"], ["y"]))
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["count"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["count", WORDS])
    initializers = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "tied", [ids], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(
    ("kind", "op_type", "block"), [("int8", "MatMul", 0), ("uint8", "Gemm", 0), ("int8", "MatMul", 32)]
)
def test_a_table_that_is_gathered_and_multiplied_is_stored_once(
    kind: str, op_type: str, block: int, tmp_path: Path
) -> None:
    proto, bundle = _model(kind, op_type, block), tmp_path / "m.hcb"
    compile_model(proto, bundle, devices="CPU")
    large = [w for w in open_bundle(bundle).manifest.weights if w.nbytes >= WORDS * WIDTH]
    assert [w.dtype for w in large] == ["int32"]
    ids = np.array([0, 17, WORDS - 1, -1, 5], np.int64)
    expected = reference_session(proto, session_options(optimise="none")).run(None, {"ids": ids})[0]
    with load(bundle) as session:
        np.testing.assert_allclose(session.run({"ids": ids})["y"], expected, rtol=1e-5, atol=1e-5)
        with pytest.raises(HeteroccError, match="index is out of range"):
            session.run({"ids": np.array([WORDS], np.int64)})


@pytest.mark.parametrize("op_type", ["Gemm", "MatMul"])
def test_numbers_of_a_matrix_in_blocks_are_not_computed_beside_its_integers(
    op_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of all layers were held together: 18 bytes for each weight of 4 bits."""
    made: list[int] = []

    def noted(array: np.ndarray) -> object:
        made.append(array.size)
        return constant(array)

    monkeypatch.setattr(quantised_operators, "constant", noted)
    model = import_model(_model("int8", op_type, 32), keep_dims=True)
    graph = model.graph
    # The partition alone: a query converts nodes one at a time, unless the cache knows them.
    CpuLowering().lower(PartitionJob("p0", model, CPU, tuple(n.name for n in graph.nodes), graph.inputs, graph.outputs))
    assert max(made, default=0) < WORDS * WIDTH

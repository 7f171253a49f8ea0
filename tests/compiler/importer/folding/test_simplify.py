"""Values that become constants are constants that ONNX accepts where they are read."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.onnx_build import assert_close, model, node, noise, run_imported, run_original, save, value

CONSTANTS = {
    "axes": np.array([0]),
    "zero": np.array(0),
    "one": np.array(1),
    "two": np.array(2),
    "eight": np.array(8),
    "rate": np.array(8000),
    "low": np.array(0, np.float32),
    "high": np.array(4000, np.float32),
    "half": np.array(0.5, np.float32),
}
READERS = {
    "Range": (node("Range", "zero k one", "y"), np.array([3])),
    "DFT": (node("DFT", "x k", "y", axis=1), np.array([6])),
    "STFT": (node("STFT", "x two - k", "y"), np.array([4])),
    "MelWeightMatrix": (node("MelWeightMatrix", "k eight rate low high", "y"), np.array([4])),
    "the ratio of Dropout": (node("Dropout", "x k", "y"), np.array([0.5], np.float32)),
    "the training mode of Dropout": (node("Dropout", "x half k", "y"), np.array([False])),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_vector_of_one_element_from_a_taken_branch_is_a_scalar_where_onnx_wants_one(
    tmp_path: Path, reader: str
) -> None:
    # ONNX Runtime takes the vector, but refuses it as a constant, which it does not see: it does not fold Size.
    read, number = READERS[reader]
    kind = onnx.helper.np_dtype_to_tensor_dtype(number.dtype)
    branches = {}
    for name, inside in (("then_branch", "Identity number"), ("else_branch", "Unsqueeze number axes")):
        result = onnx.ValueInfoProto(name=name)
        result.type.tensor_type.elem_type = kind
        branches[name] = onnx.helper.make_graph([node(*inside.split(" ", 1), name)], name, [], [result])
    nodes = [node("Size", "w", "size"), node("Equal", "size two", "both"), node("If", "both", "k", **branches), read]
    inputs, constants = [value("x", [1, 8, 1]), value("w", [2])], {**CONSTANTS, "number": number}
    made = model(nodes, inputs, [onnx.ValueInfoProto(name="y")], constants)
    made.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64 if reader == "Range" else 1
    path, feed = save(tmp_path, made), {"x": noise(1, 8, 1), "w": noise(2)}
    imported = import_model(path)
    assert_close(run_imported(imported, feed), run_original(path, feed))

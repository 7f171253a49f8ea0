"""A table that a model reads for its first operator and transposed for its last product is stored once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.compiler.lower.relax.tied import tied
from heterocc.runtime import load
from tests.reference import reference_session

ROWS, WIDTH = 1000, 64
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


def _stored_and_compared(nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], dtype: str, path: Path) -> float:
    """The bytes of the bundle's weights over those of the model, of which a run was compared with ONNX Runtime."""
    graph = helper.make_graph(
        nodes,
        "tied",
        [helper.make_tensor_value_info("i", TensorProto.INT64, ["tokens"])],
        [helper.make_tensor_value_info("y", TYPES[dtype], ["tokens", ROWS])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    compile_model(model, path / "m.hcb", devices="CPU", cpu_variant=False, check=False, measure=False)
    feed = {"i": np.array([0, 3, ROWS - 1, -1, 17])}
    (wanted,) = reference_session(model).run(None, feed)
    with load(path / "m.hcb") as session:
        got = session.run(feed)["y"]
    most = float(np.abs(wanted).max())
    np.testing.assert_allclose(got, wanted, rtol=0, atol=(2e-3 if dtype == "float16" else 2e-6) * most)
    with open_bundle(path / "m.hcb") as bundle:
        return sum(weight.nbytes for weight in bundle.manifest.weights) / sum(a.nbytes for a in weights.values())


@pytest.mark.parametrize("dtype", TYPES)
def test_a_table_of_floats_is_stored_once(dtype: str, tmp_path: Path) -> None:
    table = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(dtype)
    nodes = [
        helper.make_node("Gather", ["table", "i"], ["row"]),
        helper.make_node("Tanh", ["row"], ["hidden"]),
        helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["hidden", "turned"], ["y"]),
    ]
    assert _stored_and_compared(nodes, {"table": table}, dtype, tmp_path) <= 1.01


@pytest.mark.parametrize(("bits", "level", "zeros"), [(4, 4, False), (4, 0, True), (8, 0, True), (8, 4, False)])
def test_a_table_of_codes_is_stored_once(bits: int, level: int, zeros: bool, tmp_path: Path) -> None:
    numbers, block = np.random.default_rng(0), 32
    weights = {
        "codes": numbers.integers(0, 256, (ROWS, WIDTH * bits // 8), np.uint8),
        "scales": numbers.uniform(0.01, 0.02, (ROWS, WIDTH // block)).astype(np.float32),
        "shape": np.array([ROWS, WIDTH // block, -1]),
    }
    if zeros:
        weights["zeros"] = numbers.integers(0, 256, (ROWS, WIDTH // block * bits // 8), np.uint8)
    more, form = ["scales", *(["zeros"] if zeros else [])], {"bits": bits, "block_size": block}
    own = {"domain": "com.microsoft"}
    nodes = [
        helper.make_node("GatherBlockQuantized", ["codes", "i", *more], ["row"], quantize_axis=1, **form, **own),
        helper.make_node("Tanh", ["row"], ["hidden"]),
        helper.make_node("Reshape", ["codes", "shape"], ["blocks"]),
        helper.make_node(
            "MatMulNBits", ["hidden", "blocks", *more], ["y"], K=WIDTH, N=ROWS, accuracy_level=level, **form, **own
        ),
    ]
    # Columns are filled up to whole tiles of 16, and zero points have a byte each.
    assert _stored_and_compared(nodes, weights, "float32", tmp_path) <= 1.05


def test_only_matrices_of_the_same_bytes_are_views_of_each_other() -> None:
    one = np.random.default_rng(0).standard_normal((300, 200)).astype(np.float32)
    other = np.ascontiguousarray(one.T)
    unlike = other.copy()
    unlike[100, 100] += 1
    found = tied({"one": one, "other": other, "unlike": unlike, "integers": other.view(np.int32)})
    assert [np.shares_memory(array, one) for array in found.values()] == [True, True, False, False]
    assert all(np.array_equal(found[name], {"other": other, "unlike": unlike}[name]) for name in ("other", "unlike"))

"""GatherBlockQuantized gives ONNX Runtime's rows, also for indices from the end and beyond the ends."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.few_examples import few
from tests.reference import reference_session

ROWS = 50
CASES = [("uint8", 4, 32, True), ("uint8", 2, 16, False), ("uint4", 4, 128, False), ("int4", 4, 32, True)]


def _model(kind: str, bits: int, block: int, *, zeros: bool, columns: int = 64) -> onnx.ModelProto:
    numbers = np.random.default_rng(0)
    blocks, each = -(-columns // block), 8 // bits if kind == "uint8" else 1
    scales = numpy_helper.from_array(numbers.uniform(0.01, 0.1, (ROWS, blocks)).astype(np.float32), "s")

    def table(name: str, width: int) -> onnx.TensorProto:
        if kind == "uint8":
            return numpy_helper.from_array(numbers.integers(0, 256, (ROWS, -(-width // each)), np.uint8), name)
        least = -8 if kind == "int4" else 0
        dtype = TensorProto.INT4 if kind == "int4" else TensorProto.UINT4
        return helper.make_tensor(name, dtype, [ROWS, width], numbers.integers(least, least + 16, ROWS * width))

    attributes = {"block_size": block, "gather_axis": 0, "quantize_axis": 1, "bits": bits}
    inputs = ["w", "i", "s", *(["z"] if zeros else [])]
    graph = helper.make_graph(
        [helper.make_node("GatherBlockQuantized", inputs, ["y"], domain="com.microsoft", **attributes)],
        "rows",
        [helper.make_tensor_value_info("i", TensorProto.INT64, ["batch", "tokens"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "tokens", columns])],
        [table("w", columns), scales, *([table("z", blocks)] if zeros else [])],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize(("kind", "bits", "block", "zeros"), CASES)
def test_rows_are_those_of_onnx_runtime(kind: str, bits: int, block: int, zeros: bool, tmp_path: Path) -> None:
    _compare(_model(kind, bits, block, zeros=zeros), tmp_path)


@pytest.mark.slow
@few(16, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.sampled_from([("uint8", 2), ("uint8", 4), ("uint8", 8), ("uint4", 4), ("int4", 4)]),
    st.sampled_from([16, 32, 64, 128]),
    st.booleans(),
    st.integers(1, 20),
)
def test_drawn_tables_equal_onnx_runtime(
    tmp_path: Path, form: tuple[str, int], block: int, zeros: bool, eights: int
) -> None:
    _compare(_model(*form, block, zeros=zeros, columns=8 * eights), tmp_path)


def _compare(model: onnx.ModelProto, tmp_path: Path) -> None:
    """Compare rows with those of ONNX Runtime, also of indices from the end and beyond the ends."""
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False, check=False, measure=False)
    reference = reference_session(model)
    with load(tmp_path / "m.hcb") as session:
        for places in ([[0, 3, 49], [7, 7, 1]], [[-1, -50]], [[50, 100, -51]], [[-(2**63), 2**62, 1]]):
            feed = {"i": np.array(places)}
            (wanted,) = reference.run(None, feed)
            np.testing.assert_allclose(session.run(feed)["y"], wanted, rtol=1e-6, atol=0)

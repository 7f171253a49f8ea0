"""Operators whose scales, slopes or second factors are inputs of symbolic sizes compile for the CPU alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.reference import reference_session

MODELS = {
    "PRelu, a slope of the last axis": (18, "float[a, b, c] x, float[c] s) => (float[a, b, c] y) { y = PRelu(x, s)"),
    "PRelu, a slope of two axes": (18, "float[a, b, c] x, float[b, c] s) => (float[a, b, c] y) { y = PRelu(x, s)"),
    "RMSNormalization of the last axis": (
        23,
        "float[a, b, c] x, float[c] s) => (float[a, b, c] y) { y = RMSNormalization(x, s)",
    ),
    "RMSNormalization of two axes": (
        23,
        "float[a, b, c] x, float[b, c] s) => (float[a, b, c] y) { y = RMSNormalization<axis = 1, epsilon = 0.01>(x, s)",
    ),
    "BatchNormalization": (
        15,
        "float[a, b, c] x, float[b] s, float[b] t, float[b] m, float[b] v) => (float[a, b, c] y) "
        "{ y = BatchNormalization(x, s, t, m, v)",
    ),
    "MatMulInteger": (18, "uint8[a, b] p, int8[b, c] q) => (int32[a, c] y) { y = MatMulInteger(p, q)"),
    "MatMulInteger with zero points": (
        18,
        "uint8[a, b] p, int8[b, c] q, uint8 i, int8 j) => (int32[a, c] y) { y = MatMulInteger(p, q, i, j)",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_second_operand_of_symbolic_sizes_gives_the_results_of_onnx_runtime(name: str, tmp_path: Path) -> None:
    opset, text = MODELS[name]
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> agraph ({text} }}')
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False, check=False, measure=False)
    reference, numbers = reference_session(model), np.random.default_rng(0)
    with load(tmp_path / "m.hcb") as session:
        for sizes in ({"a": 2, "b": 3, "c": 5}, {"a": 1, "b": 19, "c": 33}, {"a": 4, "b": 1, "c": 1}):
            feed = {i.name: _drawn(i, sizes, numbers) for i in model.graph.input}
            (wanted,) = reference.run(None, feed)
            got = session.run(feed)["y"]
            assert got.dtype == wanted.dtype
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def _drawn(info: onnx.ValueInfoProto, sizes: dict[str, int], numbers: np.random.Generator) -> np.ndarray[Any, Any]:
    tensor = info.type.tensor_type
    shape = [sizes[d.dim_param] for d in tensor.shape.dim]
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    if dtype.kind == "f":
        return np.asarray(
            np.abs(numbers.standard_normal(shape)) if info.name == "v" else numbers.normal(size=shape), dtype
        )
    return np.asarray(numbers.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape), dtype)

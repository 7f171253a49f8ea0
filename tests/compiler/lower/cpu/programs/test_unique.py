"""Unique on the CPU alone: all four results equal ONNX Runtime's, for tensors of several sizes from one bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest

from heterocc.compiler import compile_model
from heterocc.runtime import load


@pytest.mark.parametrize(
    ("given", "attributes", "value", "count", "shapes", "dtype"),
    [
        ("float[n,m]", "sorted = 1", "float[k]", "q", [(3, 4), (1, 1), (40, 70)], np.float32),
        ("int64[n]", "sorted = 0", "int64[k]", "n", [(1,), (7,), (1000,)], np.int64),
        ("double[n,m,2]", "axis = 1, sorted = 1", "double[n,k,2]", "m", [(1, 9, 2), (2, 40, 2)], np.float64),
        ("int8[n,m]", "axis = -2, sorted = 0", "int8[k,m]", "n", [(9, 2), (30, 3)], np.int8),
    ],
)
def test_unique_elements_and_slices_equal_those_of_onnx_runtime(
    given: str, attributes: str, value: str, count: str, shapes: list[tuple[int, ...]], dtype: type, tmp_path: Path
) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18]> agraph ({given} x) => ({value} y, int64[k] i, int64[{count}] v, '
        f"int64[k] c) {{ y, i, v, c = Unique<{attributes}>(x) }}"
    )
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False)
    reference = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    numbers = np.random.default_rng(0)
    with load(tmp_path / "m.hcb") as session:
        for shape in shapes:
            feed = {"x": numbers.integers(-2, 3, shape).astype(dtype)}
            for got, expected in zip(session.run(feed).values(), reference.run(None, feed), strict=True):
                assert got.dtype == expected.dtype
                np.testing.assert_array_equal(got, expected)

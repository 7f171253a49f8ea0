"""Lengths of STFT's frames that a request gives to ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.reference import reference_session


@pytest.mark.parametrize("dtype", [TensorProto.INT32, TensorProto.INT64])
def test_a_length_below_1_is_an_error_and_not_the_end_of_the_process(dtype: int, tmp_path: Path) -> None:
    info = helper.make_tensor_value_info
    inputs = [info("x", TensorProto.FLOAT, [1, "n", 1]), info("step", dtype, []), info("length", dtype, [])]
    node = helper.make_node("STFT", ["x", "step", "", "length"], ["y"], name="spectra")
    graph = helper.make_graph([node], "g", inputs, [info("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    compile_model(model, tmp_path / "m.hcb", devices="ORT", check=False)
    numpy_type = helper.tensor_dtype_to_np_dtype(dtype)

    def feed(length: int) -> dict[str, np.ndarray]:
        x = np.random.default_rng(0).standard_normal((1, 32, 1)).astype(np.float32)
        return {"x": x, "step": np.array(4, numpy_type), "length": np.array(length, numpy_type)}

    with load(tmp_path / "m.hcb") as session:
        for length in (0, -8, 33):
            with pytest.raises(HeteroccError):
                session.run(feed(length))
        expected = reference_session(model).run(None, feed(8))[0]
        np.testing.assert_allclose(session.run(feed(8))["y"], expected, rtol=1e-5, atol=1e-5)

"""Operators that are computed by ONNX's definitions refuse sizes that ONNX Runtime's operators refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from heterocc.artifacts.errors import InputError
from heterocc.compiler import compile_model
from heterocc.runtime import load

Dims = list[str]


def model_of(op_type: str, inputs: dict[str, Dims], outputs: int, opset: int, **attributes: Any) -> onnx.ModelProto:
    """A model of one node, whose inputs `size` and `at` are int64 and the others float32."""
    written = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op_type, list(inputs), written, **attributes)
    types = {name: TensorProto.INT64 if name in ("size", "at") else TensorProto.FLOAT for name in inputs}
    ends = [helper.make_tensor_value_info(name, types[name], dims) for name, dims in inputs.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in written]
    graph = helper.make_graph([node], "g", ends, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).random(shape, np.float32)


def check(path: Path, model: onnx.ModelProto, right: dict[str, np.ndarray], *wrong: dict[str, np.ndarray]) -> None:
    """A request has ONNX Runtime's result; others that differ from it by some inputs are errors in both."""
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    compile_model(model, path / "m.hcb", devices="CPU")
    with load(path / "m.hcb") as session:
        found = session.run(right)
        for name, other in zip(found, reference.run(None, right), strict=True):
            np.testing.assert_allclose(found[name], other, rtol=1e-5, atol=1e-6)
        for changed in wrong:
            with pytest.raises(Exception, match="Non-zero status code"):
                reference.run(None, right | changed)
            with pytest.raises(InputError):
                session.run(right | changed)


def test_a_scale_of_another_shape_is_refused_though_statistics_are_results_too(tmp_path: Path) -> None:
    model = model_of("LayerNormalization", {"x": ["a", "b"], "scale": ["c", "d"]}, 3, 17, axis=0)
    check(tmp_path, model, {"x": draw(3, 4), "scale": draw(3, 4)}, {"x": draw(4, 3)})


@pytest.mark.parametrize("name", ["BlackmanWindow", "HammingWindow", "HannWindow"])
def test_a_window_of_a_negative_size_is_refused(tmp_path: Path, name: str) -> None:
    check(tmp_path, model_of(name, {"size": []}, 1, 17), {"size": np.array(6)}, {"size": np.array(-1)})


@pytest.mark.parametrize("interleaved", [0, 1])
def test_tables_of_a_rotary_embedding_are_as_wide_as_half_a_head(tmp_path: Path, interleaved: int) -> None:
    inputs = {"x": ["b", "h", "n", "s"], "cos": ["p", "w"], "sin": ["q", "v"], "at": ["c", "m"]}
    model = model_of("RotaryEmbedding", inputs, 1, 23, interleaved=interleaved)
    right = {"x": draw(2, 3, 4, 8), "cos": draw(10, 4), "sin": draw(10, 4), "at": np.arange(8).reshape(2, 4)}
    narrow, wide = ({"cos": draw(10, width), "sin": draw(10, width)} for width in (1, 64))
    check(tmp_path, model, right, narrow, wide, {"sin": draw(10, 1)}, {"sin": draw(11, 4)})

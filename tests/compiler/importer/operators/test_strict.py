"""Operators that are computed by definitions or by other operators refuse what ONNX Runtime's operators refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from heterocc.artifacts.errors import HeteroccError, InputError
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


def test_a_rotary_embedding_has_a_position_for_each_token(tmp_path: Path) -> None:
    inputs = {"x": ["b", "h", "n", "s"], "cos": ["p", "w"], "sin": ["q", "v"], "at": ["c", "m"]}
    right = {"x": draw(2, 3, 4, 8), "cos": draw(10, 4), "sin": draw(10, 4), "at": np.arange(8).reshape(2, 4)}
    wrong = [{"at": np.zeros(shape, np.int64)} for shape in ((1, 4), (2, 1), (4, 2))]
    check(tmp_path, model_of("RotaryEmbedding", inputs, 1, 23), right, *wrong)


def test_tables_without_positions_have_a_row_for_each_token(tmp_path: Path) -> None:
    inputs = {"x": ["b", "h", "n", "s"], "cos": ["p", "q", "w"], "sin": ["r", "t", "v"]}
    right = {"x": draw(2, 3, 4, 8), "cos": draw(2, 4, 4), "sin": draw(2, 4, 4)}
    single = {"cos": draw(1, 4, 4), "sin": draw(1, 4, 4)}
    check(tmp_path, model_of("RotaryEmbedding", inputs, 1, 23), right, {"sin": draw(4, 2, 4)}, single)


def test_inputs_of_a_swiglu_have_one_shape(tmp_path: Path) -> None:
    compile_model(model_of("SwiGLU", {"a": ["m", "n"], "b": ["k", "l"]}, 1, 28), tmp_path / "m.hcb", devices="CPU")
    a, b = draw(2, 4), draw(2, 4)
    with load(tmp_path / "m.hcb") as session:
        np.testing.assert_allclose(session.run({"a": a, "b": b})["y0"], a / (1 + np.exp(-a)) * b, rtol=1e-5)
        for shape in ((1, 4), (2, 1), (4, 2)):
            with pytest.raises(InputError):
                session.run({"a": a, "b": draw(*shape)})


def test_a_computed_scale_of_an_upsample_is_1_or_more(tmp_path: Path) -> None:
    inputs = {"x": ["a", "b", "c", "d"], "scales": ["4"]}
    model = model_of("Upsample", inputs, 1, 9)
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 4

    def scales(*numbers: float) -> dict[str, np.ndarray]:
        return {"scales": np.array(numbers, np.float32)}

    check(tmp_path, model, {"x": draw(1, 2, 3, 4)} | scales(1, 1, 2, 3), scales(1, 1, 0.5, 2), scales(1, 0.9, 1, 1))


@pytest.mark.parametrize("ratio", [-0.5, 1.0, 3.0, np.nan])
def test_a_ratio_of_a_dropout_is_from_0_to_less_than_1(tmp_path: Path, ratio: float) -> None:
    model = model_of("Dropout", {"x": ["n"], "ratio": []}, 1, 13)
    model.graph.node[0].input.append("training")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "training"))
    right = {"x": draw(5), "ratio": np.array(0, np.float32)}
    check(tmp_path, model, right, {"ratio": np.array(ratio, np.float32)})


def test_a_reshape_to_no_elements_does_not_lose_what_it_needs_of_its_input(tmp_path: Path) -> None:
    model = model_of("Reshape", {"x": ["n"]}, 1, 17, allowzero=1)
    model.graph.node[0].input.append("shape")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([3, 0]), "shape"))
    compile_model(model, tmp_path / "m.hcb")
    with load(tmp_path / "m.hcb") as session:
        assert session.run({"x": draw(0)})["y0"].shape == (3, 0)
        with pytest.raises(HeteroccError):
            session.run({"x": draw(2)})
